#!/bin/bash
# train_gpt's whole story against a real daemon on the simulated device, and its words without one.
#   train_gpt_test.sh TRAIN_GPT RAVENSTORED RAVENCTL
set -euo pipefail
train_gpt=$1 ravenstored=$2 ravenctl=$3
export OMP_WAIT_POLICY=passive

folder=$(mktemp -d /tmp/rvgpt.XXXX) # short: a socket's path has 108 bytes
daemon=""
stop() {
  if [[ -n $daemon ]] && kill "$daemon" 2>/dev/null; then wait "$daemon" || true; fi
  rm -rf "$folder"
}
trap stop EXIT
fail() {
  echo "FAILED: $*"
  for log in "$folder"/*.log "$folder"/out; do [[ -e $log ]] && sed "s|^|${log##*/}: |" "$log"; done
  exit 1
}

code=0
"$train_gpt" --steps 1 --device cpu --socket "$folder/none" >"$folder/out" 2>&1 || code=$?
((code == 2)) || fail "without a daemon it ended with $code, not 2"
grep -q "Is the daemon running?" "$folder/out" || fail "it does not say how to start a daemon"

"$ravenstored" --backend host --socket "$folder/s" >"$folder/daemon.log" 2>&1 &
daemon=$!
deadline=$((SECONDS + 30))
until "$ravenctl" --socket "$folder/s" status >/dev/null 2>&1; do
  kill -0 "$daemon" 2>/dev/null || fail "the daemon ended"
  ((SECONDS < deadline)) || fail "the daemon does not answer"
  sleep 0.05
done

"$train_gpt" --demo --steps 2 --device cpu --socket "$folder/s" --json \
  >"$folder/out" 2>"$folder/train_gpt.log" || fail "the story ended with $?"
python3 - "$folder/out" <<'CHECK' || fail "the story is not as told"
import json
import sys

runs = [json.loads(line) for line in open(sys.argv[1], encoding="utf-8")]
by_name = {run["run"]: run for run in runs}
plain, limited = by_name["plain"], by_name["plain, limited"]
assert plain["finished"] and len(plain["losses"]) == 2, plain
assert limited["out_of_memory"] and limited["failed_step"] == 1, limited
stores = [run for run in runs if run["run"].startswith("store")]
assert [run["run"] for run in stores] == ["store 25%, limited", "store 50%", "store 100%"], by_name
for run in stores:
    assert run["finished"] and run["same_bits_as_plain"], run
    assert run["device"] == "simulated device", run
    assert run["store_peak_bytes"] <= run["device_budget"], run
    assert run["gets"] > 0, run
rescued = stores[0]
assert rescued["peak_device_bytes"] <= rescued["device_limit"], rescued
assert rescued["device_limit"] == limited["device_limit"] < plain["peak_device_bytes"], rescued
assert rescued["bytes_out"] > 0 and rescued["bytes_in"] > 0, rescued
CHECK
echo "the story is as told"
