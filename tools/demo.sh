#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# tools/demo.sh: the whole of kvtrunk in a minute. A daemon of its own in a temporary directory,
# four worker processes that replay agent sessions through it, one of them killed on the way, then
# the tree, the audit and the check of the operation log against the model.
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

say "a daemon: 16,383 pages of 64 positions, about 1 million positions"
cat >"$dir/config" <<END
instance = demo-$$
runtime_dir = $dir
socket_path = $socket
page_size = 64
page_bytes = 512
n_pages = 16384
max_private_pages = 0
log_file = $dir/operations
END
"$O/kvtrunkd" --config "$dir/config" >"$dir/daemon.log" 2>&1 &
daemon=$!
until ctl status >/dev/null 2>&1; do
	kill -0 "$daemon" 2>/dev/null || { daemon=""; fail "the daemon did not start"; }
done
sed -n 's/^[^ ]* level=[a-z]* event=\(memory\|loop\|ready\)/\1:/p' "$dir/daemon.log"

say "the smallest worker, twice (examples/hello.c, the README's)"
first=$(KVTRUNK_SOCKET=$socket "$O/hello") || fail "hello: $first"
second=$(KVTRUNK_SOCKET=$socket "$O/hello") || fail "hello: $second"
printf '%s\n%s\n' "first:  $first" "second: $second"
[ "$first" != "$second" ] || fail "the second worker found nothing"
ctl reset >/dev/null || fail "reset"

agent=${KVT_DATA:-../shared/data}/agent_sessions.jsonl.gz
if [ -r "$agent" ]; then
	say "$requests requests of real coding-agent sessions, 4 workers, one will be killed"
	trace=(--format agent "$agent")
else
	say "$requests requests of generated agent sessions, 4 workers, one will be killed"
	trace=(--format generate)
fi
"$O/kvtctl" replay --socket "$socket" "${trace[@]}" --requests "$requests" \
	--workers 4 --kill 1 || fail "the replay found something wrong"

say "the tree, its most used part"
ctl tree --lines 16 || fail "tree"

say "the audit"
ctl audit || fail "the audit found problems"
ctl --json status | grep -o '"\(private_pages\|quarantined_pages\|private\|quarantined\)":[0-9]*' |
	tr '\n' ' '
echo

say "an orderly end"
kill -TERM "$daemon"
wait "$daemon" || { daemon=""; fail "the daemon did not end with 0"; }
daemon=""
left=$(ls /dev/shm "$dir" 2>/dev/null | grep "demo-$$\|\.sock$\|\.lock$")
[ -z "$left" ] || fail "left behind: $left"
echo "nothing left in /dev/shm nor in $dir"

say "every operation once more, through the model that shares no code with the daemon"
"$O/kvtctl" verify "$dir/operations" || fail "log and model disagree"

printf '\ndemo: passed: four processes shared one cache, one was killed, no page was lost\n'
