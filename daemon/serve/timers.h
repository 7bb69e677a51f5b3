/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVT_SERVE_TIMERS_H
#define KVT_SERVE_TIMERS_H

#include "daemon/serve/state.h"

/** Do what is due, and set next_timer_ns. */
void kvt_timers_run(struct kvt_daemon *daemon);
/** The pulse arrived: feed the watchdog. */
void kvt_timers_pulse(struct kvt_daemon *daemon);
/** Handle signals. SIGTERM, SIGINT: drain, or exit on the second. SIGHUP: reload. SIGUSR2:
 * leave. */
void kvt_signal_handle(struct kvt_daemon *daemon);

#endif
