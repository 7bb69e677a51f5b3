# SPDX-License-Identifier: Apache-2.0
# T11 PAGE_SIZE: a base of 2,000 keys and sequences that leave it at every awkward place.
ps=$1
pages=$((2000 / ps))
echo "#daemon page_size=$ps n_pages=40000"
echo "a open"
echo "a base=alloc n=$pages"
echo "#let base"
echo "a insert keys=1..$((pages * ps)) pages=base"
echo "#= inserted=$pages"
for at in 1 2 63 64 65 127 128 511 512 513 1234 1999; do
	same=$((at / ps * ps))
	[ $same -lt $((pages * ps)) ] || same=$((pages * ps))
	fresh=$(((2000 - same) / ps))
	# The first `at` keys are the base's, the rest differ.
	first=$((10000 * at))
	keys="1..$at,$first..$((first + 1999 - at))"
	echo "a match keys=$keys"
	echo "#= matched=$same"
	echo "a d=alloc n=$pages"
	echo "#let d"
	echo "a insert keys=$keys pages=d"
	echo "#= existed=$same inserted=$fresh twins.n=$((same / ps))"
	echo "a m=match lock keys=$keys"
	if [ $same -eq 0 ]; then
		echo "#= matched=$((pages * ps)) pages=\$d.pages"
	else
		kept="\$base.pages[0..$((same / ps - 1))]"
		own="\$d.pages[$((same / ps))..$((pages - 1))]"
		echo "#= matched=$((pages * ps)) pages=$kept+$own"
		echo "a free pages=d[0..$((same / ps - 1))]"
	fi
	echo "a unlock lease=m"
	echo "a match keys=1..2000"
	echo "#= matched=$((pages * ps)) private=0"
done
