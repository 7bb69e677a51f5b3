/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/page_http.h"

#include <arpa/inet.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/text.h"
#include "shm/clock.h"

#define FRESH_NS 1000000000ll
#define TREE_SHARE 20 /* reading the tree takes at most this part of the time */
#define MOST_BODIES 3 /* a reader that takes nothing must not collect versions of a large tree */

static const char policy[] = "default-src 'none'; script-src 'self'; style-src 'self'; "
			     "connect-src 'self'; img-src 'self'; base-uri 'none'; "
			     "form-action 'none'; frame-ancestors 'none'";

/* ---- responses */

static void protect(struct MHD_Response *response, const char *type, const char *caching)
{
	static const char *const headers[][2] = {
		{ "Content-Security-Policy", policy },
		{ "X-Content-Type-Options", "nosniff" },
		{ "Referrer-Policy", "no-referrer" },
		{ "Cross-Origin-Resource-Policy", "same-origin" },
		{ MHD_HTTP_HEADER_CONNECTION, "close" },
	};

	for (size_t i = 0; i < sizeof(headers) / sizeof(headers[0]); i++)
		MHD_add_response_header(response, headers[i][0], headers[i][1]);
	MHD_add_response_header(response, MHD_HTTP_HEADER_CONTENT_TYPE, type);
	MHD_add_response_header(response, MHD_HTTP_HEADER_CACHE_CONTROL, caching);
}

enum MHD_Result kvt_page_http_send(struct MHD_Connection *connection, unsigned int code,
				   const char *type, const char *bytes, size_t n,
				   enum MHD_ResponseMemoryMode mode)
{
	struct MHD_Response *response =
		MHD_create_response_from_buffer(n, (void *)(uintptr_t)bytes, mode);
	enum MHD_Result result;

	if (!response)
		return MHD_NO;
	protect(response, type, "no-cache");
	if (code == MHD_HTTP_METHOD_NOT_ALLOWED)
		MHD_add_response_header(response, MHD_HTTP_HEADER_ALLOW, "GET, HEAD");
	result = MHD_queue_response(connection, code, response);
	MHD_destroy_response(response);
	return result;
}

enum MHD_Result kvt_page_http_text(struct MHD_Connection *connection, unsigned int code,
				   const char *text)
{
	return kvt_page_http_send(connection, code, "text/plain; charset=utf-8", text,
				  strlen(text), MHD_RESPMEM_PERSISTENT);
}

/* ---- data */

/* A body may be sent long after its view shows another. */
struct body {
	struct kvt_page_view *view;
	char *bytes;
};

static void body_free(void *context)
{
	struct body *body = context;

	body->view->n_bodies--;
	free(body->bytes);
	free(body);
}

/* Replace what a view shows. */
static void show(struct kvt_page_view *view, const char *type, struct kvt_text *text)
{
	struct body *body = kvt_memory_grow(NULL, 1, sizeof(*body));
	struct MHD_Response *response;

	*body = (struct body){ .view = view, .bytes = text->bytes };
	view->n_bodies++;
	response = MHD_create_response_from_buffer_with_free_callback_cls(
		text->used, text->bytes, body_free, body);
	if (!response) {
		body_free(body);
		return;
	}
	protect(response, type, "no-store");
	if (view->response)
		MHD_destroy_response(view->response);
	view->response = response;
}

/* Ask the daemon, if the last answer is old. */
static void refresh(struct kvt_page_http *http, struct kvt_page_view *view)
{
	int64_t began_ns = kvt_now_ns(), took_ns;
	struct kvt_text text = { 0 };

	if (view->response &&
	    (began_ns < view->fresh_until_ns || view->n_bodies >= MOST_BODIES))
		return;
	if (view == &http->facts) {
		kvt_page_print(&http->page, began_ns, &text);
		show(view, "application/json", &text);
	} else if (kvt_page_print_tree(&http->page, began_ns, &text)) {
		show(view, "application/octet-stream", &text);
	}
	took_ns = kvt_now_ns() - began_ns;
	view->fresh_until_ns = began_ns + took_ns + FRESH_NS;
	if (view == &http->tree && http->page.tree_version && took_ns * TREE_SHARE > FRESH_NS)
		view->fresh_until_ns = began_ns + took_ns * TREE_SHARE;
}

