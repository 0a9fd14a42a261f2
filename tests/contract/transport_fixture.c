/* SPDX-License-Identifier: Apache-2.0 */
#include "transport_fixture.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/buf.h"
#include "content.h"
#include "engine/engine.h"
#include "tmpdir.h"
#include "transport/transport.h"

const char *transport_name = "tcp", *transport_args;
bool transport_is_remote = true, transport_is_shared;

static char *directory;
static bool is_child; /* has no test to fail: exits instead */
static char uri[4096];

void fixture_check(enum shoal_status expected, enum shoal_status actual, const struct shoal_error *error,
                   const char *what, const char *file, int line)
{
    if (actual == expected)
        return;
    print_error("%s: expected %s, got %s%s%s\n", what, shoal_status_name(expected), shoal_status_name(actual),
                actual == SHOAL_OK ? "" : ": ", actual == SHOAL_OK ? "" : error->message);
    if (is_child)
        _exit(1);
    _fail(file, line);
}

#define CHILD_MARK "SHOAL_FIXTURE_CHILD" /* in the environment of a child */

int fixture_setup(void **state)
{
    (void)state;
    if (getenv(CHILD_MARK)) { /* each child would make children of its own */
        fprintf(stderr, "main must call fixture_run_child first\n");
        _exit(1);
    }
    directory = tmpdir_make();
    snprintf(uri, sizeof uri, "sqlite:%s/meta.db", directory);
    return 0;
}

int fixture_teardown(void **state)
{
    (void)state;
    tmpdir_remove(directory);
    directory = NULL;
    return 0;
}

const char *fixture_uri(void)
{
    return uri;
}

struct shoal_engine_config fixture_config(void)
{
    return (struct shoal_engine_config){.struct_size = sizeof(struct shoal_engine_config),
                                        .metadata_uri = uri,
                                        .server_name = "127.0.0.1",
                                        .protocol = "tcp", /* and in front of it what is under test */
                                        .progress_timeout_ms = 20000};
}

struct shoal_engine *engine_make(const struct shoal_engine_config *config)
{
    struct shoal_engine_config default_config = fixture_config();
    struct shoal_call call = {.struct_size = sizeof call, .timeout_ms = PATIENCE_MS};
    struct shoal_engine *engine = NULL;
    struct shoal_error error;

    assert_ok(shoal_engine_create(config ? config : &default_config, &call, &engine, &error), &error);
    assert_ok(shoal_engine_install_transport(engine, transport_name, transport_args, &error), &error);
    return engine;
}

uint8_t *memory_make(size_t len)
{
    void *memory = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

    assert_true(memory != MAP_FAILED);
    return memory;
}

uint8_t *memory_make_for(struct shoal_engine *engine, size_t len)
{
    struct shoal_error error;
    void *memory = NULL;

    if (!transport_is_shared)
        return memory_make(len);
    assert_ok(engine_memory_alloc(engine, len, false, &memory, &error), &error);
    return memory;
}

void memory_drop_of(struct shoal_engine *engine, uint8_t *memory, size_t len)
{
    if (!transport_is_shared)
        memory_drop(memory, len);
    else if (engine)
        engine_memory_free(engine, memory);
}

void memory_drop(uint8_t *memory, size_t len)
{
    assert_int_equal(munmap(memory, len), 0);
}

enum shoal_status transfer(struct shoal_engine *engine, struct shoal_segment *segment, enum shoal_op op, void *local,
                           const void *remote, uint64_t key, uint64_t len, struct shoal_error *error)
{
    struct shoal_request request = {.op = op,
                                    .segment = segment,
                                    .local = local,
                                    .remote_addr = (uint64_t)(uintptr_t)remote,
                                    .remote_key = key,
                                    .len_bytes = len};
    struct shoal_batch *batch = NULL;
    enum shoal_status status;

    assert_ok(shoal_batch_create(engine, 1, &batch, error), error);
    assert_ok(shoal_batch_submit(batch, &request, 1, error), error);
    status = shoal_batch_wait(batch, PATIENCE_MS, error);
    shoal_batch_destroy(batch);
    return status;
}

struct child_hello {
    char name[320];
    void *memory;
};

/* A program of its own rather than a mere fork: libraries with threads (UCX) do not survive one. Arguments: "child",
 * transport, its arguments ("" for none), metadata URI, server name, lease ms, length, seed, two descriptors. */
enum {
    CHILD_TRANSPORT = 2,
    CHILD_ARGS,
    CHILD_URI,
    CHILD_NAME,
    CHILD_LEASE,
    CHILD_LEN,
    CHILD_SEED,
    CHILD_OUT,
    CHILD_IN
};
#define CHILD_ARGC (CHILD_IN + 1)

