/* SPDX-License-Identifier: Apache-2.0 */

/**
 * @file metricsd.c
 * kvtmetricsd: serves the metrics of one kvtrunkd and a page about it over HTTP, on a loopback
 * address or a unix socket.
 *
 * A process of its own: a scrape costs the daemon one STATUS request, and the owner of the pages
 * speaks no HTTP. Each scrape connects, so it finds a restarted daemon; a daemon that is gone or
 * hangs is kvtrunk_up 0 in time.
 *
 * A thread of libmicrohttpd serves. A thread of our own accepts: without a free descriptor that
 * library polls without a pause. The main thread waits for signals and samples the page's history;
 * on SIGALRM it ends connections whose time is over. A connection serves one request.
 */

#include <arpa/inet.h>
#include <errno.h>
#include <microhttpd.h>
#include <netinet/in.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#include "base/exit.h"
#include "base/number.h"
#include "base/option.h"
#include "base/path.h"
#include "base/socket.h"
#include "base/text.h"
#include "kvtrunk_client.h"
#include "shm/atomic.h"
#include "shm/clock.h"
#include "shm/commit.h"
#include "shm/limit.h"
#include "shm/stdio.h"
#include "tools/metrics.h"
#include "tools/page_http.h"
#include "tools/visitors.h"

#define DEFAULT_LISTEN "127.0.0.1:9479"
#define DEFAULT_TIMEOUT_MS 2000
#define REQUEST_TIMEOUT_S 10 /* for a whole request, without the daemon's time */
#define BACKLOG 16
#define ACCEPT_PAUSE_NS 100000000 /* after a failure */
/* More than are taken in: at its limit libmicrohttpd 0.9.75 never gives its lock back. */
#define CONNECTIONS_MOST (2 * KVT_VISITORS_ROOM)

struct server {
	const char *socket_path; /* of kvtrunkd; NULL: the library's default */
	const char *listen;
	int64_t timeout_ns;
	uint32_t per_namespace;  /* namespaces with series of their own */
	struct kvt_visitors visitors;
	int fd;
	bool down; /* the last request had no answer, and that was logged */
	struct kvt_page_http page;
	struct kvt_name name; /* of a unix socket; empty: TCP */
	struct MHD_Daemon *http;
	pthread_t acceptor;
	bool stopping; /* atomic */
};

/* ---- answers */

/* The scrape succeeds in any case; kvtrunk_up tells if the daemon answered. */
static enum MHD_Result answer_metrics(struct server *server, struct MHD_Connection *connection)
{
	struct kvt_error error = { .text = "" };
	struct kvt_text text = { 0 };
	bool down = kvt_metrics_scrape(&text, server->socket_path, server->per_namespace,
				       server->timeout_ns, &error);

	if (down)
		kvt_metrics_print_down(&text);
	if (down != server->down)
		fprintf(stderr, "kvtmetricsd: %s\n", down ? error.text : "the daemon answers");
	server->down = down;
	/* The library frees the text. */
	return kvt_page_http_send(connection, MHD_HTTP_OK, KVT_METRICS_CONTENT_TYPE, text.bytes,
				  text.used, MHD_RESPMEM_MUST_FREE);
}

static int descriptor(struct MHD_Connection *connection)
{
	return MHD_get_connection_info(connection, MHD_CONNECTION_INFO_CONNECTION_FD)->connect_fd;
}

static enum MHD_Result handle(void *context, struct MHD_Connection *connection, const char *url,
			      const char *method, const char *version, const char *upload,
			      size_t *upload_bytes, void **state)
{
	static char seen;
	static const char none[] = "not found: the page is at /, the metrics are at /metrics\n",
			  wrong[] = "only GET and HEAD\n";
	struct server *server = context;
	enum MHD_Result result;

	(void)version;
	(void)upload;
	/* First call: the headers. Last call: the body was read. */
	if (!*state) {
		*state = &seen;
		kvt_visitors_asked(&server->visitors, descriptor(connection));
		return MHD_YES;
	}
	if (*upload_bytes) {
		*upload_bytes = 0;
		return MHD_YES;
	}
	if (strcmp(method, MHD_HTTP_METHOD_GET) != 0 && strcmp(method, MHD_HTTP_METHOD_HEAD) != 0)
		return kvt_page_http_text(connection, MHD_HTTP_METHOD_NOT_ALLOWED, wrong);
	if (strcmp(url, "/metrics") == 0)
		return answer_metrics(server, connection);
	if (kvt_page_http_answer(&server->page, connection, url, !*server->name.path, &result))
		return result;
	return kvt_page_http_text(connection, MHD_HTTP_NOT_FOUND, none);
}

/* ---- connections */

