# SPDX-License-Identifier: Apache-2.0
# Shared by scripts that run inside a booted container. /kvt/hello is the worker of docs/c.md.
failures=0
check() { # what, then a command
	local what=$1
	shift
	if "$@" >/kvt/check 2>&1; then
		echo "[       OK ] $what"
	else
		echo "[  FAILED  ] $what"
		tail -n 30 /kvt/check | sed 's/^/    /'
		failures=1
	fi
}
is() { # expected command...: its output
	local expected=$1 found
	shift
	found=$("$@" 2>&1)
	[ "$found" = "$expected" ] || { echo "it said: $found"; return 1; }
}
property() { systemctl show -P "$1" "$2"; }
pid_of() { property MainPID "kvtrunkd@$1.service"; }
state() { systemctl is-active "kvtrunkd@$1.$2"; }
worker() { # instance [user]: the worker of docs/c.md, as a member of the group
	KVTRUNK_SOCKET=/run/kvtrunk/$1.sock setpriv --reuid="${2:-worker}" \
		--regid="${2:-worker}" --init-groups /kvt/hello
}
finds() { is "$2 of 1000 positions need no prefill" worker "$1"; }
journal() { # instance pattern [arguments]: some line of the daemon matches
	journalctl --sync
	journalctl -q -u "kvtrunkd@$1.service" -o cat "${@:3}" | grep -E -- "$2" && return
	journalctl -q -u "kvtrunkd@$1.service" -o cat "${@:3}" | tail
	return 1
}
await() { # command...: until it succeeds, or the test's time is over
	until "$@" >/dev/null 2>&1; do :; done
}
ctl() { kvtctl --socket "/run/kvtrunk/$1.sock" "${@:2}"; }


# ---- services and sockets

add_users() {
	useradd --system --groups kvtrunk --user-group worker
	useradd --system --user-group stranger
}

# Limits of starts and timeouts are scaled down for tests.
instance() { # name
	printf '%s\n' "n_layers = 2" "n_kv_heads = 2" "head_dim = 64" "n_pages = 1024" \
		"drain_ms = 200" >"/etc/kvtrunk/$1.conf"
	mkdir -p "/etc/systemd/system/kvtrunkd@$1.service.d"
	printf '%s\n' "[Unit]" "StartLimitIntervalSec=0" "[Service]" "WatchdogSec=3s" \
		>"/etc/systemd/system/kvtrunkd@$1.service.d/test.conf"
	systemctl daemon-reload
}

# ---- workers at work: a replay in the background is $workers

start_workers() { # more work than a test has time for
	kvtctl --socket /run/kvtrunk/a.sock replay --format generate --workers 2 --quiet \
		--sessions 1000 --context 16000 --prefill-rate 100000 --no-private \
		>/kvt/replay 2>&1 &
	workers=$!
}
stop_workers() {
	kill -TERM $workers
	wait $workers
}
operations() { ctl a status --json | grep -o '"operations":[0-9]*' | grep -o '[0-9]*$'; }
continues() { # until operations are done after now
	local from
	from=$(operations)
	until [ "$(operations)" -gt $((from + 200)) ]; do
		kill -0 $workers && continue
		cat /kvt/replay
		return 1
	done
}
settled() { ctl a status --json | grep -q '"live_sessions":0'; }
read_right() { # replay's report at its end
	cat /kvt/replay
	grep -E 'patterns +[1-9][0-9]* pages verified, 0 wrong$' /kvt/replay &&
		grep -E 'workers +2, 0 killed, 0 failed$' /kvt/replay
}
