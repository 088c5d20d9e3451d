#!/bin/sh
# A cron job that never runs twice at once on a host, and at most 24 times a day, whatever starts it.
#
#     */5 * * * * cron_no_overlap.sh /dev/shm/nightly.limits import-orders
#
# Arguments: the segment, which is created if there is none, and the command. A run that overlaps another one ends at
# once with exit code 75, and so does one that is over the limit.
set -eu
segment=$1
shift

if [ ! -e "$segment" ]; then
    declaration=$(mktemp)
    trap 'rm -f "$declaration"' EXIT
    cat >"$declaration" <<'TOML'
[[set]]
name = "job"

  [[set.limit]]
  name = "running"
  kind = "concurrency"
  capacity = 1

  [[set.limit]]
  name = "runs"
  kind = "calls"
  capacity = 24
  window = "1d"
  algorithm = "sliding_window"
TOML
    # Another run may create it at the same moment: then the one that is there serves both.
    limitctl create "$segment" "$declaration" >/dev/null 2>&1 || [ -e "$segment" ]
fi

# However it ends, the place is given back when all of the job has ended: there is no lock file to be removed by hand.
limitctl exec --timeout 0 "$segment" job -- "$@"
