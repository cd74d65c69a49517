# Connections: the table of spec 80 §2.1.
http_rows 80
# The port is taken: no second process may share it.
"$binary" --config $config --port "${url##*:}" >"$scratch/second.log" 2>&1
equal "80-2.1 a second process on the port is refused" "$?" 2
contains "80-2.1 naming the port" "$(cat "$scratch/second.log")" "${url##*:}"
printf '{"prompt":"Once","max_tokens":1,"metadata":{"p":"%s"}}' "$(head -c 9216 /dev/zero | tr '\0' x)" >"$scratch/body"
equal "80-2.1 curl's own 9 KB POST is served" \
  "$(curl -sS -o "$scratch/reply" -w '%{http_code}' --data-binary @"$scratch/body" "$url/v1/completions")" 200
