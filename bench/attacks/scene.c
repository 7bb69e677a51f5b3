/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file scene.c
 * One attack on its own daemon, from start to complete clean-up: see attack.h.
 *
 * Inputs: an attack, the options. Invariants: every process started here has ended at the return; a
 * failure has its reason in the result. Callers: kvtbench attacks, tests/daemon/hostile.
 */
#include "kvtrunk_wire_admin.h"
#include "bench/attacks/attack.h"

#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "lab/store.h"
#include "shm/atomic.h"

#define LAND_NS 60000000000ull   /* a later attack counts as not landed */
#define SETTLE_NS 30000000000ull /* what is not freed by then has leaked */
#define STILL_NS 15000000000ull  /* more than the innocent client's patience */

struct scene {
	const struct attack *attack;
	const struct attack_options *options;
	struct attack_result *result;
	struct kvt_own_daemon daemon;
	struct attack_client *client;
	struct attack_progress *progress;
	pid_t attacker, metrics;
	uint16_t metrics_port;
};

static __attribute__((format(printf, 2, 3))) void fail(struct scene *scene, const char *format, ...)
{
	va_list arguments;

	if (!scene->result->why[0]) {
		va_start(arguments, format);
		vsnprintf(scene->result->why, sizeof(scene->result->why), format, arguments);
		va_end(arguments);
	}
	scene->result->failed = true;
}

/* ---- the daemon */

/* Where a flag belongs among n others: in the place of that of its name, else behind them. */
static unsigned int place_of(const char *flag, const char *const *flags, unsigned int n)
{
	size_t name = strcspn(flag, "=");

	for (unsigned int i = 0; i < n; i++)
		if (strncmp(flag, flags[i], name + 1) == 0)
			return i;
	return n;
}

static bool start_daemon(struct scene *scene)
{
	static unsigned int count;
	char instance[64];
	const char *flags[16] = { instance, "--socket_mode=0666", "--page_size=16",
				  "--page_bytes=1024", "--n_pages=16384", "--hugepages=no",
				  "--spin_budget_us=20", "--log_level=error" };
	const unsigned int n = 8;

	snprintf(instance, sizeof(instance), "--instance=attacks-%d-%u", (int)getpid(), count++);
	if (scene->attack->flag)
		flags[place_of(scene->attack->flag, flags, n)] = scene->attack->flag;
	unsetenv("XDG_RUNTIME_DIR"); /* closed to other uids */
	if (kvt_own_daemon_start(&scene->daemon, scene->options->daemon, flags,
				 scene->options->daemon_cpu, scene->result->why,
				 sizeof(scene->result->why))) {
		scene->result->failed = true;
		return false;
	}
	if (chmod(scene->daemon.directory, scene->attack->needs & ATTACK_STORE ? 0777 : 0755))
		fail(scene, "%s: %s", scene->daemon.directory, strerror(errno));
	return true;
}

static int remove_one(const char *path, const struct stat *status, int type, struct FTW *at)
{
	(void)status;
	(void)type;
	(void)at;
	remove(path);
	return 0;
}

static void stop_daemon(struct scene *scene)
{
	char directory[sizeof(scene->daemon.directory)];
	int status;

	memcpy(directory, scene->daemon.directory, sizeof(directory));
	status = kvt_own_daemon_stop(&scene->daemon);
	if (status)
		fail(scene, "the daemon ended with status 0x%x", (unsigned int)status);
	nftw(directory, remove_one, 8, FTW_DEPTH | FTW_PHYS);
}

static void run_metrics(const struct scene *scene, int out)
{
	char program[4096] = "", socket_path[128];
	const char *beside = scene->options->daemon;
	ssize_t n = -1;
	char *slash;

	if (beside)
		n = snprintf(program, sizeof(program), "%s", beside);
	else
		n = readlink("/proc/self/exe", program, sizeof(program) - 1);
	slash = n > 0 ? strrchr(program, '/') : NULL;
	snprintf(slash ? slash + 1 : program, 16, "kvtmetricsd");
	snprintf(socket_path, sizeof(socket_path), "--socket=%s", scene->daemon.socket_path);
	dup2(out, 2);
	prctl(PR_SET_PDEATHSIG, SIGTERM);
	execl(program, program, socket_path, "--listen=127.0.0.1:0", (char *)NULL);
	_exit(127);
}

