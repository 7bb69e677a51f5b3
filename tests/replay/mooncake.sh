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
echo ok