static unsigned int seconds_until(int64_t then_ns)
{
	int64_t left = then_ns - kvt_now_ns();

	return left <= 0 ? 1 : (unsigned int)(left / 1000000000 + 1);
}

/* Take a connection in and give it to the library, or close it. */
static void welcome(struct server *server, int fd, const struct sockaddr *from,
		    socklen_t from_bytes)
{
	struct ucred peer = { .uid = KVT_VISITORS_ANYONE };
	socklen_t bytes = sizeof(peer);
	struct itimerval set;

	if (*server->name.path)
		getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &bytes);
	if (!kvt_visitors_came(&server->visitors, fd, peer.uid, kvt_now_ns())) {
		close(fd);
		return;
	}
	/* Makes the main thread set the next deadline. */
	if (getitimer(ITIMER_REAL, &set) == 0 && !timerisset(&set.it_value))
		alarm(1);
	if (MHD_add_connection(server->http, fd, from, from_bytes) != MHD_YES)
		kvt_visitors_left(&server->visitors, fd); /* closed */
}

/* Called before the first byte is read, and before the descriptor is closed. */
static void begin_or_end(void *context, struct MHD_Connection *connection, void **state,
			 enum MHD_ConnectionNotificationCode what)
{
	struct server *server = context;

	(void)state;
	if (what == MHD_CONNECTION_NOTIFY_CLOSED)
		kvt_visitors_left(&server->visitors, descriptor(connection));
}

/* Accept until the server stops. A failure is told once, until one is accepted. */
static void *accept_all(void *context)
{
	const struct timespec pause = { .tv_nsec = ACCEPT_PAUSE_NS };
	struct server *server = context;
	int failed = 0;

	while (!kvt_load_relaxed(&server->stopping)) {
		struct sockaddr_storage from;
		socklen_t bytes = sizeof(from);
		int fd = accept4(server->fd, (struct sockaddr *)&from, &bytes, SOCK_CLOEXEC);

		if (fd >= 0) {
			failed = 0;
			welcome(server, fd, (struct sockaddr *)&from, bytes);
			continue;
		}
		if (errno == EINTR || errno == ECONNABORTED || errno == EINVAL) /* shut down */
			continue;
		if (errno != failed)
			fprintf(stderr, "kvtmetricsd: cannot accept connections: %s%s; it tries "
				"again\n", kvt_limit_text(errno), errno == EMFILE ? "" :
				": the host lacks what each needs");
		failed = errno;
		nanosleep(&pause, NULL);
	}
	return NULL;
}

static int start(struct server *server)
{
	int rc;

	server->http = MHD_start_daemon(MHD_USE_AUTO_INTERNAL_THREAD | MHD_USE_ITC |
						MHD_USE_NO_LISTEN_SOCKET,
					0, NULL, NULL, handle, server,
					MHD_OPTION_CONNECTION_LIMIT,
					(unsigned int)CONNECTIONS_MOST,
					MHD_OPTION_CONNECTION_TIMEOUT,
					(unsigned int)REQUEST_TIMEOUT_S,
					MHD_OPTION_NOTIFY_CONNECTION, begin_or_end, server,
					MHD_OPTION_END);
	if (!server->http)
		return -errno;
	rc = -pthread_create(&server->acceptor, NULL, accept_all, server);
	if (rc)
		MHD_stop_daemon(server->http);
	return rc;
}

static void stop(struct server *server)
{
	kvt_store_relaxed(&server->stopping, true);
	shutdown(server->fd, SHUT_RDWR);
	pthread_join(server->acceptor, NULL);
	MHD_stop_daemon(server->http);
	close(server->fd);
}

/* Without connections no alarm is set. */
static void serve_until(const sigset_t *signals, struct server *server)
{
	int number;

	do {
		int64_t due = kvt_page_http_sample(&server->page, kvt_now_ns());
		struct timespec wait = { .tv_sec = seconds_until(due) };
		int64_t next = kvt_visitors_expire(&server->visitors, kvt_now_ns());

		if (next != INT64_MAX)
			alarm(seconds_until(next));
		number = sigtimedwait(signals, NULL, &wait);
	} while (number < 0 || number == SIGALRM);
}

/* ---- where */

/* Say why nothing is served. Returns the negative exit code. */
static int refuse(struct server *server, int status, const char *why)
{
	fprintf(stderr, "kvtmetricsd: cannot listen on '%s': %s\n", server->listen, why);
	kvt_name_release(&server->name);
	return -status;
}

