#!/bin/sh
# ravensim's command line: what it refuses.
set -eu
ravensim="$1"
fail() { echo "FAILED: $*" >&2; exit 1; }

page="$TEST_TMPDIR/page.html"
refuses() {
  status=0
  "$ravensim" run "$@" --iterations 1 --html "$page" 2> "$TEST_TMPDIR/said" || status=$?
  [ "$status" = 2 ] || fail "run $* --html: exit code $status"
  grep -q -e "--html takes one run" "$TEST_TMPDIR/said" || fail "it said $(cat "$TEST_TMPDIR/said")"
  [ ! -e "$page" ] || fail "run $* --html wrote the page"
}
refuses moe zipf
refuses moe --budget 30% --budget 60%
refuses moe --policy lru --policy value
"$ravensim" run moe --iterations 1 --html "$page" > /dev/null
[ -s "$page" ] || fail "no page of one run"
