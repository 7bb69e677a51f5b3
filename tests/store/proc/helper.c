/* SPDX-License-Identifier: Apache-2.0 */
/* helper FOLDER: a helper of kvtstored that keeps pages as files. A file of this name in the folder
 * makes it bad from then on:
 *
 *     never-ready   it sends no READY
 *     old           its READY is that of version 1, which had no kind
 *     exit          it ends instead of answering a GET
 *     silent        it answers nothing
 *     closed        it answers EXISTS only, and all pages exist
 *     stranger      it answers what was not asked
 *     short         its answers have too few bytes
 *     flipped       a bit of what it brings is wrong
 *     swapped       it brings the first page of a GET for all
 *     empty         it says that it brought pages, and has brought none
 *     full          it stores nothing
 *     slow          it answers 30 ms later
 *     held          it answers no GET until it is good again
 *
 * Its folder has a file `log` with a line for each request: kind, pages, and the first byte of the
 * name of the first one. */
#include <fcntl.h>
#include <poll.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include "kvtrunk_wire_helper.h"

static const char *folder;
static uint8_t *memory;
static uint64_t record_bytes;

static bool is_bad(const char *way)
{
	char path[512];

	snprintf(path, sizeof(path), "%s/%s", folder, way);
	return access(path, F_OK) == 0;
}

static void path_of(const struct kvt_helper_page *page, char *path, size_t size)
{
	int n = snprintf(path, size, "%s/kvt:", folder);

	for (uint32_t i = 0; i < KVT_HELPER_NAME; i++)
		n += snprintf(path + n, size - (size_t)n, "%02x", page->name[i]);
}

static bool read_page(const struct kvt_helper_page *named, const struct kvt_helper_page *to)
{
	char path[512];
	FILE *file;
	bool good;

	path_of(named, path, sizeof(path));
	file = fopen(path, "re");
	if (!file)
		return false;
	good = fread(memory + to->record_at, 1, record_bytes, file) == record_bytes &&
	       fread(memory + to->seal_at, sizeof(struct kvt_helper_seal), 1, file) == 1;
	fclose(file);
	if (is_bad("flipped"))
		memory[to->record_at + record_bytes / 2] ^= 4;
	return good;
}

static bool write_page(const struct kvt_helper_page *page)
{
	char path[512], part[520];
	FILE *file;
	bool good;

	path_of(page, path, sizeof(path));
	snprintf(part, sizeof(part), "%s.part", path);
	file = fopen(part, "we");
	if (!file)
		return false;
	good = fwrite(memory + page->record_at, 1, record_bytes, file) == record_bytes &&
	       fwrite(memory + page->seal_at, sizeof(struct kvt_helper_seal), 1, file) == 1;
	return fclose(file) == 0 && good && rename(part, path) == 0;
}

static bool serve_page(const struct kvt_helper_request *request, uint32_t i)
{
	const struct kvt_helper_page *page = &request->pages[i];
	char path[512];

	switch (request->head.type) {
	case KVT_HELPER_EXISTS:
		path_of(page, path, sizeof(path));
		return access(path, F_OK) == 0 || is_bad("closed");
	case KVT_HELPER_GET:
		return is_bad("empty") ||
		       read_page(is_bad("swapped") ? &request->pages[0] : page, page);
	default:
		return !is_bad("full") && write_page(page);
	}
}

static void serve(const struct kvt_helper_request *request)
{
	struct kvt_helper_answer answer = { .head = request->head };
	size_t bytes = is_bad("short") ? sizeof(answer) - 8 : sizeof(answer);
	char line[512];
	FILE *log;

	snprintf(line, sizeof(line), "%s/log", folder);
	log = fopen(line, "ae");
	fprintf(log, "%d %u %02x\n", request->head.type, request->n_pages,
		request->pages[0].name[0]);
	fclose(log);
	if (is_bad("silent") || (is_bad("closed") && request->head.type != KVT_HELPER_EXISTS))
		return;
	if (is_bad("slow"))
		poll(NULL, 0, 30); /* a backend that takes so long, in ms */
	while (is_bad("held") && request->head.type == KVT_HELPER_GET)
		poll(NULL, 0, 1);
	if (is_bad("exit") && request->head.type == KVT_HELPER_GET)
		exit(0);
	for (uint32_t i = 0; i < request->n_pages; i++)
		if (serve_page(request, i))
			answer.bits[i / 64] |= 1ull << (i % 64);
	answer.head.bytes = (uint32_t)bytes;
	if (is_bad("stranger"))
		answer.head.cookie++;
	send(STDIN_FILENO, &answer, bytes, MSG_NOSIGNAL);
}

static int take_memory(void)
{
	struct kvt_helper_hello hello;
	union {
		struct cmsghdr head;
		char bytes[CMSG_SPACE(sizeof(int))];
	} control;
	struct iovec part = { &hello, sizeof(hello) };
	struct msghdr message = { .msg_iov = &part, .msg_iovlen = 1, .msg_control = &control,
				  .msg_controllen = sizeof(control) };
	int fd;

	if (recvmsg(STDIN_FILENO, &message, MSG_CMSG_CLOEXEC) != sizeof(hello) ||
	    !CMSG_FIRSTHDR(&message) || hello.head.version != KVT_HELPER_VERSION)
		return -1;
	memcpy(&fd, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof(fd));
	memory = mmap(NULL, hello.memory_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	record_bytes = hello.record_bytes;
	return memory == MAP_FAILED ? -1 : 0;
}

int main(int argc, char **argv)
{
	static struct kvt_helper_request request;
	struct kvt_helper_ready ready = {
		.head = { .magic = KVT_HELPER_MAGIC, .type = KVT_HELPER_READY,
			  .version = KVT_HELPER_VERSION, .bytes = sizeof(ready) },
		.kind = "folder",
	};

	if (argc != 2 || (folder = argv[1], take_memory() != 0))
		return 2;
	if (is_bad("old")) {
		ready.head.version = 1;
		ready.head.bytes = sizeof(ready.head);
	}
	if (!is_bad("never-ready"))
		send(STDIN_FILENO, &ready, ready.head.bytes, MSG_NOSIGNAL);
	while (recv(STDIN_FILENO, &request, sizeof(request), 0) > 0)
		serve(&request);
	return 0;
}
