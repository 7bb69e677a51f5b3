#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# kvtlab analyze: counts of hand-made prompts, pools of five sizes against a daemon, what a daemon
# has cached, the picture, and what is refused.
. "$(dirname "$0")/lib.sh"

analyze() {
	"$kvtlab" analyze "$@" --json >"$work/json" || die "kvtlab analyze $* ended with $?"
}

# Pages of 2: (1,2), behind it (3,4) and (9,9), and (7,7); a position behind each prompt's last one.
cat >"$work/prompts" <<-END
	{"keys": [1,2,3,4,5]}
	{"keys": [1,2,9,9,9]}
	{"keys": [7,7,7]}
	{"keys": [1,2,3,4,5]}
	{"keys": [1,2,9,9,9]}
END
analyze - --page-size 2 --pages 4,5,6 <"$work/prompts"
is requests 5
is input_positions 23
is unique_positions 13
is shared_positions 6
is hit_positions 10
is need_pages 6
is ordered_need_pages 4
grep -q '"order":\[1,4,2,5,3\]' "$work/json" || die "another order"
[ "$(grep -o '"hit_rate":[0-9.]*' "$work/json" | cut -c 12-14 | xargs)" = "0.4 0.2 0.2 0.4" ] ||
	die "other hit rates"
"$kvtlab" analyze "$work/prompts" --page-size 2 --svg "$work/svg" >"$work/text" || die "as text"
grep -Eq '^ +4 +6 +26\.1 % +43\.5 %  ##########\+{7}$' "$work/text" || die "$(cat "$work/text")"
grep -q '^  depth first    4 pages, 6 positions$' "$work/text" || die "$(cat "$work/text")"
python3 -c 'import sys, xml.dom.minidom as m
curves = m.parse(sys.argv[1]).getElementsByTagName("polyline")
assert [len(each.getAttribute("points").split()) for each in curves] == [3, 3]' "$work/svg" ||
	die "the picture"

# Each size is what a daemon of this size measures, to the position.
trace=(--sessions 12 --users 6 --seed 5)
"$kvtlab" replay --format generate "${trace[@]}" --write-trace "$work/trace" || die "no trace"
analyze --format generate "${trace[@]}" --requests 200 --pages 2500
mv "$work/json" "$work/generated"
analyze "$work/trace" --users 6 --requests 200 --pages 2500
cmp "$work/json" "$work/generated" || die "a trace differs from itself, written down"
analyze "$work/trace" --users 6 --requests 200 --pages 1700,2000,2500,3500,8000
! grep -q '"order"' "$work/json" || die "requests that wait for answers were put in another order"
tr '{' '\n' <"$work/json" |
	sed -n 's/.*"pages":\([0-9]*\),.*"hit_positions":\([0-9]*\),.*/\1 \2/p' >"$work/sizes"
[ "$(wc -l <"$work/sizes")" = 5 ] || die "not five sizes: $(cat "$work/sizes")"
[ "$(cut -d' ' -f2 "$work/sizes" | sort -u | wc -l)" -ge 4 ] || die "sizes do not differ"
while read -r pages hits; do
	replay "$work/trace" --users 6 --requests 200 --pages "$pages" --lockstep --no-private
	is hit_positions "$hits"
done <"$work/sizes"

# What a daemon has cached now. It does not notice.
"$O/kvtrunkd" --detach --runtime-dir="$work/run" --n_pages=100 --n_layers=2 --page_size=2 \
	--n_kv_heads=1 --head_dim=8 2>"$work/err" || die "$(cat "$work/err")"
export KVTRUNK_SOCKET=$work/run/default.sock
trap 'kill "$("$kvtctl" pid)"; rm -rf "$work"' EXIT
head -n 2 "$work/prompts" >"$work/some"
replay "$work/some" --socket "$KVTRUNK_SOCKET" --lockstep --no-verify
until "$kvtctl" --json status | grep -q '"live_sessions":0'; do :; done
namespace=$("$kvtctl" namespaces | grep -oE '[0-9a-f]{32}' | head -n 1)
"$kvtctl" --json status >"$work/before"
analyze "$work/prompts" --socket "$KVTRUNK_SOCKET" --namespace "$namespace"
is cached_positions 16 # all whole pages but (7,7)
is page_size 2
grep -q '"pages":100,' "$work/json" || die "the daemon's pool is not among the sizes"
analyze "$work/prompts" --socket "$KVTRUNK_SOCKET" --namespace another
is cached_positions 0
"$kvtctl" --json status >"$work/after"
for counter in input_positions hit_positions seq; do
	[ "$(grep -o "\"$counter\":[0-9]*" "$work/before")" = \
		"$(grep -o "\"$counter\":[0-9]*" "$work/after")" ] || die "$counter has changed"
done

refused() { # WORDS OPTION...
	local words=$1
	shift
	"$kvtlab" analyze "$@" >"$work/json" 2>"$work/why"
	[ $? = 2 ] || die "kvtlab analyze $* did not end with 2"
	grep -q -e "$words" "$work/why" || die "no word of '$words': $(cat "$work/why")"
}
refused "FILE is missing"
refused "cannot open" "$work/none"
refused "take up to 4 pages of 2 positions" "$work/prompts" --page-size 2 --pages 3
refused "numbers up to" "$work/prompts" --pages 10,x
refused "leave out --page-size" "$work/prompts" --page-size 2 --socket "$KVTRUNK_SOCKET"
refused "needs --socket" "$work/prompts" --namespace n
refused "number from 1 to 4096" "$work/prompts" --page-size 0
"$kvtlab" analyze "$work/prompts" --socket "$work/none" 2>"$work/why"
[ $? = 3 ] || die "no daemon: not 3"
echo ok