static int listen_unix(struct server *server, const char *path)
{
	int rc = kvt_name_take(&server->name, path), fd = rc;

	if (rc == 0)
		fd = kvt_name_bind(&server->name, SOCK_STREAM);
	if (fd < 0)
		return rc == -EINVAL ?
		       refuse(server, KVT_EXIT_USAGE, "the path must have 1 to 107 bytes") :
		       refuse(server, fd == -ENOENT || fd == -ENOTDIR ? KVT_EXIT_USAGE :
			      EXIT_FAILURE, kvt_name_text(-fd));
	if (chmod(path, 0660) != 0 || listen(fd, BACKLOG) != 0)
		return refuse(server, EXIT_FAILURE, strerror(errno));
	fprintf(stderr, "kvtmetricsd: serving /metrics on unix:%s\n", path);
	return fd;
}

/* "127.0.0.1:9479" or "[::1]:9479". */
static int parse_address(const char *text, struct sockaddr_storage *ret_address,
			 socklen_t *ret_bytes)
{
	struct sockaddr_in6 *v6 = (struct sockaddr_in6 *)ret_address;
	struct sockaddr_in *v4 = (struct sockaddr_in *)ret_address;
	const char *colon = strrchr(text, ':');
	char host[64] = "";
	uint64_t port;
	size_t n;

	memset(ret_address, 0, sizeof(*ret_address));
	if (!colon || kvt_number_parse(colon + 1, strlen(colon + 1), 65535, &port) != 0)
		return -EINVAL;
	n = (size_t)(colon - text);
	if (n >= sizeof(host))
		return -EINVAL;
	memcpy(host, text, n);
	if (inet_pton(AF_INET, host, &v4->sin_addr) == 1) {
		v4->sin_family = AF_INET;
		v4->sin_port = htons((uint16_t)port);
		*ret_bytes = sizeof(*v4);
		return ntohl(v4->sin_addr.s_addr) >> 24 == 127 ? 0 : -EPERM;
	}
	if (n < 2 || host[0] != '[' || host[n - 1] != ']')
		return -EINVAL;
	host[n - 1] = '\0';
	if (inet_pton(AF_INET6, host + 1, &v6->sin6_addr) != 1)
		return -EINVAL;
	v6->sin6_family = AF_INET6;
	v6->sin6_port = htons((uint16_t)port);
	*ret_bytes = sizeof(*v6);
	return IN6_IS_ADDR_LOOPBACK(&v6->sin6_addr) ? 0 : -EPERM;
}

static int listen_tcp(struct server *server)
{
	struct sockaddr_storage address;
	socklen_t bytes;
	char host[64];
	uint16_t port;
	int fd, on = 1, error = parse_address(server->listen, &address, &bytes);

	if (error == -EPERM)
		return refuse(server, KVT_EXIT_USAGE,
			      "the metrics have no access control of their own: "
			      "only loopback addresses (127.x, [::1]) and unix sockets are "
			      "served; put a proxy with access control in front");
	if (error)
		return refuse(server, KVT_EXIT_USAGE,
			      "give ADDRESS:PORT, [ADDRESS]:PORT or unix:PATH, with numbers, as "
			      "in " DEFAULT_LISTEN);
	fd = socket(address.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
	if (fd < 0 || setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on)) != 0 ||
	    bind(fd, (struct sockaddr *)&address, bytes) != 0 || listen(fd, BACKLOG) != 0)
		return refuse(server, EXIT_FAILURE, errno == EADDRINUSE
				      ? "the port is taken, perhaps by the metrics of another "
					"instance: give each its own"
				      : kvt_limit_text(errno));
	bytes = sizeof(address);
	getsockname(fd, (struct sockaddr *)&address, &bytes);
	port = ntohs(address.ss_family == AF_INET ? ((struct sockaddr_in *)&address)->sin_port
						  : ((struct sockaddr_in6 *)&address)->sin6_port);
	snprintf(host, sizeof(host), "%.*s", (int)(strrchr(server->listen, ':') - server->listen),
		 server->listen);
	fprintf(stderr, "kvtmetricsd: serving http://%s:%u/metrics\n", host, port);
	return fd;
}

/* ---- program */

static void usage(FILE *to)
{
	fprintf(to, "usage: kvtmetricsd [--socket PATH] [--listen ADDRESS:PORT|unix:PATH]\n"
		"                   [--timeout-ms N] [--labels] [--per-namespace N]\n\n"
		"  --socket PATH   of kvtrunkd; default: $KVTRUNK_SOCKET, then\n"
		"                  /run/kvtrunk/default.sock\n"
		"  --listen WHERE  loopback address or unix socket; default: "
		"$KVTRUNK_METRICS_LISTEN,\n"
		"                  then " DEFAULT_LISTEN "; port 0: any free one\n"
		"  --timeout-ms N  how long the daemon may take to answer; default: %d\n"
		"  --labels        tell the page's viewers labels and process ids; on TCP these\n"
		"                  may be any local user. Always on a unix socket\n"
		"  --per-namespace N  also series with digest and label of the N namespaces that\n"
		"                  have most cached pages; N is 1 to %d, default: none\n"
		"  --help, --version\n", DEFAULT_TIMEOUT_MS, KVT_METRICS_NAMESPACES_MOST);
}

