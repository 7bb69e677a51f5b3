#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Workers are killed in the middle of requests, under eviction: the others continue, nothing is
# lost, and the oracle reproduces the daemon's log exactly.
. "$(dirname "$0")/lib.sh"

for seed in 1 2 3; do
	replay --format generate --seed $seed --sessions 24 --requests 500 --pages 4000 \
		--workers 5 --concurrency 2 --kill 3 --log "$work/log"
	sound
	is requests 500
	is workers_lost 3
	above evictions 0
	"$kvtlab" verify "$work/log" || die "the oracle disagrees"
	rm -f "$work/log"
done
echo ok
