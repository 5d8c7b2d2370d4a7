#!/bin/sh
# A resident get and put make no system call: strace sees none between the two markers of
# resident_pairs.
set -eu
pairs=200000
trace="${TEST_TMPDIR:-/tmp}/trace"
# Without a test.xml that says so it would count as passed.
skip() {
  echo "skipped: $1"
  [ -z "${XML_OUTPUT_FILE:-}" ] || printf '%s%s%s\n' '<testsuites><testsuite><testcase name="no_syscalls">' \
    "<skipped message=\"$1\"/>" '</testcase></testsuite></testsuites>' > "$XML_OUTPUT_FILE"
  exit 0
}
command -v strace > /dev/null || skip "there is no strace here"
strace -o "$trace" true 2> /dev/null || skip "this place does not let strace trace"
# A leak checker cannot work while the process is traced.
export ASAN_OPTIONS="detect_leaks=0"
# Without -f: only the thread that gets and puts.
strace -o "$trace" "$1" "$pairs"
markers=$(grep -c '^getppid(' "$trace")
[ "$markers" = 2 ] || { echo "FAILED: $markers markers instead of 2"; exit 1; }
between=$(sed -n '/^getppid(/,/^getppid(/p' "$trace" | grep -cv '^getppid(' || true)
if [ "$between" != 0 ]; then
  echo "FAILED: $between system calls in $pairs pairs:"
  sed -n '/^getppid(/,/^getppid(/p' "$trace" | head -20
  exit 1
fi
echo "no system call in $pairs pairs"
