#!/bin/sh
# A test program with arguments that choose its cases (third_party/full_test.bzl).
exec "$@"
