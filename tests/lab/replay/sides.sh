#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Workers that publish points: what they reuse can be counted by hand; no side page is ever wrong;
# the model agrees with every operation.
. "$(dirname "$0")/lib.sh"

# Four requests, pages of 8: a prompt of 5 pages, one that continues it, two that leave it after 3.
cat >"$work/t" <<'END'
{"keys": [[1, 40]]}
{"keys": [[1, 40], [100, 12]]}
{"keys": [[1, 24], [200, 12]]}
{"keys": [[1, 24], [300, 12]]}
END
small=(--format jsonl "$work/t" --page-size 8 --pages 200 --lockstep --workers 2)

replay "${small[@]}" --sides 1
sound
is matched_positions $((40 + 24 + 24))
is hit_positions $((40 + 0 + 24)) # the third finds no point, and makes one for the fourth
is side_pages 5                   # four ends and the junction
replay "${small[@]}" --sides 1 --points-every 16
is hit_positions $((40 + 16 + 24))
replay "${small[@]}" --sides 1 --points-all
is hit_positions $((40 + 24 + 24))
is side_pages $((5 + 1 + 1 + 1))
replay "${small[@]}" --sides 3,1
is hit_positions $((40 + 0 + 24))
# At the junction the third's page has a side page of the first kind: the first left it.
is side_pages $(((3 + 1) + (1 + 1) + (2 + 1) + (1 + 1) + (1 + 1)))
replay "${small[@]}" --sides 1 --disabled
is hit_positions 0
is side_pages 0

# The second takes the place of the first's point: three of its side pages are of no more use.
printf '{"keys": [[1, 40]]}\n{"keys": [[1, 48]]}\n{"keys": [[1, 40], [100, 9]]}\n' >"$work/t"
replay "${small[@]}" --sides 1,1,1
is hit_positions $((40 + 40))
replay "${small[@]}" --sides 1,1,1 --points-drop
is hit_positions 40
is side_pages $((3 + 3 + 3)) # the junction's point, and two ends

# Under eviction and kills, with several requests at a time.
for sides in 2 1,1,3 40,1; do
	replay --format generate --seed 4 --sessions 16 --requests 200 --pages 3000 --sides $sides \
		--concurrency 3 --kill 1 --points-every 1024 --points-drop --log "$work/log"
	sound
	above hit_positions 0
	above side_pages 0
	above evictions 0
	"$kvtlab" verify "$work/log" >"$work/verified" || die "$(cat "$work/verified")"
	rm "$work/log"
done
# No room for the side pages of a prompt: it is computed, and leaves no point.
replay --format generate --seed 4 --sessions 2 --requests 20 --pages 700 --sides 1,1,1,1,1,1,1,1 \
	--points-all --lockstep
sound
above requests_without_point 0
echo ok
