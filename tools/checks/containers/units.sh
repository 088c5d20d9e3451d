# The systemd units, in a container that boots: segments at boot, a reload, the doctor's timer, a shutdown with a
# checkpoint, and a boot from it with a mistake in a declaration.
# shellcheck shell=sh disable=SC2154 # Sourced by run, next to it.

root=$scratch/root
debootstrap --variant=minbase --include=systemd,systemd-sysv,dbus trixie "$root" >"$scratch/debootstrap.log" 2>&1 ||
    fail "debootstrap: $(tail -3 "$scratch/debootstrap.log")"
expect "it is installed" env DESTDIR="$root" LIMITCTL="$limitctl" packaging/install
sed 's|^mode = .*|&\ncheckpoint = { path = "/var/lib/shmlimit/api.checkpoint" }|' packaging/declarations/api.toml \
    >"$root/etc/shmlimit/api.toml"
cat >"$root/etc/systemd/system/app.service" <<EOF
[Unit]
Wants=shmlimit.service
After=shmlimit.service
[Service]
User=www-data
SupplementaryGroups=limits
ExecStart=/usr/bin/limitctl exec /run/shmlimit/api.limits api -- sleep infinity
[Install]
WantedBy=multi-user.target
EOF
mkdir "$root/etc/systemd/system/shmlimit-doctor.timer.d"
printf '[Timer]\nOnBootSec=\nOnBootSec=1s\nOnUnitActiveSec=3s\nAccuracySec=100ms\n' \
    >"$root/etc/systemd/system/shmlimit-doctor.timer.d/soon.conf"
systemctl --quiet --root "$root" enable shmlimit.service shmlimit-doctor.timer app.service 2>"$scratch/enabled"

boot() {
    systemd-nspawn --boot --directory "$root" --machine "$name" --register no --keep-unit --private-network \
        --console read-only >"$scratch/console" 2>&1 </dev/null &
    machine=$!
    finally "kill -KILL $machine; rm -rf /run/systemd/nspawn/propagate/$name"
    within 60 is_up
}
is_up() {
    leader=$(cat "/proc/$machine/task/$machine/children") && leader=${leader%% *}
    inside systemctl is-active multi-user.target
}
inside() {
    nsenter --target "$leader" --all "$@"
}
# halts COMMAND...: the command ends the container.
halts() {
    "$@" || :
    within 60 has_ended
}
has_ended() {
    ! kill -0 "$machine" 2>/dev/null
}
admitted() {
    inside limitctl inspect --json /run/shmlimit/api.limits | value 'it["sets"][0]["counts"]["admitted"]'
}
doctor_is() {
    inside systemctl show --value --property Result shmlimit-doctor.service | grep -qx "$1"
}

boot
expect "the segment is there after the boot" inside systemctl is-active shmlimit.service app.service
[ "$(inside stat --format '%U %G %a' /run/shmlimit/api.limits)" = "root limits 660" ] || fail "the segment is of another user"
group=$(inside getent group limits | cut -d: -f3)
for _ in 1 2 3; do
    ends 0 inside setpriv --reuid www-data --regid www-data --groups "$group" \
        limitctl exec --timeout 0 /run/shmlimit/api.limits api -- true
done
ends 77 inside setpriv --reuid nobody --regid nogroup --clear-groups limitctl exec --timeout 0 /run/shmlimit/api.limits api -- true
say "members of the group use it, and others do not"
inside sed -i 's/capacity = 16/capacity = 17/' /etc/shmlimit/api.toml
expect "a changed declaration is reloaded" inside systemctl reload shmlimit.service
ends 0 inside limitctl inspect /run/shmlimit/api.limits
said "in_flight  concurrency  17"
within 30 sh -c "nsenter --target $leader --all journalctl --unit shmlimit-doctor.service | grep 'nothing wrong was found'"
inside chmod o+w /run/shmlimit/api.limits
within 30 doctor_is exit-code
ends 0 inside journalctl --unit shmlimit-doctor.service
said "heal with: chmod o-w /run/shmlimit/api.limits"
inside chmod o-w /run/shmlimit/api.limits
within 30 doctor_is success
say "the timer has the doctor find what is wrong, and that it is healed"

before=$(admitted)
inside sh -c 'echo nonsense >/etc/shmlimit/wrong.toml'
halts inside systemctl reboot
boot
[ "$(inside systemctl is-active shmlimit.service)" = failed ] || fail "a mistake in a declaration is not shown"
within 30 inside systemctl is-active app.service
after=$(admitted)
# The service has taken one more.
[ "$after" -eq "$before" ] || [ "$after" -eq $((before + 1)) ] || fail "$before were admitted, and after the reboot $after"
say "after a reboot $after are counted, $before before it; a mistake in another declaration kept no service from starting"
halts kill "$machine"
