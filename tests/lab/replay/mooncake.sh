#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# The chat trace. With room for everything the hit rate is the ideal one of its publication, less
# the last page of fully cached prompts. In little room no page is ever wrong.
. "$(dirname "$0")/lib.sh"

file=$(data mooncake_conversation.jsonl.gz) || exit $?
replay --format mooncake "$file" --requests 1500 --lockstep --pages 400000 --page-bytes 8
sound
is evictions 0
is refused 0
is hit_positions "$(field simulated_shared_hit_positions)"
replay --format mooncake "$file" --requests 1500 --pages 3000 --concurrency 3
sound
above evictions 0
# The whole hour: 37.36 %, published as 37.4 %, with room for everything. Little will do by prefix.
"$kvtlab" analyze "$file" --json --quiet >"$work/json" || die "kvtlab analyze ended with $?"
[ "$(field hit_rate | cut -c 1-5)" = 0.373 ] || die "another hit rate"
[ "$(field need_pages)" -gt $((500 * $(field ordered_need_pages))) ] || die "other sizes"
echo ok
