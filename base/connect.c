/* SPDX-License-Identifier: Apache-2.0 */
#include "base/connect.h"

#include <errno.h>
#include <stdio.h>

#include "base/path.h"
#include "base/socket.h"

#define SILENT_NS 1000000000ll /* without an answer it is said */

static void say_silent(const char *program, const char *path)
{
	int stopped = kvt_socket_stopped(path);

	if (stopped)
		fprintf(stderr, "%s: the daemon on %s does not answer: it is stopped, and kill "
			"-CONT %d continues it\n", program, path, stopped);
	else
		fprintf(stderr, "%s: the daemon on %s does not answer yet: it starts, hangs or is "
			"busy\n", program, path);
}

int kvt_connect_aloud(const char *program, const struct kvt_options *options,
		      struct kvt_client **ret_client, struct kvt_error *ret_error)
{
	struct kvt_options first = *options;
	int rc;

	if (options->timeout_ns > 0 && options->timeout_ns <= SILENT_NS)
		return kvt_client_connect(ret_client, options, ret_error);
	first.timeout_ns = SILENT_NS;
	rc = kvt_client_connect(ret_client, &first, ret_error);
	if (rc == 0)
		kvt_client_set_timeout(*ret_client, options->timeout_ns);
	if (rc != -ETIMEDOUT)
		return rc;
	say_silent(program, kvt_daemon_path(options->socket_path));
	return kvt_client_connect(ret_client, options, ret_error);
}