/* Read the options. -1: continue; else the exit code. */
static int parse_options(struct server *server, int argc, char **argv)
{
	static const struct option options[] = {
		{ "socket", required_argument, NULL, 's' },
		{ "listen", required_argument, NULL, 'l' },
		{ "timeout-ms", required_argument, NULL, 't' },
		{ "labels", no_argument, NULL, 'L' },
		{ "per-namespace", required_argument, NULL, 'n' },
		{ "help", no_argument, NULL, 'h' },
		{ "version", no_argument, NULL, 'v' },
		{ NULL, 0, NULL, 0 },
	};
	uint64_t ms = DEFAULT_TIMEOUT_MS, spaces = 0;
	int option;

	while ((option = kvt_option_next(argc, argv, options, NULL, "kvtmetricsd --help")) != -1) {
		switch (option) {
		case 's':
			server->socket_path = optarg;
			break;
		case 'l':
			server->listen = optarg;
			break;
		case 't':
			if (kvt_number_parse(optarg, strlen(optarg), 600000, &ms) == 0 && ms)
				break;
			fprintf(stderr, "kvtmetricsd: --timeout-ms takes 1 to 600000, not '%s'\n",
				optarg);
			return KVT_EXIT_USAGE;
		case 'L':
			server->page.page.labels = true;
			break;
		case 'n':
			if (kvt_number_parse(optarg, strlen(optarg), KVT_METRICS_NAMESPACES_MOST,
					     &spaces) == 0 && spaces)
				break;
			fprintf(stderr, "kvtmetricsd: --per-namespace takes 1 to %d, not '%s'\n",
				KVT_METRICS_NAMESPACES_MOST, optarg);
			return KVT_EXIT_USAGE;
		case 'h':
			if (kvt_option_word(argc, argv))
				return KVT_EXIT_USAGE;
			usage(stdout);
			return KVT_EXIT_OK;
		case 'v':
			if (kvt_option_word(argc, argv))
				return KVT_EXIT_USAGE;
			printf("kvtmetricsd %s%s\n", kvt_version(), kvt_commit);
			return KVT_EXIT_OK;
		default: /* and that was said */
			return KVT_EXIT_USAGE;
		}
	}
	server->timeout_ns = (int64_t)ms * 1000000;
	server->per_namespace = (uint32_t)spaces;
	server->page.page.timeout_ns = server->timeout_ns;
	server->page.page.socket_path = server->socket_path;
	server->visitors.patience_ns = server->timeout_ns + REQUEST_TIMEOUT_S * 1000000000ll;
	return kvt_option_rest(argc, argv) || kvt_daemon_path_empty(server->socket_path) ?
	       KVT_EXIT_USAGE : -1;
}

int main(int argc, char **argv)
{
	static struct server server = { .listen = DEFAULT_LISTEN, /* static: megabytes */
					.visitors.lock = PTHREAD_MUTEX_INITIALIZER,
					.page.lock = PTHREAD_MUTEX_INITIALIZER };
	const char *listen_at = getenv("KVTRUNK_METRICS_LISTEN");
	sigset_t signals;
	bool on_unix;
	int status, error;

	kvt_stdio_begin("kvtmetricsd");
	if (listen_at && *listen_at)
		server.listen = listen_at;
	status = parse_options(&server, argc, argv);
	if (status >= 0)
		return status;
	sigemptyset(&signals);
	sigaddset(&signals, SIGTERM);
	sigaddset(&signals, SIGINT);
	sigaddset(&signals, SIGALRM);
	sigprocmask(SIG_BLOCK, &signals, NULL); /* before the serving thread is created */
	signal(SIGPIPE, SIG_IGN);
	on_unix = strncmp(server.listen, "unix:", 5) == 0;
	if (server.per_namespace && !server.page.page.labels && !on_unix) {
		fputs("kvtmetricsd: --per-namespace tells digests and labels of namespaces, which "
		      "on TCP needs --labels: every local user can look\n", stderr);
		return KVT_EXIT_USAGE;
	}
	server.fd = on_unix ? listen_unix(&server, server.listen + 5) : listen_tcp(&server);
	if (server.fd < 0)
		return -server.fd;
	/* The file system decides who opens a unix socket. */
	server.page.page.labels |= *server.name.path;
	error = start(&server);
	if (error) {
		fprintf(stderr, "kvtmetricsd: cannot serve HTTP: %s\n", kvt_limit_text(-error));
		status = EXIT_FAILURE;
	} else {
		serve_until(&signals, &server);
		stop(&server);
		kvt_page_http_free(&server.page);
		status = EXIT_SUCCESS;
	}
	kvt_name_release(&server.name);
	return status;
}