void fixture_run_child(int argc, char **argv)
{
    struct shoal_engine_config config = fixture_config();
    struct child_hello hello = {.name = ""};
    struct shoal_engine *engine;
    struct shoal_error error;
    size_t len;
    char byte;

    if (argc != CHILD_ARGC || strcmp(argv[1], "child") != 0)
        return;
    is_child = true;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    transport_name = argv[CHILD_TRANSPORT];
    transport_args = argv[CHILD_ARGS][0] ? argv[CHILD_ARGS] : NULL;
    config.metadata_uri = argv[CHILD_URI];
    config.server_name = argv[CHILD_NAME];
    config.lease_ttl_ms = strtoll(argv[CHILD_LEASE], NULL, 10);
    len = strtoull(argv[CHILD_LEN], NULL, 10);
    transport_is_shared = getenv("SHOAL_LOCAL_CMA") != NULL; /* inherited, and set for that only */
    engine = engine_make(&config);
    hello.memory = memory_make_for(engine, len);
    content_fill(hello.memory, len, strtoull(argv[CHILD_SEED], NULL, 10), 0);
    assert_ok(shoal_engine_register_memory(engine, hello.memory, len, NULL,
                                           SHOAL_ACCESS_REMOTE_READ | SHOAL_ACCESS_REMOTE_WRITE, NULL, &error),
              &error);
    snprintf(hello.name, sizeof hello.name, "%s", shoal_engine_server_name(engine));
    if (write(atoi(argv[CHILD_OUT]), &hello, sizeof hello) != (ssize_t)sizeof hello)
        _exit(1);
    while (read(atoi(argv[CHILD_IN]), &byte, 1) < 0 && errno == EINTR)
        ;
    _exit(0);
}

static struct child start(const struct shoal_engine_config *config, size_t len, uint64_t seed)
{
    char lease[24], length[24], seed_text[24], out[16], in[16];
    char *argv[CHILD_ARGC + 1] = {"transport_contract",
                                  "child",
                                  (char *)transport_name,
                                  transport_args ? (char *)transport_args : "",
                                  (char *)config->metadata_uri,
                                  (char *)config->server_name,
                                  lease,
                                  length,
                                  seed_text,
                                  out,
                                  in};
    struct child child = {.len = len};
    struct child_hello hello;
    int to_parent[2], to_child[2];

    assert_int_equal(pipe2(to_parent, O_CLOEXEC), 0);
    assert_int_equal(pipe2(to_child, O_CLOEXEC), 0);
    snprintf(lease, sizeof lease, "%lld", (long long)config->lease_ttl_ms);
    snprintf(length, sizeof length, "%zu", len);
    snprintf(seed_text, sizeof seed_text, "%llu", (unsigned long long)seed);
    snprintf(out, sizeof out, "%d", to_parent[1]);
    snprintf(in, sizeof in, "%d", to_child[0]);
    child.pid = fork();
    assert_true(child.pid >= 0);
    if (child.pid == 0) {
        fcntl(to_parent[1], F_SETFD, 0);
        fcntl(to_child[0], F_SETFD, 0);
        setenv(CHILD_MARK, "1", 1);
        execv("/proc/self/exe", argv);
        _exit(1);
    }
    close(to_parent[1]);
    close(to_child[0]);
    assert_int_equal(read(to_parent[0], &hello, sizeof hello), sizeof hello);
    close(to_parent[0]);
    child.control = to_child[1];
    child.memory = hello.memory;
    memcpy(child.name, hello.name, sizeof child.name);
    return child;
}

struct child child_start(size_t len, uint64_t seed, const char *name)
{
    struct shoal_engine_config config = fixture_config();

    if (name)
        config.server_name = name;
    return start(&config, len, seed);
}

struct child child_start_with(const char *metadata_uri, int64_t lease_ttl_ms)
{
    struct shoal_engine_config config = fixture_config();

    config.metadata_uri = metadata_uri;
    config.lease_ttl_ms = lease_ttl_ms;
    return start(&config, 4096, 1);
}

void child_pause(const struct child *child)
{
    int status = 0;

    assert_int_equal(kill(child->pid, SIGSTOP), 0);
    assert_int_equal(waitpid(child->pid, &status, WUNTRACED), child->pid);
    assert_true(WIFSTOPPED(status));
}

void child_stop(struct child *child)
{
    if (child->pid <= 0)
        return;
    kill(child->pid, SIGKILL);
    waitpid(child->pid, NULL, 0);
    close(child->control);
    child->pid = 0;
}

void fixture_breathe(void)
{
    nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
}

uint64_t engine_metric(struct shoal_engine *engine, const char *sample)
{
    size_t len = strlen(sample);
    const char *at;
    uint64_t value;
    struct buf text;

    buf_init(&text, 1u << 20);
    assert_true(engine_metrics(engine, &text) && buf_append(&text, "", 1));
    at = (const char *)text.data;
    while (at && (strncmp(at, sample, len) != 0 || at[len] != ' ')) {
        at = strchr(at, '\n');
        at = at ? at + 1 : NULL;
    }
    if (!at)
        fail_msg("there is no %s in the metrics", sample);
    value = strtoull(at + len, NULL, 10);
    buf_release(&text);
    return value;
}

bool fixture_has_ucx(void)
{
    const struct transport_ops *ops = transport_find("ucx");
    bool has_library = false;
    int result = 0;
    pid_t pid = fork(); /* what UCX leaves behind when it is unloaded would count as a leak */

    if (pid == 0)
        _exit(dlopen("libucp.so.0", RTLD_LAZY | RTLD_LOCAL) ? 0 : 1);
    if (pid > 0 && waitpid(pid, &result, 0) == pid)
        has_library = WIFEXITED(result) && WEXITSTATUS(result) == 0;
    if (has_library && ops && ops->caps) /* a build without UCX knows the name, but can do nothing */
        return true;
    fprintf(stderr, has_library ? "Shoal was built without UCX\n" : "UCX is not installed (libucp.so.0)\n");
    return false;
}
