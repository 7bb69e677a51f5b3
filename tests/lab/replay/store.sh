#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# The agent trace on a sixteenth of the memory, with a store that has the rest, in lockstep: as many
# hits as a pool of all, and next to nothing computed that the store has. $1: requests. $2: the
# option sides. Then prompts are computed again up to where others part: a load brings one point.
. "$(dirname "$0")/lib.sh"

file=$(data agent_sessions.jsonl.gz) || exit $?
all=$((4 << 20)) few=$((1 << 18))
agent() { # positions of the pool, then options
	replay --format agent "$file" --requests "$requests" --context 250000 --lockstep \
		--no-private --pages $(($1 / 64 + 1)) ${sides:+--sides "$sides"} "${@:2}"
}
requests=${1:-300} sides=${2:-}
agent $all
sound
wanted=$(field hit_rate)
agent $few
sound
echo "hit rate: $wanted with $all positions, $(field hit_rate) with $few"
agent $few --store $((all / 64))
sound
above evictions 1000
above loaded_pages 1000
echo "$(field hit_rate) with $few and a store of $all; computed again:" \
	"$(field recomputed_pages) pages, loaded: $(field loaded_pages)"
awk "BEGIN { exit !($(field hit_rate) > $wanted - 0.02) }" || die "a store does not pay"
awk "BEGIN { exit !($(field recomputed_pages) < ${sides:+2.5 *} 0.02 * $(field loaded_pages)) }" ||
	die "what the store has is computed again"
echo ok
