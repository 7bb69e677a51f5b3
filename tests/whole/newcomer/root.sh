# SPDX-License-Identifier: Apache-2.0
# Shared by tests in a fresh minimal Debian 12: its base system, git and make, and nothing else. The
# base comes from a mirror once and is kept in ${XDG_CACHE_HOME:-$HOME/.cache}/kvtrunk/newcomer.
#
#     root_prepare          or skip with the reason; afterwards $base is the system, and $dir
#                           a folder of this test for copies of it
#     root_run ROOT COMMAND run a command of bash as root in a copy, in namespaces of its own for
#                           mounts and processes; ROOT_SHARED, "HOST:INSIDE", names a folder that is
#                           the same in several

root_skip() {
	echo "skip: $*"
	exit 77
}

root_prepare() {
	local cache=${XDG_CACHE_HOME:-$HOME/.cache}/kvtrunk/newcomer
	[ "$(id -u)" = 0 ] || root_skip "a fresh system needs root"
	command -v debootstrap >/dev/null || root_skip "debootstrap is not installed"
	unshare --mount --pid --fork true 2>/dev/null ||
		root_skip "no mount and PID namespaces here"
	mkdir -p "$cache"
	[ "$(df --output=avail -BG "$cache" | tail -n 1 | tr -dc 0-9)" -ge 8 ] ||
		root_skip "$cache has less than 8 GB of disk left"
	exec 7>"$cache/lock"
	flock 7
	base=$cache/bookworm
	if [ ! -e "$base.complete" ]; then
		rm -rf "$base"
		debootstrap --variant=minbase --include=git,make bookworm "$base" \
			>"$base.log" 2>&1 ||
			root_skip "debootstrap: $(grep -v '^I: ' "$base.log" | tail -n 1)"
		touch "$base.complete"
	fi
	exec 7>&-
	dir=$(mktemp -d /var/tmp/kvt-newcomer-XXXXXX) || exit 1
	trap 'rm -rf --one-file-system "$dir"' EXIT
}

root_copy() { cp -a "$base" "$dir/$1"; } # name

root_run() { # root, command
	unshare --mount --pid --fork --kill-child --propagation private bash -s "$1" "$2" <<-'END'
		set -e
		mount --bind "$1" "$1"
		cd "$1"
		mount -t proc proc proc
		mount --rbind /sys sys
		mount --rbind /dev dev
		mount -t tmpfs -o mode=1777 shm dev/shm
		mount -t tmpfs -o mode=1777 tmp tmp
		cp -L /etc/resolv.conf etc/resolv.conf
		if [ -n "${ROOT_SHARED:-}" ]; then
			mkdir -p ".${ROOT_SHARED#*:}"
			mount --bind "${ROOT_SHARED%:*}" ".${ROOT_SHARED#*:}"
		fi
		mkdir -p old
		pivot_root . old
		umount -l /old
		exec env -i HOME=/root ${http_proxy:+http_proxy="$http_proxy"} \
			PATH=/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin bash -c "$2"
	END
}
