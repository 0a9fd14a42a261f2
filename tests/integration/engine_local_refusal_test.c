/* SPDX-License-Identifier: Apache-2.0 */
/* Where one process may not read the other's memory, or is not on the same host as far as the network goes: bytes still
 * arrive, over files or TCP, and it is said why.
 *
 * Each case runs in processes of its own, forked before there are threads: a system call filter cannot be taken off. */
#include "../contract/transport_fixture.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/buf.h"
#include "content.h"
#include "engine/engine.h"
#include "netns.h"

#define LEN (1u << 20)
#define READ_WRITE (SHOAL_ACCESS_REMOTE_READ | SHOAL_ACCESS_REMOTE_WRITE)

/* Of a process without a test to fail. */
#define CHECK(condition)                                                                                               \
    do {                                                                                                               \
        if (!(condition)) {                                                                                            \
            (void)fprintf(stderr, "%s:%d: not so: %s\n", __FILE__, __LINE__, #condition);                              \
            _exit(1);                                                                                                  \
        }                                                                                                              \
    } while (0)

/* What a container or a ptrace scope does: EPERM. */
static void refuse_attaching(void)
{
    struct sock_filter code[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_process_vm_readv, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {.len = sizeof code / sizeof code[0], .filter = code};

    CHECK(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0);
    CHECK(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0);
}

struct side {
    bool is_filtered;
    bool is_shared;  /* its memory can be passed as a file */
    bool is_limited; /* has a rate limit */
    bool has_own_pids;
};

struct source {
    char name[320], address[64];
    uint64_t instance;
    void *memory, *scratch; /* READ; WRITE */
};

static struct shoal_engine *side_engine(const struct side *side, const char *host)
{
    struct shoal_engine_config config = {.struct_size = sizeof config,
                                         .metadata_uri = fixture_uri(),
                                         .server_name = host,
                                         .download_limit_bytes_per_s = side->is_limited ? 1ull << 30 : 0};
    struct shoal_engine *engine = NULL;
    struct shoal_error error;

    if (side->is_filtered)
        refuse_attaching();
    CHECK(shoal_engine_create(&config, NULL, &engine, &error) == SHOAL_OK);
    return engine;
}

static uint8_t *side_memory(const struct side *side, struct shoal_engine *engine, unsigned access)
{
    struct shoal_error error;
    void *memory;

    if (side->is_shared)
        CHECK(engine_memory_alloc(engine, LEN, false, &memory, &error) == SHOAL_OK);
    else
        memory = memory_make(LEN);
    CHECK(shoal_engine_register_memory(engine, memory, LEN, NULL, access, NULL, &error) == SHOAL_OK);
    return memory;
}

static void source_main(const struct side *side, const char *host, int out, int in)
{
    struct source source = {.name = ""};
    struct shoal_engine *engine;
    char byte;

    prctl(PR_SET_PDEATHSIG, SIGKILL);
    engine = side_engine(side, host);
    source.memory = side_memory(side, engine, READ_WRITE);
    content_fill(source.memory, LEN, 1, 0);
    source.scratch = side_memory(side, engine, READ_WRITE);
    snprintf(source.name, sizeof source.name, "%s", shoal_engine_server_name(engine));
    snprintf(source.address, sizeof source.address, "%s", engine_address(engine));
    source.instance = engine_instance(engine);
    CHECK(write(out, &source, sizeof source) == (ssize_t)sizeof source);
    while (read(in, &byte, 1) < 0 && errno == EINTR)
        ;
    _exit(0);
}

static bool has_metric(struct shoal_engine *engine, const char *line)
{
    struct buf out;
    bool is_found;

    buf_init(&out, 1u << 20);
    CHECK(engine_metrics(engine, &out));
    is_found = strstr((const char *)out.data, line) != NULL;
    if (!is_found)
        (void)fprintf(stderr, "%s\n", (const char *)out.data);
    buf_release(&out);
    return is_found;
}

static struct engine_peer_view view;

static void copy_view(void *arg, const struct engine_peer_view *peer)
{
    (void)arg;
    view = *peer;
}

/* How many bytes of READs and WRITEs went which way. */
struct expectation {
    uint64_t local_bytes, tcp_bytes;
    const char *refusal; /* of the local transport; NULL: it is in use for other requests */
    const char *metric;  /* a line that must be there; NULL: none */
};

static enum shoal_status move(struct shoal_engine *engine, struct shoal_segment *segment, enum shoal_op op, void *local,
                              const void *remote)
{
    struct shoal_request request = {
        .op = op, .segment = segment, .local = local, .remote_addr = (uint64_t)(uintptr_t)remote, .len_bytes = LEN};
    struct shoal_batch *batch = NULL;
    struct shoal_error error;
    enum shoal_status status;

    CHECK(shoal_batch_create(engine, 1, &batch, &error) == SHOAL_OK);
    CHECK(shoal_batch_submit(batch, &request, 1, &error) == SHOAL_OK);
    status = shoal_batch_wait(batch, PATIENCE_MS, &error);
    if (status != SHOAL_OK)
        (void)fprintf(stderr, "%s\n", error.message);
    shoal_batch_destroy(batch);
    return status;
}

static void reader_main(const struct side *side, const char *host, const struct source *source,
                        const struct expectation *expected)
{
    struct shoal_engine *engine = side_engine(side, host);
    uint8_t *local = side_memory(side, engine, 0);
    struct shoal_segment *segment;
    struct shoal_error error;

    CHECK(engine_segment_create(engine, source->name, source->address, source->instance, &segment, &error) == SHOAL_OK);
    for (unsigned round = 0; round < 2; round++) {
        memset(local, 0, LEN);
        CHECK(move(engine, segment, SHOAL_OP_READ, local, source->memory) == SHOAL_OK);
        CHECK(content_find_difference(local, LEN, 1, 0) == -1);
        content_fill(local, LEN, 2 + round, 0);
        CHECK(move(engine, segment, SHOAL_OP_WRITE, local, source->scratch) == SHOAL_OK);
        memset(local, 0, LEN);
        CHECK(move(engine, segment, SHOAL_OP_READ, local, source->scratch) == SHOAL_OK);
        CHECK(content_find_difference(local, LEN, 2 + round, 0) == -1);
    }
    CHECK(engine_peers_visit(engine, copy_view, NULL) == SHOAL_OK);
    CHECK(view.path_count == 2 && strcmp(view.paths[0].transport, "local") == 0);
    if (view.paths[0].bytes != expected->local_bytes || view.paths[1].bytes != expected->tcp_bytes)
        (void)fprintf(stderr, "local %llu tcp %llu, refusal %s\n", (unsigned long long)view.paths[0].bytes,
                      (unsigned long long)view.paths[1].bytes, view.paths[0].refusal ? view.paths[0].refusal : "none");
    CHECK(view.paths[0].bytes == expected->local_bytes);
    CHECK(view.paths[1].bytes == expected->tcp_bytes);
    if (expected->refusal)
        CHECK(view.paths[0].refusal && strcmp(view.paths[0].refusal, expected->refusal) == 0 && view.paths[0].text[0]);
    else
        CHECK(!view.paths[0].refusal);
    if (expected->metric)
        CHECK(has_metric(engine, expected->metric));
    shoal_segment_close(segment);
    shoal_engine_destroy(engine);
    _exit(0);
}

/* false: this machine cannot. */
static bool run_case(const struct side *source_side, const struct side *reader_side, const char *host,
                     const struct expectation *expected)
{
    int to_parent[2], to_child[2], result = 0;
    struct source source;
    pid_t first, second;
    ssize_t got;

    assert_int_equal(pipe2(to_parent, O_CLOEXEC), 0);
    assert_int_equal(pipe2(to_child, O_CLOEXEC), 0);
    first = fork();
    if (first == 0) {
        close(to_parent[0]);
        close(to_child[1]);
        if (source_side->has_own_pids) {
            pid_t inner;

            if (unshare(CLONE_NEWPID) != 0)
                _exit(77);
            inner = fork();
            if (inner != 0) { /* a child that nobody else can reach: it goes with its pipe */
                close(to_parent[1]);
                close(to_child[0]);
                waitpid(inner, NULL, 0);
                _exit(0);
            }
        }
        source_main(source_side, host, to_parent[1], to_child[0]);
    }
    assert_true(first > 0);
    close(to_parent[1]);
    close(to_child[0]);
    got = read(to_parent[0], &source, sizeof source);
    close(to_parent[0]);
    if (got == (ssize_t)sizeof source) {
        second = fork();
        if (second == 0)
            reader_main(reader_side, host, &source, expected);
        assert_int_equal(waitpid(second, &result, 0), second);
        assert_true(WIFEXITED(result));
        assert_int_equal(WEXITSTATUS(result), 0);
    }
    close(to_child[1]);
    assert_int_equal(waitpid(first, &result, 0), first);
    if (got != (ssize_t)sizeof source && WIFEXITED(result) && WEXITSTATUS(result) == 77)
        return false;
    assert_int_equal(got, sizeof source);
    return true;
}

#define ALL (6ull * LEN) /* two rounds of READ, WRITE, READ */

static void test_permitted(void **state)
{
    const struct side plain = {0};
    const struct expectation expected = {.local_bytes = ALL};

    (void)state;
    assert_true(run_case(&plain, &plain, "127.0.0.1", &expected));
}

static void test_refused(void **state)
{
    const struct side filtered = {.is_filtered = true};
    const struct expectation expected = {
        .tcp_bytes = ALL,
        .refusal = "cross-memory attach refused",
        .metric = "\nshoal_engine_fallbacks_total{transport=\"local\",reason=\"cross-memory attach refused\"} 1\n"};

    (void)state;
    assert_true(run_case(&filtered, &filtered, "127.0.0.1", &expected));
}

static void test_files(void **state)
{
    const struct side shared = {.is_filtered = true, .is_shared = true};
    const struct side ordinary = {.is_filtered = true};
    const struct expectation all = {.local_bytes = ALL,
                                    .metric = "\nshoal_transport_local_copied_bytes_total{way=\"file\"} 4194304\n"};
    const struct expectation reads = {
        .local_bytes = 4ull * LEN,
        .tcp_bytes = 2ull * LEN,
        .metric = "\nshoal_engine_fallbacks_total{transport=\"local\",reason=\"memory cannot be shared\"} 2\n"};
    const struct expectation writes = {.local_bytes = 2ull * LEN, .tcp_bytes = 4ull * LEN};

    (void)state;
    assert_true(run_case(&shared, &shared, "127.0.0.1", &all));
    assert_true(run_case(&shared, &ordinary, "127.0.0.1", &reads));
    assert_true(run_case(&ordinary, &shared, "127.0.0.1", &writes));
}

/* Only one of the two may read the other: READs, or WRITEs. */
static void test_one_way(void **state)
{
    const struct side filtered = {.is_filtered = true}, plain = {0};
    const struct expectation reads = {.local_bytes = 4ull * LEN, .tcp_bytes = 2ull * LEN};
    const struct expectation writes = {
        .local_bytes = 2ull * LEN,
        .tcp_bytes = 4ull * LEN,
        .metric = "\nshoal_engine_fallbacks_total{transport=\"local\",reason=\"cross-memory attach refused\"} 4\n"};

    (void)state;
    assert_true(run_case(&filtered, &plain, "127.0.0.1", &reads));
    assert_true(run_case(&plain, &filtered, "127.0.0.1", &writes));
}

/* The source does not see the reader's process: it cannot pull. */
static void test_pid_namespace(void **state)
{
    const struct side inner = {.has_own_pids = true}, plain = {0};
    const struct expectation expected = {.local_bytes = 4ull * LEN, .tcp_bytes = 2ull * LEN};

    (void)state;
    if (!run_case(&inner, &plain, "127.0.0.1", &expected))
        skip();
}

static void test_rate_limit(void **state)
{
    const struct side limited = {.is_limited = true}, plain = {0};
    const struct expectation expected = {.tcp_bytes = ALL, .refusal = "rate limit"};

    (void)state;
    assert_true(run_case(&limited, &plain, "127.0.0.1", &expected));
    assert_true(run_case(&plain, &limited, "127.0.0.1", &expected));
}

/* In a process that stays in another network namespace: the instance is not found from there. */
static pid_t start_looking(int netns, int in)
{
    uint64_t instance = 0;
    pid_t pid = fork();

    if (pid != 0)
        return pid;
    CHECK(setns(netns, CLONE_NEWNET) == 0);
    CHECK(read(in, &instance, sizeof instance) == (ssize_t)sizeof instance);
    CHECK(!endpoint_has_local(instance));
    _exit(0);
}

/* Two network namespaces of one host are two places: the local socket of one is not seen in the other. */
static void test_network_namespace(void **state)
{
    struct shoal_engine_config config = {
        .struct_size = sizeof config, .metadata_uri = fixture_uri(), .server_name = "127.0.0.1"};
    int netns = netns_create("ip link set lo up"), result = 0, pipes[2];
    struct shoal_engine *engine = NULL;
    struct shoal_error error;
    uint64_t instance;
    pid_t pid;

    (void)state;
    if (netns < 0)
        skip();
    assert_int_equal(pipe2(pipes, O_CLOEXEC), 0);
    pid = start_looking(netns, pipes[0]);
    assert_ok(shoal_engine_create(&config, NULL, &engine, &error), &error);
    instance = engine_instance(engine);
    assert_true(endpoint_has_local(instance));
    assert_false(endpoint_has_local(instance + 1));
    assert_int_equal(write(pipes[1], &instance, sizeof instance), sizeof instance);
    assert_int_equal(waitpid(pid, &result, 0), pid);
    assert_true(WIFEXITED(result) && WEXITSTATUS(result) == 0);
    shoal_engine_destroy(engine);
    close(pipes[0]);
    close(pipes[1]);
    close(netns);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
#define CASE(fn) cmocka_unit_test_setup_teardown(fn, fixture_setup, fixture_teardown)
        CASE(test_permitted),         CASE(test_refused),       CASE(test_files),
        CASE(test_one_way),           CASE(test_pid_namespace), CASE(test_rate_limit),
        CASE(test_network_namespace),
    };

    return cmocka_run_group_tests_name("local refusals", tests, NULL, NULL);
}
