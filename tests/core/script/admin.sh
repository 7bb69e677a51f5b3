#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# The commands of kvtctl against a live daemon, and the script tool driven line by line through
# pipes: each answer comes before the next line is written.
set -u
kvtctl=$O/kvtctl
kvtlab=$O/kvtlab
failed=0

fail() {
	echo "admin.sh:${BASH_LINENO[1]}: $*"
	failed=1
}

expect() { # status regex command...
	local want=$1 regex=$2 output status
	shift 2
	output=$("$@" 2>&1)
	status=$?
	[ $status = "$want" ] || fail "$* ended with $status, expected $want: $output"
	grep -qE -- "$regex" <<<"$output" || fail "$* said, without '$regex': $output"
}

json() { # command...: one line that is JSON, checked by the available parser
	local output
	output=$("$@") || fail "$* ended with $?"
	[ "$(wc -l <<<"$output")" = 1 ] || fail "$* printed more than one line"
	"$O/tests/core/script/run" --json <<<"$output" || fail "$*: no JSON: $output"
}

json_lines() { # file: each line is JSON
	local line
	while IFS= read -r line; do
		"$O/tests/core/script/run" --json <<<"$line" || fail "$1: no JSON: $line"
	done <"$1"
}

# ---- usage, and no daemon
expect 2 "usage: kvtctl" "$kvtctl"
expect 0 "usage: kvtctl" "$kvtctl" --help
expect 0 "^kvtctl [0-9]" "$kvtctl" --version
expect 2 "no command 'dance'" "$kvtctl" dance
expect 3 "kvtctl: .*/nowhere" "$kvtctl" --socket /nowhere/at.all status
expect 3 "kvtlab script: " "$kvtctl" --socket /nowhere/at.all script - </dev/null
expect 2 "cannot open /nowhere" "$kvtlab" script /nowhere
expect 2 "cannot read the script: Is a directory" "$kvtlab" script --daemon page_bytes=64 /
expect 2 "no FILE" "$kvtlab" script
# Without a daemon of its own it is refused, whatever the shell's variable names.
expect 2 "no daemon: let the first line be '#daemon " \
	env KVTRUNK_SOCKET=/nowhere/at.all "$kvtlab" script - <<<"a open"
expect 0 '"op":"open".*"ok":true.*"page_size":3' env KVTRUNK_SOCKET=/nowhere/at.all \
	"$kvtlab" script - <<<$'#daemon page_size=3 n_pages=9\na open'
expect 2 "no_such_option" "$kvtlab" script --daemon no_such_option=1 - </dev/null

# ---- line by line
options="drain_ms=0 page_size=4 n_pages=64 page_bytes=64 hugepages=no test_clock=yes"
coproc script { exec "$kvtlab" script --daemon "$options" -; }
script_pid=$script_PID
exec 3>&"${script[1]}" 4<&"${script[0]}"
eval "exec ${script[1]}>&- ${script[0]}<&-"
say() { # line regex: write the line, read its answer
	local answer
	echo "$1" >&3
	IFS= read -r answer <&4 || fail "no answer to: $1"
	grep -qE -- "$2" <<<"$answer" || fail "$1 was answered, without '$2': $answer"
	last=$answer
}
say "a open" '"op":"open".*"socket":"'
socket=$(sed 's/.*"socket":"\([^"]*\)".*/\1/' <<<"$last")
export KVTRUNK_SOCKET=$socket
say "echo a marker" '^a marker$'
say "a s=begin ns=blue keys=1..10 extra=4" '"pages":\[1,2,3,4\]'
say "a commit lease=s computed=10" '"sealed":2'
say "a t=begin ns=blue keys=1..8,20..27 extra=0" '"matched":8'
say "b open" '"session_id":2'
say "b x=alloc n=3" '"private":[0-9]+'
say "b drop" '"quarantined":3'

# ---- look
expect 0 "quarantined +3 " "$kvtctl" status
expect 0 "^ +1 open .* 2 leases?|^ +1 open" "$kvtctl" clients
expect 0 "2 dead .*its process lives on" "$kvtctl" clients
expect 0 " blue .* 2 " "$kvtctl" namespaces
expect 0 "namespace 1 \"blue\": 2 pages cached" "$kvtctl" tree
expect 0 "0\.\.8  2 pages  keys 1 2 3 4 …  locks 2  uses 1" "$kvtctl" tree
expect 0 "8\.\.16  2 pages \(2 announced\)  keys 20 21 22 23" "$kvtctl" tree
expect 0 "and 1 more node " "$kvtctl" tree --depth 1
expect 1 "no namespace is labelled 'red'" "$kvtctl" tree --namespace red
expect 2 "usage: kvtctl .*tree" "$kvtctl" tree --depth deep
expect 0 "page 1: cached at position 0 of node" "$kvtctl" page 1
expect 0 "page 0: scratch" "$kvtctl" page 0
expect 0 "page 3: private of session 1, lease 1" "$kvtctl" page 3
expect 0 "page 63: free" "$kvtctl" page 63
expect 1 "no such page" "$kvtctl" page 64
expect 2 "usage" "$kvtctl" page
expect 0 "^clean; no client was served for" "$kvtctl" audit
for command in status clients namespaces tree "page 1" audit; do
	# shellcheck disable=SC2086
	json "$kvtctl" $command --json
done

