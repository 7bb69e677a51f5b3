# SPDX-License-Identifier: Apache-2.0
# T7 PAGE_SIZE: lengths 5, 5 and 6: matches are positive and a multiple of the page.
ps=$1
echo "#daemon page_size=$ps n_pages=64"
echo "a open"
for i in 1 2 3; do
	n=$((i < 3 ? 5 : 6))
	pages=$((n / ps))
	first=$((i * 100))
	keys="1..4,$first..$((first + n - 5))"
	echo "a x$i=alloc n=$pages"
	echo "a insert keys=$keys pages=x$i"
	echo "#= ok=true"
	echo "a match keys=$keys"
	echo "#= matched=$((pages * ps)) matched>0"
done
