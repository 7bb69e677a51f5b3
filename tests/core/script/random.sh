# SPDX-License-Identifier: Apache-2.0
# random SEED LINES [OPTION...]: random operations of four processes, with fences, deaths, lost
# connections, expiry, reset, too few pages. No single answer is expected. An audit follows every
# line (in the first 1,000). After all sessions end nothing may be held.
seed=$1
lines=$2
shift 2
echo "#daemon page_size=2 n_pages=300 max_nodes=40 max_leases=12 max_private_pages=90 $*"
awk -v seed="$seed" -v lines="$lines" '
function any(n) { return int(rand() * n) }
function keys(    base, n, text, k) {
	# Prefixes of four texts, leaving them at random for one of a few tails.
	base = 1000 * any(4)
	n = any(60)
	text = n ? (base + 1) ".." (base + n) : ""
	if (any(3) == 0) {
		k = 1 + any(12)
		base = 100000 * (1 + any(3))
		text = text (n ? "," : "") (base + 1) ".." (base + k)
		n += k
	}
	n_keys = n
	return text
}
function ns() { return any(5) ? "" : " ns=n" any(3) }
function fence(s,    slot) {
	if (any(3))
		return ""
	slot = any(2)
	return " fence=" slot ":" (raised[s, slot] + any(3))
}
function lease(kind, s) { # a name of that kind, if any; mostly of that session
	if (!any(8))
		s = sessions[1 + any(4)]
	kind = kind s
	return names[kind] ? kind any(names[kind] < 4 ? names[kind] : 4) : ""
}
function bind(kind, s,    name) { # a name to bind; release its old value first
	name = kind s (names[kind s] % 4)
	if (names[kind s]++ >= 4)
		printf "%s %s lease=%s\n", s, kind == "b" ? "end" : "unlock", name
	return name
}
function operation(s,    what, x, n, slot, lock, start) {
	what = any(100)
	if (what < 22) {
		x = bind("b", s)
		printf "%s %s=begin keys=%s extra=%d%s%s\n", s, x, keys(), any(20), ns(),
			any(8) ? "" : any(2) ? " full" : " force_miss"
	} else if (what < 42 && (x = lease("b", s)) != "") {
		printf "%s commit lease=%s computed=%d%s%s%s\n", s, x, any(70), fence(s),
			any(3) ? "" : " chunked", any(6) ? "" : " keep"
	} else if (what < 54 && (x = lease("b", s)) != "") {
		printf "%s end lease=%s%s%s\n", s, x, any(2) ? "" : " computed=" any(60), fence(s)
	} else if (what < 57 && (x = lease("b", s)) != "") {
		printf "%s extend lease=%s n=%d\n", s, x, any(5)
	} else if (what < 63) {
		x = bind("m", s)
		printf "%s %s=match keys=%s lock%s\n", s, x, keys(), ns()
	} else if (what < 66) {
		printf "%s match keys=%s%s%s\n", s, keys(), ns(), any(2) ? "" : " no_touch"
	} else if (what < 70 && (x = lease("m", s)) != "") {
		printf "%s unlock lease=%s%s\n", s, x, fence(s)
	} else if (what < 72 && (x = lease("m", s)) != "") {
		n = bind("m", s)
		printf "%s %s=lock handle=%s\n", s, n, x
	} else if (what < 78) {
		n_keys = 0
		x = keys()
		n = int(n_keys / 2)
		printf "%s %s=alloc n=%d\n", s, "p" s, n
		lock = any(4) ? "" : bind("m", s)
		start = any(3) ? "" : lease("m", s)
		printf "%s %sinsert keys=%s pages=p%s%s%s%s%s%s%s%s\n", s,
			lock != "" ? lock "=" : "", x, s, ns(), fence(s),
			lock != "" ? " lock" : "",
			start != "" && start != lock ? " handle=" start : "",
			any(3) ? "" : " ttl_ms=" (1 + any(50)), any(4) ? "" : " priority=" any(5),
			any(3) ? "" : " chunked"
		if (any(2))
			printf "%s free pages=p%s%s\n", s, s, fence(s)
	} else if (what < 86) {
		slot = any(2)
		raised[s, slot] += 1 + any(3)
		printf "%s raise slot=%d value=%d\n", s, slot, raised[s, slot]
	} else if (what < 88) {
		printf "%s remove keys=%s%s\n", s, keys(), ns()
		if (any(3) == 0)
			printf "%s leave%s\n", s, ns()
	} else if (what < 90) {
		printf "%s evict n=%d\n", s, any(30)
	} else if (what < 91) {
		printf "%s probe keys=%s\n", s, keys()
		printf "%s page n=%d\n", s, any(310)
	} else if (what < 93) {
		printf "tick ms=%d\n", any(20)
	} else if (what < 94 && !any(3)) {
		printf "%s reset\n", s
	} else if (what < 97 && !any(4)) {
		printf "%s %s\n", s, any(2) ? "kill" : "drop"
		printf "%s open\n", s
		for (slot = 0; slot < 3; slot++)
			raised[s, slot] = 0
	}
}
BEGIN {
	srand(seed)
	split("s t u v", sessions, " ")
	for (i = 1; i <= 4; i++)
		print sessions[i] " open"
	for (done = 0; done < lines; done++)
		operation(sessions[1 + any(4)])
	for (i = 1; i <= 4; i++)
		print sessions[i] " kill"
	print "#= private=0 quarantined=0 protected=0"
	print "end open"
	print "end evict n=100000"
	print "#= free=299 cached=0 evictable=0"
	print "end stats"
	print "#= counters.live_nodes=0 counters.live_leases=0 counters.detached_pending=0"
}'
