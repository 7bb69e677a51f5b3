/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVT_DAEMON_SETUP_OPTIONS_H
#define KVT_DAEMON_SETUP_OPTIONS_H

/**
 * @file options.h
 * Every option of kvtrunkd, declared once. A row expands into the struct, the parser of file,
 * environment and flags, --help, --dump-options and thereby the check of the man page.
 *
 * X(type, key, default, minimum, maximum, choices, when, help)
 *   type     TEXT    characters; minimum and maximum are its length
 *            NUMBER  an integer
 *            BYTES   an integer with an optional suffix K, M, G or T (powers of 1,024)
 *            BOOL    yes or no
 *            CHOICE  one of `choices`, separated by |
 *            SHARE   a number, or a share of the pool's pages as N%
 *            BUDGET  bytes as above, or a share of free memory as N%
 *            MODE    an octal file mode
 *   when     START   needs a restart
 *            RELOAD  taken over on SIGHUP
 */

#define KVT_DAEMON_OPTIONS(X)                                                                     \
	X(TEXT, instance, "default", 1, 48, NULL, START,                                          \
	  "Name of this instance: one daemon serves one model geometry. Letters, digits, '.', "   \
	  "'_' and '-'.")                                                                         \
	X(TEXT, runtime_dir, "/run/kvtrunk", 1, 80, NULL, START,                                  \
	  "Directory of the socket and the lock file. Made if missing.")                          \
	X(TEXT, socket_path, "", 0, 107, NULL, START,                                             \
	  "Control socket. Empty: RUNTIME_DIR/INSTANCE.sock. Ignored when a socket is passed "    \
	  "(LISTEN_FDS).")                                                                        \
	X(MODE, socket_mode, "0660", 0, 0777, NULL, START, "File mode of the control socket.")    \
	X(TEXT, socket_group, "", 0, 64, NULL, START,                                             \
	  "Group of the control socket, by name or number. Empty: the daemon's.")                 \
	X(TEXT, admin_group, "", 0, 64, NULL, RELOAD,                                             \
	  "Members may evict, reset, audit and fence, as uid 0 and the daemon's uid may.")        \
	X(TEXT, fingerprint, "", 0, 255, NULL, START,                                             \
	  "Fields name=value, separated by semicolons, that must be equal in all processes that " \
	  "share KV: weights=, rope=, tokenizer=. A client is refused if it names another value " \
	  "or an unknown field, or opens a session and names nothing.")                           \
	X(NUMBER, page_size, "64", 1, 4096, NULL, START,                                           \
	  "Positions per page.")                                                  \
	X(TEXT, sides, "", 0, 160, NULL, START,                                                   \
	  "Kinds of side pages: of each, how many of the last pages of a prefix must carry one, "  \
	  "as in 16,16. A window of w positions: (w - 1) / page_size, rounded up; a recurrent "    \
	  "state: 1. Up to 32 numbers from 1 to 1024, together at most 2048. Empty: none.")        \
	X(NUMBER, n_layers, "0", 0, 256, NULL, START,                                             \
	  "Layers of KV in a page. n_layers, n_kv_heads and head_dim are the geometry: from it "  \
	  "follow the bytes of a page and the place of each element. 0: pages are page_bytes "    \
	  "bytes, whose meaning only the clients know.")                                          \
	X(NUMBER, n_kv_heads, "0", 0, 4096, NULL, START,                                          \
	  "KV heads in one slab: under tensor parallelism those of one rank.")                    \
	X(NUMBER, head_dim, "0", 0, 1024, NULL, START, "Elements of a head.")                     \
	X(CHOICE, kv_type, "bf16", 0, 0, "bf16|fp16|fp32|fp8_e4m3", START, "Type of an element.") \
	X(TEXT, kv_scales, "", 0, 255, NULL, START,                                               \
	  "Scales of fp8_e4m3 (value = stored value * scale): K,V for all layers, as in "         \
	  "0.5,0.25, or the path of a file (beginning with /) with a line 'K V' for each layer. " \
	  "Empty: 1.")                                                                            \
	X(CHOICE, kv_layout, "hnd", 0, 0, "hnd|nhd|hnkd|nhkd|hknd|latent", START,                 \
	  "How one layer of a page lies. In two planes, K and V, hnd: [kv head][position][dim], " \
	  "nhd: [position][kv head][dim]. As one piece with both, hnkd: [kv head][position]"      \
	  "[K, V][dim], nhkd: [position][kv head][K, V][dim], hknd: [kv head][K, V][position]"    \
	  "[dim]. latent: one plane, [position][dim], of which K and V are made (MLA).")          \
	X(CHOICE, kv_order, "layer", 0, 0, "layer|page", START,                                   \
	  "How pages lie in the slab. layer: each layer's K plane and V plane (or both packed) "  \
	  "is one piece with all pages. page: all layers of a page are contiguous.")               \
	X(BYTES, page_bytes, "0", 0, 1ll << 40, NULL, START,                                      \
	  "Bytes of KV per page and slab. 0: as the geometry says, or 16K without one.")          \
	X(NUMBER, n_pages, "0", 0, 1ll << 30, NULL, START,                                        \
	  "Pages of the pool, the scratch page included. 0: as many as fit into pool_bytes.")     \
	X(BUDGET, pool_bytes, "256M", 1, 1ll << 48, NULL, START,                                  \
	  "Bytes of one slab of the pool, if n_pages is 0. N%: a share of the memory that is "    \
	  "free at start, for all host slabs together, or for a device's slab on its device.")    \
	X(NUMBER, n_slabs, "1", 1, 16, NULL, START,                                               \
	  "Slabs of a host pool, one for each rank of a tensor-parallel engine. The same page "   \
	  "number is valid in each. (A CUDA pool has one for each of devices.)")                  \
	X(CHOICE, backend, "host", 0, 0, "host|cuda-ipc|cuda-vmm", START,                         \
	  "Where pages live. host: shared memory of this machine. cuda-ipc and cuda-vmm: device " \
	  "memory, shared by IPC handles or by descriptors.")                                     \
	X(TEXT, devices, "0", 1, 255, NULL, START,                                                \
	  "CUDA devices of the pool, one slab each: numbers or UUIDs separated by blanks, or all.")\
	X(CHOICE, mps, "auto", 0, 0, "auto|yes|no", RELOAD,                                       \
	  "Whether clients' GPU work runs under MPS. auto: look for its control daemon.")         \
	X(TEXT, mps_control, "nvidia-cuda-mps-control", 0, 255, NULL, RELOAD,                     \
	  "Under MPS: the program that says whether a dead client is gone, and ends its work "    \
	  "(terminate_client). Empty: it is not asked.")                                          \
	X(NUMBER, mps_grace_ms, "10000", 0, 86400000, NULL, RELOAD,                               \
	  "Under MPS, where mps_control does not prove that a dead client is gone: how long its " \
	  "GPU work may run. Its private pages stay in quarantine that long.")                    \
	X(CHOICE, hugepages, "auto", 0, 0, "auto|no|require", START,                              \
	  "Huge pages under a host pool. auto: if there are enough, else one line in the log.")   \
	X(BOOL, mlock, "no", 0, 0, NULL, START,                                                   \
	  "Keep the pool and the daemon's memory out of swap. Needs RLIMIT_MEMLOCK.")             \
	X(CHOICE, policy, "lru", 0, 0, "lru|slru|lfu|fifo|filo|mru|priority", START,              \
	  "Which cached pages are evicted first.")                                                \
	X(NUMBER, slru_threshold, "2", 1, 1000000, NULL, START,                                   \
	  "Uses that make an entry protected under slru.")                                        \
	X(TEXT, namespace_pages, "", 0, 255, NULL, START,                                          \
	  "Cached pages that a namespace may have before others: what it has above that is "      \
	  "evicted first. Entries separated by semicolons: NAME=PAGES, or PAGES for each "        \
	  "namespace without an entry; a number, or N% of the pool. 0: no limit. NAME is a "      \
	  "label or digest that kvtctl namespaces shows. Empty: no limits.")                      \
	X(BOOL, caching, "yes", 0, 0, NULL, START,                                                \
	  "no: everything misses and nothing is cached, with the same page accounting.")          \
	X(NUMBER, max_sessions, "256", 1, 65535, NULL, START,                                     \
	  "Client processes at a time. The last place is kept for a privileged one.")             \
	X(NUMBER, max_members, "64", 2, 65536, NULL, START,                                       \
	  "Ranks of all groups together (a group: the processes of one tensor-parallel engine, "  \
	  "the first one included).")                                                             \
	X(NUMBER, max_leases, "4096", 0, 1ll << 24, NULL, START,                                  \
	  "Leases of one session at a time. Where max_nodes is below n_pages, at most a third "   \
	  "of it. 0: only that limit.")                                                           \
	X(SHARE, max_private_pages, "75%", 0, 1ll << 30, NULL, START,                             \
	  "Private pages of one session at a time. N%: while other sessions live, that share of " \
	  "the pages that the session has or could have; alone it may have all. 0: no limit, no " \
	  "reserve for sessions that hold little.")                                               \
	X(NUMBER, total_leases, "16384", 1, 1ll << 24, NULL, START,                               \
	  "Leases of all sessions together.")                                                     \
	X(NUMBER, max_nodes, "0", 0, 1ll << 30, NULL, START,                                      \
	  "Tree nodes. 0: two for each page, at most 4096; beyond 16384 pages one for four.")     \
	X(NUMBER, max_namespaces, "4096", 1, 1ll << 24, NULL, START,                              \
	  "Namespaces open or holding keys at a time. If all are, a new one empties the least "    \
	  "recently used one that no session has open.")                                           \
	X(NUMBER, coalesce_threshold, "64", 0, 1ll << 30, NULL, START,                            \
	  "A BEGIN does not wait if others are computing this many positions or fewer of it: "    \
	  "computing them again costs about as much as one decode step.")                         \
	X(NUMBER, coalesce_patience_ms, "1000", 0, 86400000, NULL, START,                         \
	  "A BEGIN stops waiting for a sequence that has published nothing for this long, or "    \
	  "for four times its slowest chunk if that is longer. Set it to some times what the "    \
	  "first chunk of a prompt takes. 0: only the client's deadline ends a wait.")            \
	X(NUMBER, max_op_keys, "1048576", 256, 1ll << 28, NULL, START,                            \
	  "Most keys or pages of one operation. The areas of a session hold as much.")            \
	X(BOOL, arena_visible, "yes", 0, 0, NULL, RELOAD,                                         \
	  "Let clients read the tree (probe), and the feed. no: clients must not see each "       \
	  "other's keys. Then open feeds end; a session that has the tree keeps it until it is "  \
	  "closed.")                                                                              \
	X(BYTES, feed_bytes, "16M", 0, 1ll << 34, NULL, RELOAD,                                   \
	  "Memory of the feed, which tells subscribers what is cached: a power of two from 1M "   \
	  "on. It is used while there are subscribers; a slow one needs more. 0: no feed.")       \
	X(BOOL, feed_used, "no", 0, 0, NULL, RELOAD,                                              \
	  "Tell in the feed which pages are reused, too.")                                        \
	X(NUMBER, spin_budget_us, "200", -1, 10000000, NULL, RELOAD,                              \
	  "How long the daemon spins at most before it sleeps. 0: not at all, -1: for ever. It "  \
	  "spins shorter if that does not pay or if others need the CPU.")                        \
	X(NUMBER, fence_poll_us, "100", 1, 1000000, NULL, RELOAD,                                 \
	  "Longest sleep while operations wait for fences that a device raises without a "        \
	  "wake-up.")                                                                             \
	X(CHOICE, event_loop, "auto", 0, 0, "auto|io_uring|epoll", START,                         \
	  "How the daemon waits for events beside the rings. auto: io_uring where the host "      \
	  "allows it, else epoll, and one line in the log.")                                      \
	X(NUMBER, cpu, "-1", -1, 8191, NULL, START, "Core to run on. -1: any.")                   \
	X(NUMBER, drain_ms, "5000", 0, 86400000, NULL, RELOAD,                                    \
	  "How long a stopping daemon waits for leases to end.")                                  \
	X(NUMBER, watchdog_ms, "10000", 0, 86400000, NULL, START,                                 \
	  "Under --supervise: a daemon without progress for this long is killed and restarted. "  \
	  "0: never. A service manager has its own (WatchdogSec=).")                              \
	X(NUMBER, keep_cache_ms, "600000", 0, 86400000, NULL, START,                              \
	  "Under --supervise: how long the cache is kept while no daemon can be started with it. "\
	  "Then one starts with an empty cache. 0: until the supervisor is ended. (Three crashes "\
	  "in a row before a daemon is ready end it at once: it may be their cause.)")            \
	X(TEXT, log_file, "", 0, 255, NULL, START,                                                \
	  "Write every operation to this file, for kvtlab verify. Empty: no log.")                \
	X(CHOICE, log_level, "info", 0, 0, "error|warning|notice|info|debug", RELOAD,             \
	  "Least important level that is written to stderr.")                                     \
	X(BOOL, test_clock, "no", 0, 0, NULL, START,                                              \
	  "Clients move the cache's time (kvtlab script: tick), else it stands still. For "       \
	  "tests.")

#endif