# ---- what is cached, now and from now on
feed=$(mktemp -d /tmp/kvt-feed-XXXXXX)
trap 'rm -rf "$feed"' EXIT
expect 0 "^0 namespace 1 [0-9a-f]{32}$" "$kvtctl" feed --snapshot
expect 0 "^0 stored 1-2 first of namespace 1$" "$kvtctl" feed --snapshot
expect 2 "unexpected word 'now'" "$kvtctl" feed now
expect 2 "did you mean '--snapshot'" "$kvtctl" feed --snapshto
expect 3 "/nowhere" "$kvtctl" --socket /nowhere/at.all feed
"$kvtctl" feed --snapshot --json >"$feed/snapshot" || fail "feed --snapshot --json ended with $?"
json_lines "$feed/snapshot"
expect 0 '"pages":\[1,2\],"keys":\[1,2,3,4,5,6,7,8\]' cat "$feed/snapshot"
"$kvtctl" feed >"$feed/lines" 2>&1 &
feed_pid=$!
"$kvtctl" feed --json >"$feed/json" 2>"$feed/end" &
json_pid=$!
listens() { # pid: it has the feed, and sleeps until there are records
	grep -q kvtrunk-feed "/proc/$1/maps" && grep -q '^State:.S' "/proc/$1/status"
}
for pid in "$feed_pid" "$json_pid"; do
	until listens "$pid"; do kill -0 "$pid" || break; done
done

# ---- change
quarantined=$("$kvtctl" clients --json | sed 's/.*"session":\([0-9]*\),"state":"dead".*/\1/')
expect 1 "the session is alive" "$kvtctl" fence 1
expect 1 "no such session" "$kvtctl" fence 200
expect 0 "declared quiet" "$kvtctl" fence "$quarantined"
say "a nop" '"quarantined":0'
say "a end lease=t" '"ok":true'
expect 0 "evicted 0 pages" "$kvtctl" evict 10
say "a end lease=s" '"evictable":2'
expect 0 '"evicted":1' "$kvtctl" --json evict 1
expect 0 "0 subtrees" "$kvtctl" remove blue --keys 7..14
expect 0 "1 subtrees" "$kvtctl" remove blue --keys 1..4
expect 2 "namespace: 'a/b/c'" "$kvtctl" remove a/b/c
expect 2 "keys: '1-4'" "$kvtctl" remove blue --keys 1-4
expect 1 "no namespace is labelled" "$kvtctl" remove unheard-of
say "a s=begin ns=blue keys=1..4" '"matched":0'
say "a end lease=s computed=4" '"sealed":1'
expect 2 "keys is empty; --all" "$kvtctl" remove blue --keys ''
expect 2 "no namespace and no keys; --all" "$kvtctl" remove ''
expect 2 "usage" "$kvtctl" remove blue --all --keys 1..4
say "a match ns=blue keys=1..4" '"matched":4'
expect 0 "1 subtrees" "$kvtctl" remove --all blue
expect 1 "no namespace is labelled ''" "$kvtctl" remove '' --all
say "a s=begin ns=blue root=7 keys=1..4" '"matched":0'
say "a end lease=s computed=4" '"sealed":1'
expect 0 "root key 7  keys 1 2 3 4" "$kvtctl" tree
expect 0 '"sealer":[1-9]' "$kvtctl" tree --json
expect 0 '"root_key":7' "$kvtctl" tree --json
expect 2 "usage" "$kvtctl" remove blue --root-key 7
expect 2 "takes a number" "$kvtctl" remove blue --keys 1..4 --root-key x
expect 0 "0 subtrees" "$kvtctl" remove blue --keys 1..4
expect 0 "1 subtrees" "$kvtctl" remove blue --keys 1..4 --root-key 7
say "a s=begin ns=blue keys=1..8" '"matched":0'
say "a end lease=s computed=8" '"cached":2'
expect 0 "matches any more" "$kvtctl" reset
say "a match ns=blue keys=1..8" '"matched":0'
json "$kvtctl" reset --json
expect 0 "nothing is cached" "$kvtctl" tree
for keys in 1..4 50..53 50..54; do
	say "a s=begin ns=blue keys=$keys" '"lease"'
	say "a end lease=s computed=4" '"ok":true'
done
[ "$("$kvtctl" tree | grep -oE 'keys [0-9]+' | paste -sd ,)" = "keys 50,keys 1" ] ||
	fail "the most used run is not the first: $("$kvtctl" tree)"
say "nonsense" '"error":"EPARSE"'

first="first of namespace 1"
for line in "removed 2" "removed 1" "stored [0-9]+ $first" \
	"stored [0-9]+ $first under root key 7" "cleared epoch 2"; do
	until grep -qE "^[0-9]+ $line$" "$feed/lines"; do kill -0 "$feed_pid" || break; done
	expect 0 "^[0-9]+ $line$" cat "$feed/lines"
done
kill -INT "$feed_pid"
wait "$feed_pid" || fail "feed ended with $? when it was interrupted: $(<"$feed/lines")"

# ---- the daemon goes away: every line is still answered
daemon=$("$kvtctl" --json status | sed 's/.*"daemon_pid":\([0-9]*\).*/\1/')
kill -TERM "$daemon"
until grep -qs '^State:.Z' "/proc/$daemon/status" || [ ! -e "/proc/$daemon" ]; do :; done
say "a match keys=1..4" '"ok":false,"error":"ECONNRESET"'
say "c open" '"ok":false'
expect 3 "kvtctl: " "$kvtctl" status
wait "$json_pid"
[ $? = 3 ] || fail "feed did not end with its daemon: $(<"$feed/end")"
expect 0 "^kvtctl feed: .*the daemon" cat "$feed/end"
json_lines "$feed/json"
expect 0 '"type":"cleared","seq":[0-9]*,"epoch":2' cat "$feed/json"
exec 3>&- 4<&-
wait "$script_pid"
[ $? = 1 ] || fail "the script tool did not end with 1"
exit $failed
