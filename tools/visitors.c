/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/visitors.h"

#include <stddef.h>
#include <string.h>
#include <sys/socket.h>

static void shut_down(struct kvt_visitor *visitor)
{
	shutdown(visitor->fd, SHUT_RDWR);
	visitor->leaving = true;
}

static struct kvt_visitor *find(struct kvt_visitors *visitors, int fd)
{
	for (size_t i = 0; i < KVT_VISITORS_ROOM; i++)
		if (visitors->at[i].came && visitors->at[i].fd == fd)
			return &visitors->at[i];
	return NULL;
}

static bool is_served(const struct kvt_visitor *visitor)
{
	return visitor->came && !visitor->leaving;
}

static uint32_t count(const struct kvt_visitors *visitors, const uid_t *uid)
{
	uint32_t n = 0;

	for (size_t i = 0; i < KVT_VISITORS_ROOM; i++)
		n += is_served(&visitors->at[i]) && (!uid || visitors->at[i].uid == *uid);
	return n;
}

/* True if the server has a whole request to read, or has read one. */
static bool has_asked(const struct kvt_visitor *visitor)
{
	char head[2048];
	ssize_t n = recv(visitor->fd, head, sizeof(head), MSG_PEEK | MSG_DONTWAIT);

	return visitor->asked || (n > 0 && memmem(head, (size_t)n, "\r\n\r\n", 4));
}

/* Find the oldest connection of the user that has most: of those that have not asked, if there are
 * any. There is one. */
static struct kvt_visitor *find_victim(struct kvt_visitors *visitors)
{
	struct kvt_visitor *victim = NULL;
	bool victim_asked = false;
	uint32_t most = 0;

	for (size_t i = 0; i < KVT_VISITORS_ROOM; i++) {
		struct kvt_visitor *visitor = &visitors->at[i];
		uint32_t n = is_served(visitor) ? count(visitors, &visitor->uid) : 0;
		bool asked = n && n >= most && has_asked(visitor);

		if (n > most ||
		    (n && n == most && (asked == victim_asked ? visitor->came < victim->came :
								victim_asked))) {
			most = n;
			victim = visitor;
			victim_asked = asked;
		}
	}
	return victim;
}

bool kvt_visitors_came(struct kvt_visitors *visitors, int fd, uid_t uid, int64_t now_ns)
{
	struct kvt_visitor *place;

	pthread_mutex_lock(&visitors->lock);
	place = find(visitors, fd); /* of one that the server closed before it began to serve it */
	for (size_t i = 0; i < KVT_VISITORS_ROOM && !place; i++)
		if (!visitors->at[i].came)
			place = &visitors->at[i];
	if (place) {
		*place = (struct kvt_visitor){ .fd = fd, .uid = uid, .came = ++visitors->n_came,
					       .deadline_ns = now_ns + visitors->patience_ns };
		if (count(visitors, NULL) > KVT_VISITORS_MOST)
			shut_down(find_victim(visitors));
	}
	pthread_mutex_unlock(&visitors->lock);
	return place;
}

void kvt_visitors_asked(struct kvt_visitors *visitors, int fd)
{
	struct kvt_visitor *visitor;

	pthread_mutex_lock(&visitors->lock);
	visitor = find(visitors, fd);
	if (visitor)
		visitor->asked = true;
	pthread_mutex_unlock(&visitors->lock);
}

void kvt_visitors_left(struct kvt_visitors *visitors, int fd)
{
	struct kvt_visitor *visitor;

	pthread_mutex_lock(&visitors->lock);
	visitor = find(visitors, fd);
	if (visitor)
		visitor->came = 0;
	pthread_mutex_unlock(&visitors->lock);
}

int64_t kvt_visitors_expire(struct kvt_visitors *visitors, int64_t now_ns)
{
	int64_t next = INT64_MAX;

	pthread_mutex_lock(&visitors->lock);
	for (size_t i = 0; i < KVT_VISITORS_ROOM; i++) {
		struct kvt_visitor *visitor = &visitors->at[i];

		if (!is_served(visitor))
			continue;
		if (visitor->deadline_ns <= now_ns)
			shut_down(visitor);
		else if (visitor->deadline_ns < next)
			next = visitor->deadline_ns;
	}
	pthread_mutex_unlock(&visitors->lock);
	return next;
}
