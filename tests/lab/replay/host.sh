#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Four instances, and requests in turns over them. Without a store each has its own pool, as the
# simulation says. With the same memory in all, one store finds what four find, and much more.
. "$(dirname "$0")/lib.sh"

host() { # options
	replay --format generate --seed 3 --sessions 24 --users 12 --requests 240 --context 16384 \
		--lockstep --instances 4 --page-size 32 --pages 769 "$@"
	sound
	is refused 0
}
host
is hit_rate "$(field private_rr_hit_rate)"
none=$(field hit_rate)
host --store 8192 --private-stores
each=$(field hit_rate)
host --store 8192
echo "hit rate: $none without a store, $each with a store each, $(field hit_rate) with one"
above hit_rate "$each + 0.15"
awk "BEGIN { exit !($each > $none + 0.05) }" || die "a store each finds nothing"
"$kvtlab" replay --format generate --instances 3 2>"$work/said"
grep -q "workers 4 cannot be spread evenly over --instances 3" "$work/said" ||
	die "$(cat "$work/said")"

# A daemon and a store that are there already: workers ask it, and what it did is told.
trap 'kill ${daemon:-} ${store:-} 2>/dev/null; rm -rf "$work"' EXIT
"$O/kvtrunkd" --runtime-dir="$work" --page-size=64 --page-bytes=512 --n-pages=513 2>"$work/log" &
daemon=$!
until "$O/kvtctl" --socket "$work/default.sock" pid >/dev/null 2>&1; do
	kill -0 $daemon || exit 1
done
"$O/kvtstored" --socket "$work/default.sock" --ram-bytes 8M --load-percent 100 --min-positions 64 \
	2>"$work/said" &
store=$!
until grep -q "serving at" "$work/said"; do kill -0 $store || die "$(cat "$work/said")"; done
there() {
	replay --format generate --seed 3 --sessions 12 --requests 60 --context 8192 --lockstep \
		--socket "$work/default.sock"
}
there
above loaded_pages 10
first=$(field fetches)
there
[ "$(field fetches)" = "$first" ] || die "a second run tells of the first one: $(field fetches)"
# A store that ends meanwhile, one of the replay or the daemon's, leaves no figures.
mkfifo "$work/lines"
meanwhile() { # what is said; what ends the store; options
	"$kvtlab" replay --format generate --seed 3 --sessions 400 --requests 2000 --context 16384 \
		--lockstep --progress --json "${@:3}" >"$work/json" 2>"$work/lines" &
	replayer=$!
	exec 4<"$work/lines"
	until read -r line <&4 && [[ $line == *"/2000 requests"* ]]; do
		kill -0 $replayer || die "$line"
	done
	$2
	wait $replayer
	code=$?
	cat <&4 >"$work/said"
	[ $code = 1 ] && [ ! -s "$work/json" ] &&
		grep -q "^kvtlab replay: the store $1" "$work/said" ||
		die "it ended with $code: $(cat "$work/said")"
}
of_replay() { # pkill is of a package of its own
	for stat in /proc/[0-9]*/stat; do
		read -r pid name _ parent _ 2>/dev/null <"$stat" &&
			[ "$parent $name" = "$replayer (kvtstored)" ] && kill -KILL "$pid"
	done
}
beside() { kill -KILL $store; }
meanwhile "ended during the replay, so there are no figures$" of_replay --page-size 64 \
	--pages 2049 --store 16384
meanwhile "does not answer at the end, so there are no figures: .*the store is gone" beside \
	--socket "$work/default.sock"
wait $store
there
grep -q '"store":' "$work/json" && die "a store that is gone is told of"
kill $daemon
wait $daemon
echo ok
