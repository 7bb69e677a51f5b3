#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# tools/demo.sh: the whole of kvtrunk in a minute. A daemon of its own in a temporary directory,
# four worker processes that replay agent sessions through it, one of them killed on the way, then
# the tree, the audit and the check of the operation log against the model. Then a second daemon
# under four processes that run a small real model on one shared prompt, their answers checked.
#
# The sessions are real ones where ../shared/data (or KVT_DATA) has them, else generated ones of
# the same shape. DEMO_REQUESTS sets how many requests (2000).
set -u
cd "$(dirname "$0")/.." || exit 1
O=$(realpath "${O:-build}")
dir=$(mktemp -d /tmp/kvtrunk-demo-XXXXXX) || exit 1
socket=$dir/demo.sock
requests=${DEMO_REQUESTS:-2000}
daemon=""

finish() {
	[ -z "$daemon" ] || kill -9 "$daemon" 2>/dev/null
	rm -rf "$dir"
}
trap finish EXIT

say() { printf '\n--- %s\n' "$*"; }

fail() {
	printf '\ndemo: FAILED: %s\n' "$*"
	[ ! -s "$dir/daemon.log" ] || tail -n 20 "$dir/daemon.log" | sed 's/^/  daemon: /'
	exit 1
}

ctl() { "$O/kvtctl" --socket "$socket" "$@"; }

start() { # the daemon, with these flags
	"$O/kvtrunkd" --instance="demo-$$" --runtime_dir="$dir" --socket_path="$socket" "$@" \
		>"$dir/daemon.log" 2>&1 &
	daemon=$!
	until ctl status >/dev/null 2>&1; do
		kill -0 "$daemon" 2>/dev/null || { daemon=""; fail "the daemon did not start"; }
	done
	sed -n 's/^[^ ]* level=[a-z]* event=\(memory\|loop\|ready\)/\1:/p' "$dir/daemon.log"
}

stop() { # in order, leaving nothing
	local left
	kill -TERM "$daemon"
	wait "$daemon" || { daemon=""; fail "the daemon did not end with 0"; }
	daemon=""
	left=$(ls /dev/shm | grep "\.demo-$$\."; ls "$dir" | grep '\.sock$\|\.lock\.d$')
	[ -z "$left" ] || fail "left behind: $left"
	echo "nothing left in /dev/shm nor in $dir"
}

say "a daemon for the smallest worker, which runs twice (examples/hello.c, the README's)"
start --n_layers=2 --n_kv_heads=2 --head_dim=64 --n_pages=64
first=$(KVTRUNK_SOCKET=$socket "$O/hello") || fail "hello: $first"
second=$(KVTRUNK_SOCKET=$socket "$O/hello") || fail "hello: $second"
printf '%s\n%s\n' "first:  $first" "second: $second"
[ "$first" != "$second" ] || fail "the second worker found nothing"
stop

say "a daemon: 16,383 pages of 64 positions, about 1 million positions"
start --page_size=64 --page_bytes=512 --n_pages=16384 --max_private_pages=0 \
	--log_file="$dir/operations"

agent=${KVT_DATA:-../shared/data}/agent_sessions.jsonl.gz
if [ -r "$agent" ]; then
	say "$requests requests of real coding-agent sessions, 4 workers, one will be killed"
	trace=(--format agent "$agent")
else
	say "$requests requests of generated agent sessions, 4 workers, one will be killed"
	trace=(--format generate)
fi
"$O/kvtlab" replay --socket "$socket" "${trace[@]}" --requests "$requests" \
	--workers 4 --kill 1 || fail "the replay found something wrong"

say "the tree, its most used part"
ctl tree --lines 16 || fail "tree"

say "the audit"
ctl audit || fail "the audit found problems"
ctl --json status | grep -o '"\(private_pages\|quarantined_pages\|private\|quarantined\)":[0-9]*' |
	tr '\n' ' '
echo

say "an orderly end"
stop

say "every operation once more, through the model that shares no code with the daemon"
"$O/kvtlab" verify "$dir/operations" || fail "log and model disagree"

# ---- four processes that run a model
home=examples/worker/model
model="--model $home/prices.bin --tokenizer $home/prices.tok"
prompts=3

price_list() { "$O/prices" --words "$home/words.txt" --lines 128 "$@"; }
prices() { price_list --turns 2 --prompts $prompts "$@"; }
# JSON of all processes -> a member of each line
member() { sed -n "s/.*\"$2\":\(\"[^\"]*\"\|[0-9.]*\).*/\1/p" "$dir/$1".?; }
sum() { awk '{ n += $1 } END { print n }'; }
median() {
	sort -n | awk '{ v[NR] = $1 } END { printf "%.1f ms", v[int((NR + 1) / 2)] / 1000 }'
}

run_workers() { # where their answers go, flags
	local name=$1 i pids=()
	shift
	for i in 1 2 3 4; do
		prices --first $((10 * i)) | "$O/worker" $model --socket "$socket" --prompts - \
			--max-tokens 16 --json "$@" >"$dir/$name.$i" &
		pids+=($!)
	done
	for i in "${pids[@]}"; do
		wait "$i" || fail "a worker that runs the model failed"
	done
}

check_answers() {
	local i
	for i in 1 2 3 4; do
		diff <(prices --first $((10 * i)) --answers) \
			<(sed 's/^{"text":"//; s/\\u000a",.*//' "$dir/$1.$i") ||
			fail "process $i gave a wrong answer (< right, > given)"
	done
}

demo_model() {
	local i
	say "a model: a price list of 128 lines, four processes at once, $prompts questions each"
	price_list --prompts 1 --turns 0 | sed 's/\\n/\n/g' | sed -n '1,4p'
	echo "... (1,028 positions of list in every prompt)"
	# shellcheck disable=SC2046
	start --n_pages=1024 $("$O/worker" $model --geometry)
	run_workers without --no-cache
	run_workers with
	check_answers without
	check_answers with
	for i in 1 2 3 4; do
		prices --first $((10 * i)) | sed 's/.*\\nQ/Q/; s/\\nA:/  A:/' |
			paste -d '\0' - <(sed 's/^{"text":"//; s/\\u000a",.*//' "$dir/with.$i") |
			sed "s/^/process $i: /; s/\$/   (right)/"
	done
	printf '%-28s %16s %16s\n' "" "nothing shared" "with kvtrunk" \
		"time to first token, median" \
		"$(member without ttft_us | median)" "$(member with ttft_us | median)" \
		"prompt positions computed" \
		"$(member without prefilled_positions | sum)" \
		"$(member with prefilled_positions | sum)" \
		"of the cache" 0 "$(member with cached_positions | sum)"
	say "the tree that the four left"
	ctl tree --lines 20 || fail "tree"
	ctl audit || fail "the audit found problems"
	stop
}

if [ -x "$O/worker" ] && "$O/worker" --devices | grep -qw cpu; then
	demo_model
	ran=", and four ran a model on one prompt and gave the right answers"
else
	say "the worker that runs a model is left out: it needs libopenblas-dev"
	ran=""
fi

echo
echo "demo: passed: four processes shared one cache, one was killed, no page was lost$ran"
