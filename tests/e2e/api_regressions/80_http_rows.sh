# Connections: items 8 and 9 of §14 and the table of spec 80 §2.1 (http_rows.cpp).
start_server --set server.max_body_mib=1 --set server.header_timeout_s=2 --set scheduler.prefill_rows=64
"$program_folder/http_rows" "${url##*:}" "$server_pid" >"$scratch/rows" 2>&1 || failures=$((failures + 1))
cat "$scratch/rows"
# The port is taken: no second process may share it.
"$binary" --config $config --port "${url##*:}" >"$scratch/second.log" 2>&1
equal "80-2.1 a second process on the port is refused" "$?" 2
contains "80-2.1 naming the port" "$(cat "$scratch/second.log")" "${url##*:}"
printf '{"prompt":"Once","max_tokens":1,"metadata":{"p":"%s"}}' "$(head -c 9216 /dev/zero | tr '\0' x)" >"$scratch/body"
equal "80-2.1 curl's own 9 KB POST is served" \
  "$(curl -sS -o "$scratch/reply" -w '%{http_code}' --data-binary @"$scratch/body" "$url/v1/completions")" 200
