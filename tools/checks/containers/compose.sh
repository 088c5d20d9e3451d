# The Compose example: its services serve requests, are restarted, and lose a worker that has permits.
# shellcheck shell=sh disable=SC2154 # Sourced by run, next to it.

make_image
compose() {
    docker compose --project-name "$name" --file packaging/compose/compose.yaml --file "$here/compose.held.yaml" "$@"
}
# In a service, as its user.
inside() {
    service=$1
    shift
    compose exec -T "$service" "$@"
}
segment=/dev/shm/api.limits
counted() {
    inside limits limitctl inspect --json $segment | value "$1"
}
answer() {
    curl --silent --output /dev/null --write-out '%{http_code}' --max-time 20 "http://127.0.0.1:$1/"
}
# answers PORT STATUS
answers() {
    [ "$(answer "$1")" = "$2" ]
}
serves() {
    answers "$1" 200 || answers "$1" 429
}

finally "docker compose --project-name $name --file packaging/compose/compose.yaml down --timeout 2 --volumes --rmi local"
expect "the services start, and the segment is in order" compose up --build --detach --wait --wait-timeout 120
within 30 answers 8000 200
within 30 answers 8001 200

admitted=$(counted 'it["sets"][0]["counts"]["admitted"]')
python3 "$here/traffic.py" 1200 8000 8001 >"$scratch/traffic"
say "1,200 requests to both services: $(cat "$scratch/traffic")"
counted "(lambda counts, traffic: \
    counts['admitted'] - $admitted == traffic['200'] and counts['refused_rate'] == traffic['429'] and \
    500 - $admitted <= traffic['200'] <= 500 + 500 * traffic['seconds'] / 60 + 1)( \
    it['sets'][0]['counts'], json.load(open('$scratch/traffic')))" >"$scratch/agree"
grep -q True "$scratch/agree" || fail "the services admitted something else than the segment counted, or than the limit"
say "the services admitted what the limit admits, and the segment counted the same"

# A worker of one service has all places, and the other service is refused until that worker is killed.
curl --silent --no-buffer --max-time 60 http://127.0.0.1:8000/held >"$scratch/holder" &
holding=$!
finally "kill $holding"
within 20 grep -q . "$scratch/holder"
ends 0 inside admin limitctl inspect $segment
said "in_flight 16"
has_no_place() {
    answers 8001 429 && [ "$(counted 'it["sets"][0]["counts"]["refused_concurrency"]')" -gt 0 ]
}
within 20 has_no_place
inside api sh -c "kill -KILL $(cat "$scratch/holder")"
within 20 answers 8001 200
ends 1 inside admin limitctl recover --check $segment
said "(gunicorn) died attached"
ends 0 inside admin limitctl recover $segment
ends 0 inside admin limitctl recover --check $segment
say "a worker that had all places was killed by SIGKILL, and the other service had them"

# One service is restarted while the other serves, then the other way round.
for restarted in api:8001 admin:8000; do
    rm -f "$scratch/enough"
    python3 "$here/traffic.py" --until "$scratch/enough" "${restarted#*:}" >"$scratch/traffic" &
    serving=$!
    expect "${restarted%:*} is restarted" compose restart --timeout 10 "${restarted%:*}"
    within 30 serves 8000
    within 30 serves 8001
    touch "$scratch/enough"
    wait "$serving"
    say "meanwhile the other answered: $(cat "$scratch/traffic")"
    value 'set(it) <= {"seconds", "200", "429"} or exit(1)' <"$scratch/traffic" >/dev/null ||
        fail "a restart of ${restarted%:*} disturbed the other service"
done
[ "$(counted 'len(it["participants"])')" -gt 0 ] || fail "no process uses the segment"

# What operators ask in an emergency, from the inside.
ends 0 inside api limitctl doctor $segment
said "nothing wrong was found"
ends 0 inside api limitctl selftest
said "limits work here"
ends 0 inside api limitctl recover $segment
ends 0 inside api limitctl watch --every 100ms --count 2 $segment
said "requests"
ends 0 inside api limitctl checkpoint $segment /tmp/api.checkpoint
ends 0 inside api limitctl export --prometheus $segment
cp "$scratch/out" "$scratch/exported"
ends 0 curl --silent --fail --max-time 20 http://127.0.0.1:9464/metrics
said shmlimit_requests_total
if command -v promtool >/dev/null; then promtool check metrics <"$scratch/exported" || fail "promtool refuses the export"; fi
ends 0 docker exec --user 0 "$(compose ps --quiet api)" limitctl doctor $segment
said "for its owner\|For its owner"
# On a terminal, which it leaves when q is typed.
ends 0 python3 "$here/terminal.py" in_flight docker exec --interactive --tty "$(compose ps --quiet api)" limitctl top $segment
say "doctor, selftest, recover, watch, checkpoint, export, serve and top work inside"

# And from the host, where the processes are in another namespace.
outside=/proc/$(docker inspect --format '{{.State.Pid}}' "$(compose ps --quiet limits)")/root$segment
ends 0 "$limitctl" inspect "$outside"
said " in namespace "
ends 0 "$limitctl" watch --count 1 "$outside"
ends 0 "$limitctl" doctor "$outside"
ends 0 "$limitctl" recover --trust-any-owner "$outside"
say "from the host it is seen as what it is, and can be recovered"

# The container that creates the segment is needed no more than the others.
kill -KILL "$(docker inspect --format '{{.State.Pid}}' "$(compose ps --quiet limits)")"
within 60 answers 8000 200
within 60 answers 8001 200
within 60 inside limits limitctl doctor $segment
[ "$(counted 'it["sets"][0]["counts"]["admitted"]')" -ge "$admitted" ] || fail "the limits began anew"
say "the container that created the segment was killed, and came back to the same segment"
