# SPDX-License-Identifier: Apache-2.0
# flat-radix: the flat-versus-radix scenarios. Block 4; every request matches, then inserts the
# rest. The same requests pass through a flat cache of hash-chained blocks (here, in awk). With an
# unlimited pool both have equal hits: 112/192, 552/672, 168/256, 320/576, 0/192.
echo "#daemon page_size=4 n_pages=1000"
awk '
function prompt(ns, keys, want,    n, key, i, run, ends, chain, hit, cut) {
	# Expand keys; walk the flat cache block by block.
	n = 0
	split(keys, run, ",")
	for (i = 1; i in run; i++) {
		split(run[i], ends, /\.\./)
		for (cut = ends[1]; cut <= ends[2]; cut++)
			key[n++] = cut
	}
	chain = ns
	hit = 0
	cut = 0
	for (i = 0; i + 4 <= n; i += 4) {
		chain = chain "/" key[i] "," key[i + 1] "," key[i + 2] "," key[i + 3]
		if (chain in flat) {
			if (!cut)
				hit += 4
		} else {
			cut = 1
		}
		flat[chain] = 1
	}
	flat_hits[ns] += hit
	total[ns] += n
	printf "a s=begin ns=%s keys=%s full\n#= ok=true matched=%d\n", ns, keys, hit
	printf "#sum %s matched\n", ns
	printf "a end lease=s computed=%d\n#= ok=true\n", n
}
function result(ns, name, cached, all) {
	if (total[ns] != all || flat_hits[ns] != cached) {
		printf "flat-radix.sh: %s: flat hits %d of %d\n", name, flat_hits[ns],
			total[ns] > "/dev/stderr"
		exit 1
	}
	printf "#total %s=%d\n", ns, cached
	printf "#say %s: flat %d, radix $%s of %d\n", name, flat_hits[ns], ns, all
}
BEGIN {
	print "a open"
	for (i = 0; i < 8; i++)
		prompt("shared", "1..16," (1000 + 8 * i) ".." (1007 + 8 * i))
	result("shared", "shared prefix", 112, 192)
	for (i = 0; i < 24; i++)
		prompt("reuse", "1..24," (1000 + 4 * i) ".." (1003 + 4 * i))
	result("reuse", "high reuse", 552, 672)
	prompt("branch", "1..16")
	prompt("branch", "1..24")
	prompt("branch", "1..32")
	prompt("branch", "1..16,101..108")
	prompt("branch", "1..16,101..116")
	prompt("branch", "1..40")
	prompt("branch", "1..32,201..208")
	prompt("branch", "1..24,301..324")
	result("branch", "branching conversation", 168, 256)
	for (g = 0; g < 4; g++)
		for (i = 0; i < 6; i++)
			prompt("groups", (1 + 100 * g) ".." (16 + 100 * g) "," \
				(1000 + 100 * g + 8 * i) ".." (1007 + 100 * g + 8 * i))
	result("groups", "several prefix groups", 320, 576)
	for (i = 0; i < 8; i++)
		prompt("none", (1 + 24 * i) ".." (24 + 24 * i))
	result("none", "no reuse", 0, 192)
}'
