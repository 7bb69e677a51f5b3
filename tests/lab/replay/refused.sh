#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Refused requests stand in the verdict, with the daemon's reasons; if all are refused, the replay
# ends with 1.
. "$(dirname "$0")/lib.sh"

printf '{"keys":[%s],"output":1}\n' '[1,20]' '[1,200]' '[1,24]' '[1,300]' >"$work/trace"
run=("$kvtlab" replay --format jsonl --page-size 8 --pages 10 --lockstep)
"${run[@]}" "$work/trace" --json >"$work/json" || die "it ended with $?"
is requests 4
is refused 2
grep -q '"refused_attempts":{"too_large":2}' "$work/json" || die "other reasons"
"${run[@]}" "$work/trace" --log "$work/log" >"$work/text" || die "as text: $?"
tail -n 1 "$work/text" | grep -q '^REFUSED  *2 of 4 requests (50.0 %).* 2: 2 too_large' ||
	die "no verdict: $(tail -n 1 "$work/text")"

"$kvtlab" verify "$work/log" >"$work/verified" || die "$(cat "$work/verified")"
grep -q "log: refused: 2 too_large$" "$work/verified" || die "verify names no reason"
"$kvtlab" verify --json "$work/log" | grep -q '"reasons":{"too_large":2}' || die "nor as JSON"

printf 'a open\na match ns=one keys=1\na match ns=two keys=1\n' >"$work/script"
"$kvtlab" script --daemon "n_pages=64 max_namespaces=2 log_file=$work/spaces" "$work/script" \
	>"$work/answers"
"$kvtlab" verify --json "$work/spaces" | grep -q '"reasons":{.*"max_namespaces":1}' ||
	die "verify does not tell of a namespace that was not opened"

sed -n '2p;4p' "$work/trace" >"$work/all"
"${run[@]}" "$work/all" --json >"$work/json"
code=$?
[ $code = 1 ] || die "all were refused, and it ended with $code"
is refused 2
echo ok
