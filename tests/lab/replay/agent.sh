#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# The beginning of the agent trace, under eviction, in lockstep: exactly the simulated figures, and
# far above private pools of the same total size.
. "$(dirname "$0")/lib.sh"

file=$(data agent_sessions.jsonl.gz) || exit $?
replay --format agent "$file" --requests 1200 --lockstep
sound
is requests 1200
is hit_positions "$(field simulated_shared_hit_positions)"
is evictions "$(field simulated_shared_evictions)"
above evictions 0
awk "BEGIN { exit !($(field hit_rate) > $(field private_sticky_hit_rate) &&
	$(field private_sticky_hit_rate) > $(field private_rr_hit_rate)) }" ||
	die "sharing does not pay"
above nodes_per_path_p99 0
awk "BEGIN { exit !($(field nodes_per_path_p99) <= 16) }" || die "paths have too many nodes"
echo ok
