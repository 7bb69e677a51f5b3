# SPDX-License-Identifier: Apache-2.0
# Shared by tests on a booted systemd. The machine is a container of this very system: an overlay of
# / that keeps changes in memory, booted by systemd-nspawn without network, without the host's
# services, for one script that runs as root inside.
#
#     boot_prepare        or skip with the reason; afterwards $root is the overlay, $upper what
#                         it changed
#     boot_run SCRIPT     run it inside; its output is printed; fails if it did

boot_skip() {
	echo "skip: $*"
	exit 77
}

boot_prepare() {
	[ "$(id -u)" = 0 ] || boot_skip "booting a container needs root"
	command -v systemd-nspawn >/dev/null ||
		boot_skip "systemd-nspawn is not installed (Debian package systemd-container)"
	# Mounts are visible to this process and its children only, and end with them.
	if [ -z "${BOOT_PRIVATE:-}" ]; then
		unshare -m true 2>/dev/null || boot_skip "no mount namespaces here"
		BOOT_PRIVATE=yes exec unshare -m --propagation private bash "$0" "$@"
	fi
	boot=$(mktemp -d /tmp/kvt-boot-XXXXXX)
	nspawn=""
	trap boot_cleanup EXIT
	trap 'exit 1' TERM INT
	mount -t tmpfs -o mode=755,size=2G kvt-boot "$boot" || boot_skip "cannot mount a tmpfs"
	root=$boot/root upper=$boot/upper
	mkdir "$root" "$upper" "$boot/work"
	mount -t overlay kvt-boot -o "lowerdir=/,upperdir=$upper,workdir=$boot/work" "$root" ||
		boot_skip "cannot mount an overlay of /"
	boot_bare
}

# Without the host's own services and unit settings.
boot_bare() {
	local unit=$root/etc/systemd/system
	rm -rf "$unit" "$root/etc/systemd/network" "$root/etc/fstab" "$root/run/systemd" \
		"$root/usr/sbin/policy-rc.d"
	mkdir -p "$unit" "$root/kvt"
	tr -d - </proc/sys/kernel/random/uuid >"$root/etc/machine-id"
	cat >"$unit/kvt-test.target" <<-'END'
		[Unit]
		Requires=sysinit.target kvt-test.service
		After=sysinit.target
		AllowIsolate=yes
	END
	cat >"$unit/kvt-test.service" <<-'END'
		[Unit]
		DefaultDependencies=no
		After=sysinit.target
		Requires=sysinit.target
		[Service]
		Type=oneshot
		ExecStart=/kvt/inside
		StandardOutput=file:/kvt/out
		StandardError=inherit
		ExecStopPost=/bin/systemctl --no-block --force poweroff
	END
	for unwanted in systemd-resolved systemd-networkd systemd-timesyncd apparmor \
		systemd-machine-id-commit systemd-journal-catalog-update ldconfig; do
		ln -sf /dev/null "$unit/$unwanted.service"
	done
}

boot_cleanup() {
	# SIGKILL would end timeout alone. SIGTERM it forwards, and it kills 5 s later.
	[ -z "$nspawn" ] || { cat "$root/kvt/out"; kill "$nspawn"; wait "$nspawn"; } 2>/dev/null
	umount -R "$root" 2>/dev/null
	umount "$boot" 2>/dev/null
	rmdir "$boot" 2>/dev/null
}

boot_run() { # script
	cp "$1" "$root/kvt/inside"
	chmod 755 "$root/kvt/inside"
	: >"$root/kvt/out"
	timeout -k 5 900 systemd-nspawn --quiet --register=no --keep-unit --private-network \
		--link-journal=no --system-call-filter="@memlock set_mempolicy" -D "$root" -b \
		--console=pipe systemd.unit=kvt-test.target >"$boot/console" 2>&1 </dev/null &
	nspawn=$!
	wait "$nspawn"
	nspawn=""
	if [ ! -s "$root/kvt/out" ]; then
		tail -n 5 "$boot/console"
		boot_skip "systemd does not boot here: $(tail -n 1 "$boot/console")"
	fi
	cat "$root/kvt/out"
	grep -qx "inside: done" "$root/kvt/out" && ! grep -q '^\[  FAILED  \]' "$root/kvt/out"
}
