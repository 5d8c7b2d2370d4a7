#!/bin/sh
# libravenstore.so shows nothing but its C ABI, and needs nothing but the C library and libgcc_s.
set -eu
library="$1"
fail() { echo "FAILED: $*" >&2; exit 1; }

exported=$(nm -D --defined-only "$library" | awk '{ print $3 }')
[ -n "$exported" ] || fail "it exports nothing"
strange=$(echo "$exported" | grep -v '^ravenstore_' || true)
[ -z "$strange" ] || fail "it exports $strange"
promised=$(tr '\n' ' ' < "$2" | grep -o 'RAVENSTORE_API [^;]*;' | grep -o 'ravenstore_[a-z_]*(' | tr -d '(' | sort -u)
[ "$(echo "$promised" | wc -l)" -gt 20 ] || fail "the header was not understood"
for symbol in $promised; do
  echo "$exported" | grep -qx "$symbol" || fail "$symbol of the header is missing"
done
# What its comments name is in it, too: codes, flags, functions. Variables have a dollar.
words=$(grep -oE '(^|[^[:alpha:]_$])(RAVENSTORE_[A-Z_]*[A-Z]|ravenstore_[a-z_]*\()' "$2" |
    grep -oE '(RAVENSTORE|ravenstore)_[A-Za-z_]*' | sort -u)
[ "$(echo "$words" | wc -l)" -gt 40 ] || fail "the header's words were not understood"
for word in $words; do
  grep -qE "^ *$word( =|,|\$)|^ *#define $word|ifndef $word" "$2" ||
    echo "$promised" | grep -qx "$word" ||
    fail "the header names $word and has no such thing"
done
needed=$(readelf -d "$library" | sed -n 's/.*(NEEDED).*\[\(.*\)\]/\1/p')
case "$needed" in
  *libasan*|*libtsan*|*libubsan*)
    echo "skipped: a sanitizer's build is not what ships"
    exit 0
    ;;
esac
for name in $needed; do
  case "$name" in
    libc.so.*|libm.so.*|libpthread.so.*|libdl.so.*|librt.so.*|libgcc_s.so.*|ld-linux*) ;;
    *) fail "it needs $name" ;;
  esac
done
readelf -d "$library" | grep -q 'SONAME.*\[libravenstore.so\]' || fail "it has no SONAME"
undefined=$(nm -D --undefined-only "$library" | grep -c protobuf || true)
[ "$undefined" = 0 ] || fail "it asks others for protobuf symbols"
echo "exports: $(echo "$exported" | wc -l), needs: $(echo "$needed" | tr '\n' ' ')"
