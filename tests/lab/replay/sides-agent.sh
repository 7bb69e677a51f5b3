#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# The beginning of the agent trace for a model with a window of two pages, under eviction: points
# keep most of what full attention would reuse, side pages everywhere displace it.
. "$(dirname "$0")/lib.sh"

file=$(data agent_sessions.jsonl.gz) || exit $?
# rate NAME OPTION...: sets NAME to the hit rate in per cent.
rate() {
	local name=$1
	shift
	replay "$file" --context 131072 --requests 1200 --pages 8193 --page-bytes 64 --lockstep \
		--no-private "$@"
	sound
	is requests_without_point 0
	printf -v "$name" %s "$(awk "BEGIN { print 100 * $(field hit_rate) }")"
}

rate full
above evictions 0
rate points --sides 2
rate often --sides 2 --points-every 4096
rate everywhere --sides 2 --points-all
echo "full $full, points $points, every 4,096 $often, everywhere $everywhere"
awk "BEGIN { exit !($full > $often && $often > $points && $points > $everywhere + 10) }" ||
	die "points do not pay"
awk "BEGIN { exit !($full - $often < 3) }" || die "points every 4,096 cost more than 3 points"
echo ok