/* Start kvtmetricsd, which prints its port on stderr. False: there is none, skip. */
static bool start_metrics(struct scene *scene)
{
	unsigned int port = 0;
	char line[256] = "";
	int ends[2];
	FILE *said;

	if (pipe2(ends, O_CLOEXEC))
		return false;
	scene->metrics = fork();
	if (scene->metrics == 0)
		run_metrics(scene, ends[1]);
	close(ends[1]);
	said = fdopen(ends[0], "r");
	while (!port && said && fgets(line, sizeof(line), said))
		sscanf(line, "kvtmetricsd: serving http://127.0.0.1:%u/", &port);
	if (said)
		fclose(said);
	scene->metrics_port = (uint16_t)port;
	return port != 0;
}

static void stop_metrics(struct scene *scene)
{
	if (scene->metrics <= 0)
		return;
	kill(scene->metrics, SIGTERM);
	waitpid(scene->metrics, NULL, 0);
	scene->metrics = 0;
}

/* ---- the attacker */

static void keep_off(int daemon_cpu)
{
	cpu_set_t set;

	if (daemon_cpu < 0 || sched_getaffinity(0, sizeof(set), &set))
		return;
	CPU_CLR((unsigned int)daemon_cpu, &set);
	if (CPU_COUNT(&set))
		sched_setaffinity(0, sizeof(set), &set);
}

/* Open kvtstored while its folder can be searched: the attacker's uid may not be allowed to. */
static void open_store(const struct scene *scene, struct attack_run *run, char *path, size_t bytes)
{
	char program[4096];

	kvt_own_store_program(scene->options->daemon, program, sizeof(program));
	snprintf(path, bytes, "/proc/self/fd/%d", open(program, O_PATH | O_CLOEXEC));
	run->store_program = path;
}

/* Become the attacker. The daemon is under test, not the scheduler: with `yield`, attackers run
 * only when nothing else does. */
static void be_attacker(struct scene *scene, pid_t parent)
{
	struct attack_run run = { .socket_path = scene->daemon.socket_path,
				  .directory = scene->daemon.directory,
				  .metrics_port = scene->metrics_port,
				  .progress = scene->progress };
	const struct sched_param none = { 0 };
	char store_program[64];
	struct rlimit files;

	setpgid(0, 0);
	keep_off(scene->options->daemon_cpu);
	if (scene->options->yield)
		sched_setscheduler(0, SCHED_IDLE, &none);
	else
		setpriority(PRIO_PROCESS, 0, 10);
	if (!getrlimit(RLIMIT_NOFILE, &files)) {
		files.rlim_cur = files.rlim_max;
		setrlimit(RLIMIT_NOFILE, &files);
	}
	if (scene->attack->needs & ATTACK_STORE)
		open_store(scene, &run, store_program, sizeof(store_program));
	attack_become(scene->result->same_uid ? INNOCENT_UID : ATTACKER_UID, parent);
	signal(SIGPIPE, SIG_IGN);
	scene->attack->run(&run);
	attack_hold();
}

static void start_attacker(struct scene *scene)
{
	pid_t parent = getpid();

	fflush(NULL);
	scene->progress = attack_shared(sizeof(*scene->progress));
	prctl(PR_SET_CHILD_SUBREAPER, 1); /* adopt the attacker's children */
	scene->attacker = fork();
	if (scene->attacker == 0)
		be_attacker(scene, parent);
	setpgid(scene->attacker, scene->attacker); /* parent and child both do it (race) */
}

static void stop_attacker(struct scene *scene)
{
	if (scene->attacker <= 0)
		return;
	kill(-scene->attacker, SIGKILL);
	while (waitpid(-scene->attacker, NULL, 0) > 0 || errno == EINTR)
		continue;
	scene->result->rounds = scene->progress->rounds;
	munmap(scene->progress, sizeof(*scene->progress));
	scene->attacker = 0;
}

/* ---- phases */

/* Run a phase until the innocent client has done its work and the time has passed. */
static bool phase(struct scene *scene, enum attack_phase which)
{
	const struct attack_options *options = scene->options;
	uint64_t begin = kvt_now_ns(), cycle_ns = begin, visit_ns = begin, now;
	struct attack_done done, seen = { 0 };

	attack_client_phase(scene->client, which);
	do {
		if (!attack_client_wait(scene->client))
			return false;
		done = attack_client_done(scene->client);
		now = kvt_now_ns();
		cycle_ns = done.cycles != seen.cycles ? now : cycle_ns;
		visit_ns = done.visits != seen.visits ? now : visit_ns;
		seen = done;
		if (now - cycle_ns > STILL_NS || now - visit_ns > STILL_NS) {
			fail(scene, "the innocent %s stands still",
			     now - cycle_ns > STILL_NS ? "client" : "newcomer");
			return false;
		}
	} while (done.cycles < options->cycles || done.visits < options->visits ||
		 now - begin < options->ns);
	return true;
}

