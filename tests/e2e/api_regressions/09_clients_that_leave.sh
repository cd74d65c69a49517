# A client that leaves while its request is queued, prefilled, decoded: it ends, and the next one starts at once.
http_rows 09
