# SPDX-License-Identifier: Apache-2.0
# Shared by the tests here: a daemon in a directory of its own, and counted checks.
cd "$(dirname "$0")/../../.." || exit 1
O=$(realpath -m "${O:-build}")
dir=$(mktemp -d /tmp/kvt-metrics-XXXXXX) || exit 1
daemon=""
others=()
finish() {
	local pid
	for pid in $daemon "${others[@]}"; do
		kill -CONT "$pid" && kill "$pid"
	done 2>/dev/null
	wait
	rm -rf "$dir"
}
trap finish EXIT
failures=0

check() { # what, then a command
	local what=$1
	shift
	if "$@" >"$dir/check" 2>&1; then
		echo "[       OK ] $what"
	else
		echo "[  FAILED  ] $what"
		tail -n 30 "$dir/check" | sed 's/^/    /'
		failures=1
	fi
}
skipped() { printf "skip: %s\n[  SKIPPED ] %s\n" "$*" "$*"; }
have() { command -v "$1" >/dev/null 2>&1; }

ctl() { "$O/kvtctl" --socket "$dir/socket" "$@"; }

start_daemon() { # with the geometry of the worker of docs/c.md
	"$O/kvtrunkd" --instance="metrics-$$" --runtime_dir="$dir/run" --socket_path="$dir/socket" \
		--n_layers=2 --n_kv_heads=2 --head_dim=64 --n_pages=512 2>>"$dir/log" &
	daemon=$!
	until ctl status >/dev/null 2>&1; do
		kill -0 "$daemon" 2>/dev/null || { cat "$dir/log"; exit 1; }
	done
}
start_store() { # beside the daemon; sets `store`
	: >"$dir/store.log"
	"$O/kvtstored" --socket "$dir/socket" --ram-bytes 1M 2>>"$dir/store.log" &
	store=$!
	others+=($store)
	await "$dir/store.log" "serving at" $store || { cat "$dir/store.log"; exit 1; }
}
stop_daemon() {
	kill "$daemon"
	wait "$daemon"
	daemon=""
}
freeze() { # pid: until it stands still
	kill -STOP "$1"
	until grep -q '^State:.T' "/proc/$1/status"; do kill -0 "$1" || return; done
}
await() { # file pattern pid: until the file has the pattern, or the process has ended
	until grep -aq -- "$2" "$1"; do
		kill -0 "$3" 2>/dev/null || { grep -aq -- "$2" "$1"; return; }
	done
}