static enum MHD_Result answer_view(struct kvt_page_http *http, struct MHD_Connection *connection,
				   struct kvt_page_view *view)
{
	const char *known = MHD_lookup_connection_value(connection, MHD_GET_ARGUMENT_KIND,
							"after");
	enum MHD_Result result = MHD_NO;
	char version[24];

	pthread_mutex_lock(&http->lock);
	refresh(http, view);
	snprintf(version, sizeof(version), "%llu", (unsigned long long)http->page.tree_version);
	if (view == &http->tree && http->page.tree_version && known &&
	    strcmp(known, version) == 0)
		result = kvt_page_http_send(connection, MHD_HTTP_NO_CONTENT,
					    "application/octet-stream", "", 0,
					    MHD_RESPMEM_PERSISTENT);
	else if (view->response)
		result = MHD_queue_response(connection, MHD_HTTP_OK, view->response);
	pthread_mutex_unlock(&http->lock);
	return result;
}

int64_t kvt_page_http_sample(struct kvt_page_http *http, int64_t now_ns)
{
	struct kvt_page *page = &http->page;
	int64_t due_ns = now_ns;

	pthread_mutex_lock(&http->lock);
	if (page->n_samples)
		due_ns = page->samples[(page->n_samples - 1) % KVT_PAGE_SAMPLES].at_ns +
			 KVT_PAGE_SAMPLE_NS;
	if (due_ns <= now_ns) {
		kvt_page_sample(page, now_ns);
		due_ns = now_ns + KVT_PAGE_SAMPLE_NS;
	}
	pthread_mutex_unlock(&http->lock);
	return due_ns;
}

/* ---- requests */

/* True for localhost, 127.x and [::1], with a port or without. A web page of another origin whose
 * name was pointed at loopback (DNS rebinding) sends its own name. */
static bool is_loopback_name(const char *host)
{
	struct in_addr address;
	char name[64];
	size_t n;

	if (!host)
		return false;
	if (strncmp(host, "[::1]", 5) == 0)
		return !host[5] || host[5] == ':';
	n = strcspn(host, ":");
	if (n >= sizeof(name))
		return false;
	memcpy(name, host, n);
	name[n] = '\0';
	return strcasecmp(name, "localhost") == 0 ||
	       (inet_pton(AF_INET, name, &address) == 1 && ntohl(address.s_addr) >> 24 == 127);
}

bool kvt_page_http_answer(struct kvt_page_http *http, struct MHD_Connection *connection,
			  const char *url, bool by_name, enum MHD_Result *ret_result)
{
	static const char elsewhere[] = "the page is served to http://localhost:PORT/ and the "
					"like: the request names another host\n";
	const struct kvt_page_file *file = kvt_page_file_find(url);
	struct kvt_page_view *view = strcmp(url, "/page.json") == 0 ? &http->facts :
				     strcmp(url, "/tree") == 0 ? &http->tree : NULL;
	const char *host = MHD_lookup_connection_value(connection, MHD_HEADER_KIND,
						       MHD_HTTP_HEADER_HOST);

	if (!file && !view)
		return false;
	if (by_name && !is_loopback_name(host))
		*ret_result = kvt_page_http_text(connection, MHD_HTTP_FORBIDDEN, elsewhere);
	else if (view)
		*ret_result = answer_view(http, connection, view);
	else
		*ret_result = kvt_page_http_send(connection, MHD_HTTP_OK, file->type, file->begin,
						 (size_t)(file->end - file->begin),
						 MHD_RESPMEM_PERSISTENT);
	return true;
}

void kvt_page_http_free(struct kvt_page_http *http)
{
	if (http->facts.response)
		MHD_destroy_response(http->facts.response);
	if (http->tree.response)
		MHD_destroy_response(http->tree.response);
}
