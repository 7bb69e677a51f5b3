#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Disabled, force-miss, every policy, other formats; the served file; bad options.
. "$(dirname "$0")/lib.sh"

large=(--format generate --seed 4 --sessions 16 --requests 200)
generate=("${large[@]}" --pages 3000)

replay "${generate[@]}" --disabled
sound
is hit_positions 0
is evictions 0

# Two seconds of work on one device, with stderr in a file.
replay "${generate[@]}" --no-private --prefill-rate 150000 --progress 2>"$work/progress"
sound
grep -q '^\[=* *\] [0-9]*/200 requests, [0-9]* s, [0-9]*/s, [0-9]* s left$' "$work/progress" ||
	die "no progress: $(cat "$work/progress")"
grep -q ' 200/200 requests' "$work/progress" || die "the progress does not end"
# Without --progress a file gets a line after two seconds, then every ten, and the end.
from=$SECONDS
replay "${generate[@]:0:6}" --requests 120 --no-private --prefill-rate 150000 2>"$work/progress"
most=$(((SECONDS - from) / 10 + 4))
lines=$(wc -l <"$work/progress")
grep -q ' 120/120 requests' "$work/progress" && [ "$lines" -ge 2 ] && [ "$lines" -le $most ] ||
	die "progress in a file: $(cat "$work/progress")"
# Reading a trace and simulating private pools take long, too, for long traces.
seq 600 | sed 's/.*/{"keys":[&,[1,40]],"output":1}/' >"$work/t"
replay --format jsonl "$work/t" --page-size 8 --progress 2>"$work/progress"
grep -q "^$work/t: [1-9][0-9]* lines read$" "$work/progress" &&
	grep -q '^simulation: [0-9]*/600 requests$' "$work/progress" ||
	die "no progress before or after the requests: $(cat "$work/progress")"
replay --format jsonl "$work/t" --page-size 8 --progress --quiet 2>"$work/progress"
[ ! -s "$work/progress" ] || die "--quiet shows progress: $(cat "$work/progress")"
from=$SECONDS
replay "${generate[@]:0:6}" --requests 5 2>"$work/progress"
[ ! -s "$work/progress" ] || [ $((SECONDS - from)) -ge 2 ] ||
	die "short work shows progress: $(cat "$work/progress")"

replay "${generate[@]}" --force-miss --lockstep
sound
is hit_positions 0
above fallbacks 0
above duplicate_pages 0

for policy in lru slru lfu fifo filo mru priority; do
	replay "${generate[@]}" --policy $policy --no-private
	sound
	above hit_positions 0
done

# Turns of one request begin and end in order, and none is missing.
replay "${generate[@]}" --served "$work/served"
awk '$1 == "B" { if (seen[$2]++) exit 1; open[$2] = 1; n++ }
	$1 == "E" { if (!open[$2]) exit 1; delete open[$2] }
	END { for (i in open) exit 1; exit n != 200 }' "$work/served" || die "served file"
replay "${generate[@]}" --lockstep --served "$work/served"
awk '{ if ($2 != int((NR - 1) / 2) || $1 != (NR % 2 ? "B" : "E")) exit 1 }
	END { exit NR != 400 }' "$work/served" || die "served file in lockstep"
hits=$(awk '$1 == "B" { n += $4 } END { print n }' "$work/served")
is hit_positions "$hits"

printf '{"keys":[[1,100]],"output":3}\n{"keys":[[1,80],7],"output":0}\n{"keys":[]}\n' >"$work/t"
replay --format jsonl "$work/t" --page-size 8 --lockstep --workers 2
sound
is requests 3
is hit_positions 80
replay --format jsonl "$work/t" --page-size 8 --lockstep --served "$work/served"
[ "$(tr '\n' ' ' <"$work/served")" = "B 0 1 0 E 0 1 B 1 2 80 E 1 2 B 2 3 0 E 2 3 " ] ||
	die "$(cat "$work/served")"

# Sub-agents that start together, on one device: BEGINs wait for each other, and the oracle agrees
# that each had to. Positions reused or taken over were not computed.
replay "${large[@]}" --pages 20000 --bursts 6 --workers 8 --prefill-rate 2000000 \
	--coalesce 60000 --no-private --log "$work/log"
sound
above requests 200
above waits 0
above coalesced_positions 0
is computed_positions $(($(field input_positions) - $(field prefill_avoided_positions)))
"$kvtlab" verify "$work/log" >"$work/verified" || die "$(cat "$work/verified")"

# Pages of a daemon with a geometry, in many pieces or in one: patterns stay within their pages.
for order in layer page; do
	"$O/kvtrunkd" --detach --runtime-dir="$work/$order" --n_pages=3000 --n_layers=2 \
		--n_kv_heads=1 --head_dim=8 --kv_order=$order >/dev/null 2>"$work/err" ||
		die "$(cat "$work/err")"
	replay "${generate[@]:0:8}" --socket "$work/$order/default.sock"
	sound
	above hit_positions 0
	kill "$("$kvtctl" --socket "$work/$order/default.sock" pid)"
done

# Each mistake of a user has a sentence and an exit status.
wrong() {
	local expected=$1 status
	shift
	"$kvtlab" replay "$@" >"$work/out" 2>&1
	status=$?
	[ $status = 2 ] || die "replay $*: exit status $status"
	grep -q -e "$expected" "$work/out" || { cat "$work/out"; die "replay $*: no '$expected'"; }
}
wrong "FILE is missing"
wrong "not 'x'" --format x
wrong "FILE is missing" --format agent
wrong "/none/such" --format agent /none/such
wrong "reads no file" --format generate /none/such
printf '{"timestamp":0,"input_length":90,"hash_ids":[4,5,6]}\n' >"$work/blocks"
wrong "3 ids for 90 positions.*--block-size 32 would fit" --format mooncake "$work/blocks"
wrong "traces with block ids" --format jsonl "$work/t" --block-size 32
replay --format mooncake "$work/blocks" --block-size 32 --lockstep
sound
# The format is that of the first object; files with one array, and standard input.
replay "$work/blocks" --block-size 32 --lockstep
sound
is input_positions 90
printf '[{"conversations": [\n{"from": "human", "value": "ask"}, {"from": "gpt", "value": "ok"},
	{"from": "human", "value": "more"}, {"from": "gpt", "value": "end"}]}]\n' >"$work/chat"
replay - --page-size 1 --lockstep <"$work/chat"
sound
is requests 2
is input_positions $((4 + 4 + 3 + 5))
is hit_positions 4
wrong "^mooncake: .*hash_ids" - <"$work/progress"
wrong "leave no worker" --format generate --workers 2 --kill 2
wrong "from 1 to 64, not '65'" --format generate --workers 65
wrong "time-scale" --format generate --time-scale x
wrong "daemons of our own" --format generate --disabled --socket /none/such
# The shell's variable may name the instance in production.
KVTRUNK_SOCKET=/none/such replay --format generate --requests 5
sound
"$kvtlab" replay --format generate --requests 5 --socket "$work/none" >"$work/out" 2>&1
[ $? = 3 ] || die "no daemon: wrong exit status"
echo ok
