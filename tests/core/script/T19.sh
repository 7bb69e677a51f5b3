# SPDX-License-Identifier: Apache-2.0
# T19 POLICY [THRESHOLD]: which of four entries is evicted first. Each is one page:
#        hits  created  touched  priority
#   A     1       1        8         1
#   B     3       2        6         0
#   C     1       3        3         5
#   D     2       4        7         0
policy=$1
threshold=${2:-2}
[ $policy != slru ] || options=" slru_threshold=$threshold"
echo "#daemon page_size=1 n_pages=32 policy=$policy${options:-}"
case $policy-$threshold in
lru-*) order="C B D A" ;;
lfu-*) order="C A D B" ;;
fifo-*) order="A B C D" ;;
filo-*) order="D C B A" ;;
mru-*) order="A D B C" ;;
slru-2) order="C A B D" ;;
slru-3) order="C D A B" ;;
priority-*) order="B D A C" ;;
esac
key() { case $1 in A) echo 10 ;; B) echo 20 ;; C) echo 30 ;; D) echo 40 ;; esac; }
echo "a open"
for e in A,1 B,0 C,5 D,0; do
	echo "a x=alloc n=1"
	echo "a insert keys=$(key ${e%,*}) pages=x priority=${e#*,}"
done
for e in B B D; do # a hit and a touch
	echo "a s=begin keys=$(key $e) full"
	echo "#= reusable=1"
	echo "a end lease=s"
done
echo "a match keys=$(key A)" # a touch only
left="A B C D"
for victim in $order; do
	echo "a evict n=1"
	echo "#= evicted=1"
	left=$(echo "$left" | sed "s/$victim//")
	for e in A B C D; do
		case $left in *$e*) want=1 ;; *) want=0 ;; esac
		echo "a match keys=$(key $e) no_touch"
		echo "#= matched=$want"
	done
done
