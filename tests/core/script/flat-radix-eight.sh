# SPDX-License-Identifier: Apache-2.0
# flat-radix-eight: the published row of eviction pressure: room for eight blocks of 4 positions,
# prompts of eight blocks with three heads in turns. Neither cache hits.
echo "#daemon page_size=4 n_pages=9"
echo "a open"
for i in $(seq 0 23); do
	head=$((1000 * (1 + i % 3)))
	own=$((10000 + 100 * i))
	echo "a s=begin keys=$head..$((head + 15)),$own..$((own + 15))"
	echo "#= ok=true matched=0"
	echo "a end lease=s computed=32"
	echo "#= ok=true sealed=8"
done
