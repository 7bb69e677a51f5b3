#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Four instances, and requests in turns over them. Without a store each has its own pool, as the
# simulation says. With the same memory in all, one store finds what four find, and much more.
. "$(dirname "$0")/lib.sh"

host() { # options
	replay --format generate --seed 3 --sessions 24 --users 12 --requests 240 --context 16384 \
		--lockstep --instances 4 --page-size 32 --pages 769 "$@"
	sound
	is refused 0
}
host
is hit_rate "$(field private_rr_hit_rate)"
none=$(field hit_rate)
host --store 8192 --private-stores
each=$(field hit_rate)
host --store 8192
echo "hit rate: $none without a store, $each with a store each, $(field hit_rate) with one"
above hit_rate "$each + 0.15"
awk "BEGIN { exit !($each > $none + 0.05) }" || die "a store each finds nothing"
"$kvtlab" replay --format generate --instances 3 2>"$work/said"
grep -q "workers 4 cannot be spread evenly over --instances 3" "$work/said" ||
	die "$(cat "$work/said")"
echo ok
