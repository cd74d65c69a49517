# Chunked bodies on every route, requests that wait in one connection, a 404 with a body, contradicting lengths.
http_rows 08
