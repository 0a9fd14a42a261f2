#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# F4 and F6 in the emulated cluster of lab/lab: each node in a network namespace with an address and a line rate of its
# own. Needs root and iproute2, else it says so and is skipped (exit status 77).
#
#   lab_test.sh LAB SHOAL
set -euo pipefail

lab=$1 shoal=$2
export LAB_PREFIX=shoal-it-$$
work=
failures=0

skip() { echo "SKIPPED: $*"; exit 77; }

cleanup() {
    "$lab" down >/dev/null 2>&1 || true    # ends what still runs in the namespaces, too
    [[ -z $work ]] || rm -rf "$work"
}
trap cleanup EXIT
trap 'exit 143' TERM INT

[[ $(id -u) == 0 ]] || skip "network namespaces need root"
for tool in ip tc bridge; do
    command -v "$tool" >/dev/null || skip "no $tool (iproute2)"
done
work=$(mktemp -d "${TMPDIR:-/tmp}/shoal-lab-XXXXXX")
"$lab" up 4 400mbit >"$work/lab.log" 2>&1 || skip "cannot build the lab here: $(tail -n 1 "$work/lab.log")"

export SHOAL_METADATA=sqlite:$work/meta.db
payload=$work/payload
head -c 20000000 /dev/urandom >"$payload"

# node I ARGS...: the shoal command in node I of the lab.
node() {
    local i=$1
    shift
    "$lab" exec "$i" "$shoal" "$@"
}

# Waits for CMD to succeed.
until_true() {
    local left=600
    until "$@"; do
        ((left-- > 0)) || { echo "FAILED: never came true: $*"; cat "$work"/*.log; exit 1; }
        sleep 0.1
    done
}

has_event() { grep -q "\"event\":\"$1\"" "$2"; }

check() {
    if "${@:2}"; then
        echo "ok: $1"
    else
        echo "FAILED: $1"
        failures=$((failures + 1))
    fi
}

# seed I NAME, replicate I NAME: background nodes, up when they say so.
seed() {
    node "$1" seed "$2" "$payload" --name "10.77.0.$1:0" --json >"$work/seed$1-$2.log" 2>&1 &
    until_true has_event seeding "$work/seed$1-$2.log"
}

replicate() {
    node "$1" get "$2" "$work/replica$1" --name "10.77.0.$1:0" --seed --json >"$work/replica$1.log" 2>&1 &
    until_true has_event result "$work/replica$1.log"
}

get() {
    node "$1" get "$2" "$work/$3" --name "10.77.0.$1:0" --timeout 100s --json >"$work/$3.log" 2>&1 &&
        cmp "$payload" "$work/$3/payload"
}

sources_have() { node 4 stat "$1" --json --name 10.77.0.4:0 | grep -q "\"address\":\"$2:"; }

echo "F6: another device comes first in node 1"
ip -n "$LAB_PREFIX-1" link add aaa0 type bridge
ip -n "$LAB_PREFIX-1" addr add 192.0.2.1/24 dev aaa0
ip -n "$LAB_PREFIX-1" link set aaa0 up
seed 1 model
check "the configured address is advertised" sources_have model 10.77.0.1
check "it is reached from another node" get 3 model first

echo "F4: a source whose packets are dropped"
replicate 2 model
check "two sources are listed" sources_have model 10.77.0.2
"$lab" cut 2
check "a pull completes from the other one" get 3 model second
"$lab" heal 2

echo "F4: a source that is cut off in the middle of a pull"
until_true sources_have model 10.77.0.2
"$lab" rate 1 60mbit
"$lab" rate 2 60mbit
get 3 model third &
pull=$!
until_true has_event progress "$work/third.log"
"$lab" cut 2
"$lab" rate 1 400mbit
if wait "$pull"; then check "the pull completes" true; else check "the pull completes" false; fi
"$lab" heal 2

echo "F4: nobody can be reached"
"$lab" cut 1
"$lab" cut 2
status=0
node 3 get model "$work/none" --name 10.77.0.3:0 --timeout 15s --json >"$work/none.log" 2>&1 || status=$?
check "the pull fails in time with an error (exit status $status)" test "$status" -ne 0 -a "$status" -lt 128
check "no file is left behind" test ! -e "$work/none/payload"

[[ $failures == 0 ]] || { tail -n 5 "$work"/*.log; exit 1; }
