#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# One request at a time through real processes gives exactly the figures of a page cache with
# per-page LRU: hits, evictions and refusals.
. "$(dirname "$0")/lib.sh"

exact() {
	replay "$@" --lockstep
	sound
	is hit_positions "$(field simulated_shared_hit_positions)"
	is evictions "$(field simulated_shared_evictions)"
	is refused "$(field simulated_shared_refused)"
	above hit_positions 0
	above evictions 0
}

for page_size in 7 64 544; do
	exact --format generate --seed 1 --sessions 24 --users 8 --requests 500 --workers 3 \
		--page-size $page_size --pages $((400000 / page_size))
done
# So small that some requests are refused.
exact --format generate --seed 2 --sessions 24 --users 8 --requests 500 --workers 3 --pages 1000
above refused 0
exact --format generate --seed 3 --requests 400 --pages 3000 --namespaces 3
echo ok
