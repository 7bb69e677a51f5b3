/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVT_SERVE_TIMERS_H
#define KVT_SERVE_TIMERS_H

#include <stdint.h>

struct kvt_daemon;

/** Work that is due by time. Changed by timers.c; others bring `next_ns` forward. */
struct kvt_timers {
	uint64_t next_ns; /* earliest time at which a timer is due */
	uint64_t drain_until_ns, watchdog_at_ns, status_at_ns;
	int signal_fd;
	int pulse_fd;     /* eventfd: its event shows that the loop reports events; -1 = none */
	char status_text[160]; /* last STATUS sent to the service manager */
};

/** Do what is due, and set next_timer_ns. */
void kvt_timers_run(struct kvt_daemon *daemon);
/** The pulse arrived: feed the watchdog. */
void kvt_timers_pulse(struct kvt_daemon *daemon);
/** Handle signals. SIGTERM, SIGINT: drain, or exit on the second. SIGHUP: reload. SIGUSR2:
 * leave. */
void kvt_signal_handle(struct kvt_daemon *daemon);

#endif
