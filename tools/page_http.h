/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVT_TOOLS_PAGE_HTTP_H
#define KVT_TOOLS_PAGE_HTTP_H

/**
 * @file page_http.h
 * The page of kvtmetricsd over HTTP: who may see it, and how often the daemon is asked for it.
 *
 * However many browsers look, the daemon is asked for each table at most once a second. The tree is
 * read at most once a second, and in at most a twentieth of the time. While no browser looks, only
 * the history is sampled.
 */

#include <microhttpd.h>
#include <pthread.h>

#include "tools/page.h"

/** The last answer of one URL, which all that ask share. */
struct kvt_page_view {
	struct MHD_Response *response; /* NULL: none yet */
	int64_t fresh_until_ns;
	unsigned int n_bodies; /* in memory: this one, and old ones still being sent */
};

struct kvt_page_http {
	pthread_mutex_t lock; /* of the page */
	struct kvt_page page;
	struct kvt_page_view facts, tree; /* of the thread that serves */
};

/** Sample the history if due. Returns when it is due next. */
int64_t kvt_page_http_sample(struct kvt_page_http *http, int64_t now_ns);
/** Answer a GET or HEAD of the page or its data. `by_name`: on TCP, where any web page that the
 * user visits can reach the port, only requests to a loopback name are answered. Returns false if
 * the URL is none of the page's. */
bool kvt_page_http_answer(struct kvt_page_http *http, struct MHD_Connection *connection,
			  const char *url, bool by_name, enum MHD_Result *ret_result);
/** Send an answer: bytes of this type, or text. */
enum MHD_Result kvt_page_http_send(struct MHD_Connection *connection, unsigned int code,
				   const char *type, const char *bytes, size_t n,
				   enum MHD_ResponseMemoryMode mode);
enum MHD_Result kvt_page_http_text(struct MHD_Connection *connection, unsigned int code,
				   const char *text);
/** Free the answers, after the server has ended. */
void kvt_page_http_free(struct kvt_page_http *http);

#endif