/* Wait until `*word` is at least `least`; false when that takes too long. */
static bool await(struct scene *scene, const uint32_t *word, uint32_t least)
{
	uint64_t begin = kvt_now_ns();

	while (kvt_load_acquire(word) < least)
		if (!attack_client_wait(scene->client) || kvt_now_ns() - begin > LAND_NS)
			return false;
	return true;
}

static bool attack(struct scene *scene)
{
	attack_client_phase(scene->client, ATTACK_SETUP);
	start_attacker(scene);
	if (!await(scene, &scene->progress->ready, 1))
		return false;
	return phase(scene, ATTACK_BESIDE) &&
	       await(scene, &scene->progress->rounds, scene->attack->rounds);
}

/* ---- afterwards */

static struct kvt_client *look(struct scene *scene)
{
	struct kvt_options options = KVT_OPTIONS_INIT;
	struct kvt_client *client;
	struct kvt_error error;

	options.socket_path = scene->daemon.socket_path;
	options.flags = KVT_HELLO_OBSERVE;
	options.timeout_ns = STILL_NS;
	if (!kvt_client_connect(&client, &options, &error))
		return client;
	fail(scene, "the operator cannot connect: %s", error.text);
	return NULL;
}

/* Wait until `sessions` sessions are left and nothing is in quarantine, then audit. */
static void settle(struct scene *scene, uint64_t sessions)
{
	struct kvt_message_admin request = { .what = KVT_ADMIN_SETTLED }, audit = { 0 };
	struct kvt_client *client = look(scene);
	uint64_t begin = kvt_now_ns();
	struct kvt_admin_status status = { 0 };
	char text[4096] = "";
	bool settled = false;

	while (client && !settled && kvt_now_ns() - begin < SETTLE_NS) {
		request.what = KVT_ADMIN_SETTLED;
		if (kvt_admin(client, &request, NULL, 0, &status, sizeof(status)) != 1)
			break;
		settled = status.counters.live_sessions <= sessions &&
			  status.counters.quarantined_pages == 0 &&
			  (sessions || status.counters.private_pages == 0);
	}
	if (client && !settled)
		fail(scene, "left behind: %llu sessions, %llu private and %llu quarantined pages",
		     (unsigned long long)status.counters.live_sessions,
		     (unsigned long long)status.counters.private_pages,
		     (unsigned long long)status.counters.quarantined_pages);
	audit.what = KVT_ADMIN_AUDIT;
	if (settled && (kvt_admin(client, &audit, NULL, 0, text, sizeof(text) - 1) < 0 ||
			audit.total))
		fail(scene, "audit: %llu problems: %s", (unsigned long long)audit.total, text);
	if (client)
		kvt_client_close(client, KVT_IDLE);
}

static void play(struct scene *scene)
{
	bool works;

	scene->client = attack_client_start(scene->options, scene->daemon.socket_path,
					    scene->metrics_port);
	works = phase(scene, ATTACK_ALONE) && attack(scene);
	if (works)
		attack_client_phase(scene->client, ATTACK_AFTER);
	stop_attacker(scene);
	if (works) {
		settle(scene, 1); /* a visitor may be connected */
		phase(scene, ATTACK_AFTER);
	} else {
		scene->result->failed = true;
	}
	attack_client_stop(scene->client, scene->result);
	if (!works && scene->result->rounds < scene->attack->rounds && !scene->result->why[0])
		fail(scene, "the attack did not land: %u of %u rounds", scene->result->rounds,
		     scene->attack->rounds);
	if (works)
		settle(scene, 0);
}

void attack_play(const struct attack *attack, const struct attack_options *options,
		 struct attack_result *ret_result)
{
	struct scene scene = { .attack = attack, .options = options, .result = ret_result };

	*ret_result = (struct attack_result){ 0 };
	ret_result->same_uid = getuid() != 0 ||
			       !(options->two_uids || attack->needs & ATTACK_TAKES);
	if (ret_result->same_uid && attack->needs & ATTACK_TAKES) {
		ret_result->skipped = true;
		snprintf(ret_result->why, sizeof(ret_result->why),
			 "needs another uid, which this process cannot take");
		return;
	}
	if (!start_daemon(&scene))
		return;
	if (attack->needs & ATTACK_METRICS && !start_metrics(&scene)) {
		ret_result->skipped = true;
		snprintf(ret_result->why, sizeof(ret_result->why), "kvtmetricsd is not built");
	} else {
		play(&scene);
	}
	stop_metrics(&scene);
	stop_daemon(&scene);
}
