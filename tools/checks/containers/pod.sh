# The Kubernetes pod, in podman: its init container creates the segment from the ConfigMap, and the workers of two
# containers share it. Runs it as it is, and with robust mutexes and one PID namespace.
# shellcheck shell=sh disable=SC2154 # Sourced by run, next to it.
#
# Makes up for podman 4's differences from Kubernetes: instead of `medium: Memory` and `fsGroup`, a volume in memory of
# that group is kept mounted, and the pod is never restarted, because podman would start its init containers again and
# again.

make_image
runtime=
if command -v runc >/dev/null; then runtime='runtime = "runc"'; fi
cat >"$scratch/containers.conf" <<EOF
[containers]
default_ulimits = ["nofile=1024:1024", "nproc=4096:4096"]
[engine]
cgroup_manager = "cgroupfs"
events_logger = "file"
$runtime
EOF
pods() {
    CONTAINERS_CONF=$scratch/containers.conf podman --root "$scratch/podman" --runroot "$scratch/podman-run" \
        --network-config-dir "$scratch/networks" --log-level error "$@"
}
inside() {
    container=$1
    shift
    pods exec "api-$container" "$@"
}

finally "pods image rm --all --force; remove_cgroups libpod_parent"
docker save "$name" | pods load --quiet >/dev/null
pods tag "$name" registry.example/api:1
finally "pods rm --all --force --time 0; pods volume rm --all --force"

# play MANIFEST: starts the pod, and asks both containers for more than the limit.
play() {
    pods volume create --opt type=tmpfs --opt device=tmpfs --opt o=mode=2777,gid=1000 memory >/dev/null
    pods run --detach --network none --name keeper --volume memory:/memory "$name" sleep infinity >/dev/null
    sed 's/^  securityContext:$/  restartPolicy: Never\n&/' "$1" >"$scratch/pod.yaml"
    expect "the pod starts" pods kube play --network none "$scratch/pod.yaml"
    within 30 inside admin python3 -c 'import urllib.request as it; it.urlopen("http://127.0.0.1:8000"), it.urlopen("http://127.0.0.1:8001")'
    admitted=$(inside admin limitctl inspect --json /dev/shm/api.limits | value 'it["sets"][0]["counts"]["admitted"]')
    pods exec --interactive api-admin python3 - 1200 8000 8001 <"$here/traffic.py" >"$scratch/traffic"
    value '500 - '"$admitted"' <= it["200"] <= 501 + 500 * it["seconds"] / 60 or exit(1)' <"$scratch/traffic" >/dev/null ||
        fail "its containers admitted something else than the limit: $(cat "$scratch/traffic")"
    say "1,200 requests to both containers: $(cat "$scratch/traffic")"

    inside public limitctl exec --cost requests=0 --cost in_flight=16 --timeout 20s /dev/shm/api.limits api -- sleep infinity &
    within 20 is_full
    holder=$(inside public limitctl inspect --json /dev/shm/api.limits | value 'it["sets"][0]["holds"][0]["owner_pid"]')
    inside public sh -c "kill -KILL $holder"
    ends 0 inside admin limitctl exec --cost requests=0 --timeout 20s /dev/shm/api.limits api -- true
    say "what a killed process of one container held, another has"

    pods stop --time 5 api-admin >/dev/null
    inside public python3 -c 'import urllib.request as it
try:
    it.urlopen("http://127.0.0.1:8000")
except it.HTTPError as error:
    assert error.code == 429'
    pods start api-admin >/dev/null
    within 30 inside public limitctl doctor /dev/shm/api.limits
    within 30 inside admin limitctl doctor
    say "one container was stopped and started, and the other served"
}
is_full() {
    ended=0
    inside admin limitctl exec --cost requests=0 --timeout 0 /dev/shm/api.limits api -- true || ended=$?
    [ "$ended" -eq 75 ]
}

play packaging/kubernetes/one-pod.yaml
pods pod rm --force api >/dev/null
pods rm --all --force --time 0 >/dev/null
pods volume rm --all --force >/dev/null
sed -e 's/^spec:$/&\n  shareProcessNamespace: true/' -e 's/^  api.toml: |$/&\n    [segment]\n    lock = "robust"\n/' \
    packaging/kubernetes/one-pod.yaml >"$scratch/robust.yaml"
play "$scratch/robust.yaml"
