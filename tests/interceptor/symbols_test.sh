#!/bin/sh
# The interceptor shows exactly the hooks of its table, and needs nothing but the C library.
set -eu
library="$1"
table="$2"
fail() { echo "FAILED: $*" >&2; exit 1; }

hooks=$(sed -n 's/^HOOK\(_ELASTIC\)\?([^,]*, "[^"]*", \([A-Za-z0-9_]*\),.*/\2/p' "$table" | sort)
[ "$(echo "$hooks" | wc -l)" -gt 50 ] || fail "the table was not understood"
exported=$(nm -D --defined-only "$library" | awk '$2 ~ /^[A-Z]$/ { print $3 }' | sort)
[ "$hooks" = "$exported" ] || fail "exports and table differ:
$(printf '%s\n' "$hooks" "$exported" | sort | uniq -u)"
needed=$(readelf -d "$library" | sed -n 's/.*(NEEDED).*\[\(.*\)\]/\1/p')
for name in $needed; do
  case "$name" in
    libc.so.*|libpthread.so.*|libdl.so.*|ld-linux*) ;;
    *) fail "it needs $name" ;;
  esac
done
strange=$(nm -D --undefined-only "$library" | grep -E '_Z|__cxa_(throw|begin|allocate)|protobuf|spdlog|torch|malloc|exit' || true)
[ -z "$strange" ] || fail "it asks for $strange"
echo "exports: $(echo "$exported" | wc -l), needs: $needed"
