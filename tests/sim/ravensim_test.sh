#!/bin/sh
# ravensim's command line: what it refuses.
set -eu
ravensim="$1"
fail() { echo "FAILED: $*" >&2; exit 1; }

page="$TEST_TMPDIR/page.html"
for runs in "moe zipf" "moe --budget 30% --budget 60%" "moe --policy lru --policy value"; do
  # Unquoted: several words.
  status=0
  "$ravensim" run $runs --iterations 1 --html "$page" 2> "$TEST_TMPDIR/said" || status=$?
  [ "$status" = 2 ] || fail "run $runs --html: exit code $status"
  grep -q -e "--html takes one run" "$TEST_TMPDIR/said" || fail "it said $(cat "$TEST_TMPDIR/said")"
  [ ! -e "$page" ] || fail "run $runs --html wrote the page"
done
"$ravensim" run moe --iterations 1 --html "$page" > /dev/null
[ -s "$page" ] || fail "no page of one run"
