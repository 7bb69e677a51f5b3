# SPDX-License-Identifier: Apache-2.0
# kill-steps OPERATION: a process dies at every protocol step of an operation. Afterwards it holds
# nothing, nothing cached is lost, and the survivor continues.
op=$1
echo "#daemon page_size=2 n_pages=64"
echo "#daemon-only"
echo "a open"
echo "a x=alloc n=4"
echo "a keep=insert keys=1..8 pages=x lock"
prepare() { # what the victim holds before, and the operation in which it dies
	echo "v open"
	case $op in
	match) operation="match keys=1..8 lock" ;;
	alloc) operation="alloc n=5" ;;
	lock) operation="lock handle=keep" ;;
	begin) operation="begin keys=1..8,21..28 extra=4" ;;
	insert) echo "v p=alloc n=4"; operation="insert keys=1..4,31..34 pages=p lock" ;;
	free) echo "v p=alloc n=4"; operation="free pages=p" ;;
	unlock) echo "v m=lock handle=keep"; operation="unlock lease=m" ;;
	commit) echo "v s=begin keys=1..8,41..44 extra=4"; operation="commit lease=s computed=12" ;;
	extend) echo "v s=begin keys=1..8,51..54 extra=4"; operation="extend lease=s n=3" ;;
	end) echo "v s=begin keys=1..8,61..64 extra=4"; operation="end lease=s computed=12" ;;
	remove) operation="remove keys=71..78" ;;
	close) echo "v p=alloc n=4"; echo "v s=begin keys=1..12"; operation="close" ;;
	esac
}
for step in keys-written entry-put tail-published submitted completion-seen completion-taken \
	after-$op; do
	prepare
	echo "v kill@$step $operation"
	echo "#= op=kill ok=true during=$op step=$step private=0 quarantined=0 protected=4"
	echo "a match keys=1..8"
	echo "#= matched=8"
	echo "a stats"
	echo "#= counters.live_leases=1 counters.live_sessions=2"
	echo "a s=begin keys=1..8,91..94 extra=2"
	echo "#= ok=true reusable=8"
	echo "a end lease=s"
	echo "#= protected=4"
	echo "a audit"
	echo "#= clean=true"
done
echo "a unlock lease=keep"
echo "a evict n=100"
echo "#= cached=0 free=63 private=0 quarantined=0"
