#!/bin/sh
# ravensim's command line: what it refuses, in which words, and with which exit code.
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
refuses moe --policy learned --policy hints
"$ravensim" run moe --iterations 1 --html "$page" > /dev/null
[ -s "$page" ] || fail "no page of one run"

# Expects exit code $1 and the words $2, on either stream, of the command after them.
says() {
  code="$1" words="$2"
  shift 2
  status=0
  "$ravensim" "$@" > "$TEST_TMPDIR/said" 2>&1 || status=$?
  [ "$status" = "$code" ] || fail "$*: exit code $status: $(cat "$TEST_TMPDIR/said")"
  grep -q -e "$words" "$TEST_TMPDIR/said" || fail "$* said $(cat "$TEST_TMPDIR/said")"
}
# Wrong usage is 2.
says 2 'no command "bund"; did you mean "bound"?' bund
says 2 'no option "--jsno"; did you mean "--json"?' bound moe --jsno
says 2 'did you mean "hints"?' run moe --policy hinst
says 2 'neither a percentage nor a size' run moe --budget much
says 2 'less than the 2.0 MiB' run moe --budget 0
says 2 '-1 is negative' run moe --seed -1
says 2 'the pool "tape:1GiB:1:1" is of no known kind' run moe --pool tape:1GiB:1:1
says 0 'moe ' run moe --iterations 1 --pool host:1GiB --pool peer:1GiB:390:390 --pool file:64GiB:7:5
says 0 'moe ' run moe --iterations 1 --pool host:1GiB --pool remote:64GiB:10:10:latency=1
says 2 'says "soon"' run moe --pool remote:1GiB:1:1:soon
says 2 'need a policy of the plan' run moe --policy oracle --html "$page"
says 2 'need a policy of the plan' run moe --policy lru --run-ahead creates-block
says 0 'gpt2-small' run gpt2-small --iterations 1 --run-ahead creates-block
says 0 'gpt2-small' run gpt2-small --iterations 1 --page 2MiB
says 2 'is no power of two' run gpt2-small --page 3MiB
says 0 'gdsf' compare gpt2-small --iterations 1
grep -q foreseen "$TEST_TMPDIR/said" || fail "compare leaves policies out"
# The answer in words stands below the table, and what more memory would do; not in JSON.
says 0 '^gpt2-small with .* (60%), hints: [0-9.]* times as long .*; the link is busy .*; [0-9.]* with' \
  run gpt2-small --budget 60%
says 0 '' run moe --iterations 1 --json
! grep -q 'times as long' "$TEST_TMPDIR/said" || fail "words in the JSON"
# What cannot be done is 1.
says 1 '^moe with .* does not run; [0-9.]* with' run moe --iterations 1 --budget 2MiB
says 1 'did you mean "resnet50"?' bound resnet5
printf '\004\010\001\030' > "$TEST_TMPDIR/short"
says 1 'message 0 of the trace: the file ends inside it' bound "$TEST_TMPDIR/short"
# A header of one client; a create of tensor 5 and a get of it, which is in use.
printf '\004\010\001\030\001\004\030\005\040\100\004\010\001\030\005' > "$TEST_TMPDIR/wrong"
says 1 'message 2 of the trace: a get before the put of tensor 5' run "$TEST_TMPDIR/wrong"
# A name that is no UTF-8: nothing but our own words.
printf '\007\010\001\022\001\377\030\001' > "$TEST_TMPDIR/name"
says 1 '^ravensim: CORRUPT' bound "$TEST_TMPDIR/name"
[ "$(wc -l < "$TEST_TMPDIR/said")" = 1 ] || fail "it said $(cat "$TEST_TMPDIR/said")"
says 1 'cannot write' generate moe --iterations 1 -o /nowhere/at/all
# Three computes of 2^48 ns.
long='\012\010\004\050\200\200\200\200\200\200\100'
printf %b "\\004\\010\\001\\030\\001$long$long$long" > "$TEST_TMPDIR/long"
says 1 'message 3 of the trace: its client.s compute times sum' run "$TEST_TMPDIR/long"
# A link so slow that copies take seconds is no deadlock; more than a replay may take fails.
says 0 'gpt2-xl' run gpt2-xl --iterations 1 --up 0.1 --down 0.1
# A bound as a table and as JSON.
says 0 'bound ms' bound moe --iterations 1
says 0 '^{"trace":"moe".*"bound_s":' bound moe --iterations 1 --json
# The oracle's bound is its budget's.
bound_of() {
  "$ravensim" run gpt2-small --policy "$1" --iterations 1 --budget 20% --json | grep -o '"bound_s":[^,]*' | sort -u
}
[ "$(bound_of oracle)" = "$(bound_of hints)" ] || fail "another bound"
[ "$(bound_of oracle)" != '"bound_s":0' ] || fail "a bound of 0"
# The validation set is named, generated and read like the others.
says 0 'llama-7b-lora .* GiB  fine-tuning .*, batch 8, sequence 2048, 16 bit' list
says 0 'rtx4090-pcie4 .* nominal' list
says 0 'policies: hints .* oracle' list
says 1 'did you mean "graphsage"?' bound graphsag
"$ravensim" generate graphsage --iterations 1 -o "$TEST_TMPDIR/graphsage"
says 0 'graphsage' run "$TEST_TMPDIR/graphsage" --budget 120%
"$ravensim" run moe --iterations 1 > /dev/full 2> "$TEST_TMPDIR/said" && fail "a full disk"
grep -q "the output cannot be written" "$TEST_TMPDIR/said" || fail "nothing of the full disk"
