/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/keep/lane_process.h"

#include <errno.h>
#include <linux/sockios.h>
#include <poll.h>
#include <sched.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "daemon/keep/rights.h"
#include "daemon/log/lines.h"
#include "shm/assert.h"
#include "shm/atomic.h"

void kvt_lane_check(const char *call, long result)
{
	int error = errno;

	if (result >= 0 || (error != EPERM && error != EACCES && error != ENOSYS))
		return;
	kvt_log(KVT_LOG_ERROR, "closer_failed", "pid=%d call=%s error=\"%s\" effect=\"clients "
		"that it was waking must connect again\"", (int)getpid(), call, strerror(error));
	_exit(KVT_LANE_REFUSED);
}

static uint64_t processor_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
	return (uint64_t)now.tv_sec * 1000000000ull + (uint64_t)now.tv_nsec;
}

/* Carry out a request. Returns 0 or a positive errno. */
static int perform(const struct kvt_lane_request *request, const struct kvt_rights *rights)
{
	static const uint64_t one = 1;
	int fd = rights->fds[0], unanswered = 0;
	ssize_t n = 0;

	KVT_ASSERT(rights->n_fds > 0 && request->bytes <= sizeof(request->data));
	switch ((enum kvt_lane_op)request->op) {
	case KVT_LANE_RING:
		if (ioctl(fd, SIOCOUTQ, &unanswered) != 0 || unanswered == 0)
			n = send(fd, &one, sizeof(one), MSG_DONTWAIT | MSG_NOSIGNAL);
		break;
	case KVT_LANE_TAKE:
		n = recv(fd, NULL, 0, MSG_DONTWAIT);
		break;
	case KVT_LANE_SEND:
	case KVT_LANE_TELL:
		n = kvt_rights_send(fd, request->data, request->bytes, rights->fds + 1,
				    rights->n_fds - 1);
		break;
	case KVT_LANE_SHUT:
		n = shutdown(fd, SHUT_RDWR);
		break;
	case KVT_LANE_LOST:
		break;
	}
	return n < 0 ? errno : 0;
}

/* Take a request. Its answer is in *in_hand before it leaves the socket, so that it is not lost if
 * this process is killed in between. */
static ssize_t receive(int link, struct kvt_lane_request *request, struct kvt_rights *ret_rights,
		       struct kvt_lane_answer *in_hand)
{
	ssize_t n = recv(link, request, KVT_LANE_HEAD_BYTES, MSG_PEEK | MSG_DONTWAIT);

	if (n <= 0)
		return n;
	*in_hand = (struct kvt_lane_answer){ .number = request->number, .tag = request->tag,
					     .error = ECONNRESET };
	kvt_fence_signal();
	in_hand->op = request->op;
	return kvt_rights_receive(link, request, sizeof(*request), 0, KVT_RIGHTS_MOST, ret_rights);
}

/* Carry out a request and answer it. True: it was slow. */
static bool serve(int link, const struct kvt_lane_request *request, const struct kvt_rights *rights,
		  struct kvt_lane_answer *in_hand)
{
	struct kvt_lane_answer answer = { .number = request->number, .tag = request->tag,
					  .op = request->op };
	uint64_t before = processor_ns();

	answer.error = rights->n_fds ? perform(request, rights) : EMFILE;
	in_hand->error = answer.error;
	answer.cost_ns = processor_ns() - before;
	for (uint32_t i = 0; i < rights->n_fds; i++) /* before the answer, which promises it */
		close(rights->fds[i]);
	kvt_lane_check("sendto", send(link, &answer, sizeof(answer), MSG_NOSIGNAL));
	in_hand->op = 0;
	return answer.cost_ns > KVT_WAKE_SLOW_NS;
}

void kvt_lane_main(int link, struct kvt_lane_answer *in_hand)
{
	static struct kvt_lane_request request;
	struct pollfd asked = { .fd = link, .events = POLLIN };
	struct sched_param normal = { 0 };
	struct kvt_rights rights;
	bool slow = false;

	prctl(PR_SET_NAME, "kvtrunkd-lane");
	sched_setscheduler(0, SCHED_OTHER, &normal);
	for (;;) {
		ssize_t n = receive(link, &request, &rights, in_hand);

		kvt_lane_check("recvfrom or recvmsg", n);
		if (n < 0 && errno == EAGAIN && slow)
			_exit(1);
		else if (n < 0 && (errno == EAGAIN || errno == EINTR))
			kvt_lane_check("poll", poll(&asked, 1, -1));
		else if (n <= 0)
			_exit(0);
		else if (serve(link, &request, &rights, in_hand) && !slow) {
			slow = true;
			setpriority(PRIO_PROCESS, 0, 10);
		}
	}
}
