# Segments shared by containers with separate PID namespaces, and by a program with glibc and a static one with musl.
# shellcheck shell=sh disable=SC2154 # Sourced by run, next to it.

make_image
memory=$name-memory
docker volume create --driver local --opt type=tmpfs --opt device=tmpfs --opt o=size=64m,mode=1777 "$memory" >/dev/null
finally "docker volume rm $memory"
for container in one two; do
    finally "docker rm --force $name-$container"
    docker run --detach --init --network none --name "$name-$container" --volume "$memory:/limits" "$name" sleep infinity >/dev/null
done
# In a container, as its user.
inside() {
    container=$1
    shift
    docker exec "$name-$container" "$@"
}
# Runs it this many times in each container, one after the other.
try_in_both() {
    admitted=0
    for turn in $(seq "$2"); do
        container=one
        [ $((turn % 2)) -eq 0 ] || container=two
        inside "$container" limitctl exec --timeout 0 "$1" api -- true >/dev/null 2>&1 || continue
        admitted=$((admitted + 1))
    done
}

expect "a segment with slot locks is created" inside one limitctl create --set api --calls calls=10/1h \
    --concurrency places=4 /limits/slot.limits
try_in_both /limits/slot.limits 24
[ "$admitted" -eq 10 ] || fail "$admitted were admitted of 10, by two containers"
say "two containers are admitted 10 calls of 10, and not one more, of 24"
ends 0 inside one limitctl reset /limits/slot.limits api

# One container has three of four places, until it is killed as a whole while the other waits for four.
inside one limitctl exec --cost places=3 /limits/slot.limits api -- sleep infinity &
has_places() {
    inside two limitctl inspect /limits/slot.limits >"$scratch/inspected" && grep -q "places 3" "$scratch/inspected"
}
within 20 has_places
grep -q " in namespace " "$scratch/inspected" || fail "inspect does not say of which namespace a process id is"
ends 75 inside two limitctl exec --timeout 0 --cost places=2 /limits/slot.limits api -- true
ends 0 inside two limitctl exec --timeout 0 --cost places=1 /limits/slot.limits api -- true
inside two limitctl exec --timeout 60s --cost places=4 /limits/slot.limits api -- true &
waiting=$!
waits() {
    inside two limitctl inspect --json /limits/slot.limits | value 'it["sets"][0]["tickets"][0] and 1' | grep -q 1
}
within 20 waits
killed=$(date +%s%N)
docker kill --signal KILL "$name-one" >/dev/null
wait "$waiting" || fail "what a killed container had was not given to who waits in the other"
say "a container with three places was killed; another that waited for four had them within $((($(date +%s%N) - killed) / 1000000)) ms of the command"
docker start "$name-one" >/dev/null
ends 0 inside two limitctl recover /limits/slot.limits
ends 0 inside one limitctl doctor /limits/slot.limits
ends 0 inside two limitctl doctor /limits/slot.limits

# The robust mutex: processes in another namespace are refused, and told what to do.
expect "a segment with robust locks is created" inside one limitctl create --lock robust --set api --concurrency places=4 \
    /limits/robust.limits
inside one limitctl exec /limits/robust.limits api -- sleep infinity &
in_use() {
    inside one limitctl inspect --json /limits/robust.limits | value 'it["participants"][0] and 1' | grep -q 1
}
within 20 in_use
ends 69 inside two limitctl exec --timeout 0 /limits/robust.limits api -- true
# shellcheck disable=SC2016 # As it is printed.
said 'lock = "slot"'
ends 1 inside two limitctl doctor /limits/robust.limits
said foreign_namespace
expect "a container in the namespace of another may use what its robust locks guard" docker run --rm --network none \
    --pid "container:$name-one" --volume "$memory:/limits" "$name" \
    limitctl exec --timeout 0 /limits/robust.limits api -- true
say "a container of another namespace is refused: $(inside two limitctl exec /limits/robust.limits api -- true 2>&1 || :)"

# As in packaging/kubernetes/one-host.yaml: a directory of the host, and a group.
mkdir "$scratch/host"
chgrp 990 "$scratch/host"
chmod 2750 "$scratch/host"
ends 0 "$limitctl" create --all packaging/declarations "$scratch/host"
on_host() {
    docker run --user 1000:1000 --network none --volume "$scratch/host:/run/shmlimit" "$@"
}
ends 0 on_host --rm --group-add 990 "$name" limitctl exec --timeout 0 /run/shmlimit/api.limits api -- true
ends 77 on_host --rm "$name" limitctl exec --timeout 0 /run/shmlimit/api.limits api -- true
finally "docker rm --force $name-four"
on_host --detach --name "$name-four" --group-add 990 "$name" \
    limitctl exec --cost in_flight=16 /run/shmlimit/api.limits api -- sleep infinity >/dev/null
is_full() {
    ended=0
    "$limitctl" exec --timeout 0 "$scratch/host/api.limits" api -- true || ended=$?
    [ "$ended" -eq 75 ]
}
within 20 is_full
ends 0 "$limitctl" doctor "$scratch/host/api.limits"
docker kill --signal KILL "$name-four" >/dev/null
ends 0 "$limitctl" exec --timeout 20s "$scratch/host/api.limits" api -- true
say "what a container held that shares a directory of the host, the host has as it is killed; who is not of the group is refused"

# A static program with musl, in an image with nothing else, stands in for Alpine images.
if [ ! -x "$musl_limitctl" ]; then
    return 0
fi
mkdir "$scratch/musl"
cp "$musl_limitctl" "$scratch/musl/limitctl"
printf 'FROM scratch\nCOPY limitctl /limitctl\nUSER 33:33\nENTRYPOINT ["/limitctl"]\n' >"$scratch/musl/Dockerfile"
finally "docker image rm --force $name-musl"
docker build --quiet --tag "$name-musl" "$scratch/musl" >/dev/null 2>&1
musl() {
    docker run --rm --network none --volume "$memory:/limits" "$@"
}
ends 0 inside one limitctl reset /limits/slot.limits api
admitted=0
for _ in $(seq 12); do
    for program in "inside two limitctl" "musl $name-musl"; do
        command=/limitctl
        [ "$program" = "musl $name-musl" ] || command=limitctl
        # shellcheck disable=SC2086 # Several words.
        $program exec --timeout 0 --cost places=0 /limits/slot.limits api -- $command --version >/dev/null 2>&1 || continue
        admitted=$((admitted + 1))
    done
done
[ "$admitted" -eq 10 ] || fail "$admitted were admitted of 10, by programs with glibc and with musl"
say "programs with glibc and with musl are admitted 10 calls of 10"
# One of them holds all places, and its container is killed.
finally "docker rm --force $name-three"
musl --detach --name "$name-three" "$name-musl" exec --cost places=4 --cost calls=0 /limits/slot.limits api -- \
    /limitctl watch /limits/slot.limits >/dev/null
has_all() {
    ended=0
    inside two limitctl exec --timeout 0 --cost calls=0 /limits/slot.limits api -- true || ended=$?
    [ "$ended" -eq 75 ]
}
within 20 has_all
docker kill --signal KILL "$name-three" >/dev/null
ends 0 inside two limitctl exec --timeout 20s --cost calls=0 --cost places=4 /limits/slot.limits api -- true
say "what a program with musl held was given back as its container was killed"
ends 65 musl --pid "container:$name-one" "$name-musl" exec --timeout 0 /limits/robust.limits api -- /limitctl --version
said 'lock = "slot"'
say "a robust lock is refused to a program with another C library: $(cat "$scratch/out")"
