# SPDX-License-Identifier: Apache-2.0
# flat-radix-pressure BLOCKS: eviction pressure, with room for that many blocks of 4 positions. The
# flat cache (in awk) evicts the least recently used block, blocks of one request being used from
# the first to the last. So it loses the heads of chains, whose tails are then dead weight. The
# radix tree loses leaves. Radix is never below flat.
blocks=$1
echo "#daemon page_size=4 n_pages=$((blocks + 1))"
awk -v room="$blocks" '
function oldest(    block, found) {
	found = ""
	for (block in used)
		if (!(block in pinned) && (found == "" || used[block] < used[found]))
			found = block
	return found
}
function request(head, user,    chain, i, n, broken, hit, key, drop) {
	# 8 blocks: 4 of one of three system prompts, 4 of a conversation.
	split("", pinned)
	chain = ""
	broken = 0
	hit = 0
	n = 8
	for (i = 0; i < n; i++) {
		chain = chain "/" (i < 4 ? "s" head : "u" user) ":" i
		block[i] = chain
		if (!broken && (chain in used)) {
			hit += 4
			pinned[chain] = 1
		} else {
			broken = 1
		}
	}
	# A request that does not fit beside the pinned blocks is skipped.
	for (i = 0; i < n; i++) {
		if (!(block[i] in used)) {
			if (size == room) {
				drop = oldest()
				if (drop == "")
					return
				delete used[drop]
				size--
			}
			size++
		}
		used[block[i]] = ++clock
		pinned[block[i]] = 1
	}
	flat += hit
	printf "a s=begin keys=%d..%d,%d..%d full\n", 1000 * head + 1, 1000 * head + 16,
		100000 + 100 * user, 100000 + 100 * user + 15
	print "#= ok=true\n#sum radix matched"
	print "a end lease=s computed=32\n#= ok=true"
}
BEGIN {
	print "a open"
	srand(7)
	for (i = 0; i < 400; i++)
		request(int(rand() * 3), int(rand() * 12))
	printf "#say %d blocks: flat %d, radix $radix of %d positions\n", room, flat, 400 * 32
	printf "#total radix>=%d\n", flat
	if (room == 8)
		print "#total radix>0"
	if (room >= 24 && room <= 40)
		printf "#total radix>%d\n", flat
}'
