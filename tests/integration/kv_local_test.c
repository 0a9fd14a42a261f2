/* SPDX-License-Identifier: Apache-2.0 */
/* The local service and its clients: processes that die, lie or are too many, a service that is restarted, memory that
 * is full, calls that are canceled. */
#include "kv_world.h"

#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/buf.h"
#include "kv/client_thin.h"
#include "kv/local_internal.h"

/* Value of a metric of the service. */
static double metric(struct fixture *fixture, const char *name)
{
    char line[128];
    struct buf text;
    const char *at;
    double value = -1;

    snprintf(line, sizeof line, "\n%s ", name);
    buf_init(&text, MIB);
    assert_true(local_service_metrics(fixture->local, &text));
    at = strstr((const char *)text.data, line);
    if (at)
        value = strtod(at + strlen(line), NULL);
    buf_release(&text);
    return value;
}

static void test_the_service_is_restarted(void **state)
{
    struct fixture *fixture = *state;
    uint16_t port = local_service_port(fixture->local);
    void *memory, *wanted = content(3 * MIB, 2);
    uint64_t len;

    EXPECT(OK, shoal_kv_alloc(fixture->third, 3 * MIB, &memory, &error));
    put(fixture->third, "k", 100, 1);
    local_service_destroy(fixture->local);
    fixture->local = NULL;
    EXPECT_SAYING(UNREACHABLE, "local client",
                  shoal_kv_get_into(fixture->third, "k", memory, 100, &patient, &len, &error));
    serve_local(fixture, port, 0);
    check_value(fixture->third, "k", 100, 1);
    put(fixture->a, "l", 3 * MIB, 2);
    EXPECT(OK, shoal_kv_get_into(fixture->third, "l", memory, 3 * MIB, &patient, &len, &error));
    assert_memory_equal(memory, wanted, 3 * MIB);
    assert_true(metric(fixture, "shoal_kv_local_shared_bytes") == 8 * MIB);
    shoal_kv_free(fixture->third, memory);
    free(wanted);
}

static void test_values_when_the_arena_is_full_or_too_small(void **state)
{
    struct fixture *fixture = *state;
    void *all;
    uint64_t len;
    char *buffer = malloc(12 * MIB);
    void *wanted = content(12 * MIB, 1);

    put(fixture->third, "large", 12 * MIB, 1); /* the arena has 8 */
    check_value(fixture->third, "large", 12 * MIB, 1);
    EXPECT(OK, shoal_kv_alloc(fixture->third, 8 * MIB, &all, &error));
    put(fixture->third, "middle", 500000, 2);
    put(fixture->third, "small", 500, 3);
    check_value(fixture->third, "middle", 500000, 2);
    check_value(fixture->third, "small", 500, 3);
    EXPECT(OK, shoal_kv_get_into(fixture->third, "large", buffer, 12 * MIB, &patient, &len, &error));
    assert_memory_equal(buffer, wanted, 12 * MIB);
    shoal_kv_free(fixture->third, all);
    WAIT_UNTIL(metric(fixture, "shoal_kv_local_shared_bytes") == 8 * MIB); /* what was mapped for them is gone */
    free(buffer);
    free(wanted);
}

static void test_no_more_processes_than_allowed(void **state)
{
    struct fixture *fixture = *state;
    struct shoal_kv *more[7], *last = NULL;
    char address[64];
    const struct shoal_kv_config config = {.struct_size = sizeof config, .client = address};

    snprintf(address, sizeof address, "127.0.0.1:%u", local_service_port(fixture->local));
    for (size_t i = 0; i < 7; i++)
        more[i] = open_thin(fixture, MIB);
    EXPECT_SAYING(UNREACHABLE, "no more processes", shoal_kv_open(&config, &patient, &last, &error));
    assert_true(metric(fixture, "shoal_kv_local_refused_total") == 1);
    shoal_kv_close(more[0]);
    WAIT_UNTIL(metric(fixture, "shoal_kv_local_sessions") == 7);
    more[0] = open_thin(fixture, MIB);
    put(more[0], "k", 100, 1);
    for (size_t i = 0; i < 7; i++)
        shoal_kv_close(more[i]);
    WAIT_UNTIL(metric(fixture, "shoal_kv_local_shared_bytes") == 8 * MIB);
}

static void test_more_memory_than_allowed(void **state)
{
    struct fixture *fixture = *state;
    char address[64];
    const struct shoal_kv_config config = {.struct_size = sizeof config, .client = address, .arena_bytes = 64 * MIB};
    struct shoal_kv *kv = NULL;

    shoal_kv_close(fixture->third);
    local_service_destroy(fixture->local);
    serve_local(fixture, 0, 32 * MIB);
    snprintf(address, sizeof address, "127.0.0.1:%u", local_service_port(fixture->local));
    EXPECT_SAYING(LIMIT, "shared memory", shoal_kv_open(&config, &patient, &kv, &error));
    fixture->third = open_thin(fixture, 16 * MIB);
    put(fixture->third, "k", 100000, 1);
    check_value(fixture->third, "k", 100000, 1);
}

/* The child only makes system calls: threads of this process do not exist there. */
static void test_a_process_that_is_killed(void **state)
{
    struct fixture *fixture = *state;
    const char *self = "/proc/self/exe";
    char port[16], ready;
    int pipe_fds[2];
    pid_t child;

    snprintf(port, sizeof port, "%u", local_service_port(fixture->local));
    assert_int_equal(pipe(pipe_fds), 0);
    child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        dup2(pipe_fds[1], STDOUT_FILENO);
        execl(self, self, "child", port, (char *)NULL);
        _exit(127);
    }
    close(pipe_fds[1]);
    assert_int_equal(read(pipe_fds[0], &ready, 1), 1);
    assert_true(metric(fixture, "shoal_kv_local_sessions") == 2);
    assert_true(metric(fixture, "shoal_kv_local_shared_bytes") == 24 * MIB);
    kill(child, SIGKILL);
    waitpid(child, NULL, 0);
    close(pipe_fds[0]);
    WAIT_UNTIL(metric(fixture, "shoal_kv_local_sessions") == 1);
    WAIT_UNTIL(metric(fixture, "shoal_kv_local_shared_bytes") == 8 * MIB);
    check_value(fixture->third, "of the child", 1000000, 7);
}

static int be_child(const char *port)
{
    char address[64];
    const struct shoal_kv_config config = {.struct_size = sizeof config, .client = address, .arena_bytes = 16 * MIB};
    struct shoal_kv *kv;
    void *data = content(1000000, 7);

    snprintf(address, sizeof address, "127.0.0.1:%s", port);
    if (shoal_kv_open(&config, &patient, &kv, NULL) ||
        shoal_kv_put(kv, "of the child", data, 1000000, NULL, &patient, NULL) || write(STDOUT_FILENO, "r", 1) != 1)
        return 1;
    for (;;)
        pause();
}

/* --- liars --- */

static int connect_raw(struct fixture *fixture)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    size_t len = strlen(fixture->local->socket_name);
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);

    memcpy(address.sun_path + 1, fixture->local->socket_name, len);
    assert_int_equal(
        connect(fd, (const struct sockaddr *)&address, (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + len)),
        0);
    return fd;
}

static bool is_closed(int fd)
{
    struct pollfd waiting = {.fd = fd, .events = POLLIN};
    struct local_answer answer;

    assert_int_equal(poll(&waiting, 1, PATIENCE_MS), 1);
    return recv(fd, &answer, sizeof answer, MSG_DONTWAIT) <= 0;
}

static enum shoal_status answer_of(int fd)
{
    struct pollfd waiting = {.fd = fd, .events = POLLIN};
    struct local_answer answer;

    assert_int_equal(poll(&waiting, 1, PATIENCE_MS), 1);
    assert_int_equal(recv(fd, &answer, sizeof answer, 0), sizeof answer);
    return (enum shoal_status)answer.status;
}

static void send_with(int fd, const struct local_message *message, size_t len, int passed)
{
    union {
        struct cmsghdr header;
        char room[CMSG_SPACE(sizeof(int))];
    } control = {.room = {0}};
    struct iovec part = {(void *)(uintptr_t)message, len};
    struct msghdr header = {.msg_iov = &part, .msg_iovlen = 1};

    if (passed >= 0) {
        header.msg_control = &control;
        header.msg_controllen = CMSG_SPACE(sizeof(int));
        control.header =
            (struct cmsghdr){.cmsg_len = CMSG_LEN(sizeof(int)), .cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS};
        memcpy(CMSG_DATA(&control.header), &passed, sizeof passed);
    }
    assert_int_equal(sendmsg(fd, &header, MSG_NOSIGNAL), len);
}

static void test_processes_that_lie(void **state)
{
    struct fixture *fixture = *state;
    struct local_message hello = {.kind = LOCAL_HELLO}, region = {.kind = LOCAL_ADD_REGION, .number = MIB},
                         nonsense = {.kind = 77};
    int fd = connect_raw(fixture), memory = memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING);

    send_with(fd, &hello, sizeof hello, -1); /* the token is wrong */
    assert_true(is_closed(fd));
    close(fd);
    fd = connect_raw(fixture);
    send_with(fd, &region, sizeof region, memory); /* has not said hello */
    assert_true(is_closed(fd));
    close(fd);
    fd = connect_raw(fixture);
    send_with(fd, &hello, 5, -1); /* cut */
    assert_true(is_closed(fd));
    close(fd);

    memcpy(hello.token, fixture->local->token, sizeof hello.token);
    fd = connect_raw(fixture);
    send_with(fd, &hello, sizeof hello, -1);
    assert_int_equal(answer_of(fd), SHOAL_OK);
    assert_int_equal(ftruncate(memory, MIB), 0);
    send_with(fd, &region, sizeof region, memory); /* not sealed */
    assert_int_equal(answer_of(fd), SHOAL_INVALID_ARGUMENT);
    send_with(fd, &region, sizeof region, -1);
    assert_int_equal(answer_of(fd), SHOAL_INVALID_ARGUMENT);
    send_with(fd, &region, sizeof region, STDERR_FILENO);
    assert_int_equal(answer_of(fd), SHOAL_INVALID_ARGUMENT);
    assert_int_equal(fcntl(memory, F_ADD_SEALS, F_SEAL_SHRINK), 0);
    region.number = MIB + 1; /* longer than it is */
    send_with(fd, &region, sizeof region, memory);
    assert_int_equal(answer_of(fd), SHOAL_INVALID_ARGUMENT);
    region.number = MIB;
    region.region = LOCAL_REGIONS_MAX;
    send_with(fd, &region, sizeof region, memory);
    assert_int_equal(answer_of(fd), SHOAL_INVALID_ARGUMENT);
    region.region = 3;
    send_with(fd, &region, sizeof region, memory);
    assert_int_equal(answer_of(fd), SHOAL_OK);
    send_with(fd, &region, sizeof region, memory); /* twice */
    assert_int_equal(answer_of(fd), SHOAL_INVALID_ARGUMENT);
    assert_true(metric(fixture, "shoal_kv_local_shared_bytes") == 9 * MIB);
    send_with(fd, &nonsense, sizeof nonsense, -1);
    assert_true(is_closed(fd));
    close(fd);
    close(memory);
    WAIT_UNTIL(metric(fixture, "shoal_kv_local_shared_bytes") == 8 * MIB);
    put(fixture->third, "k", 100000, 1);
    check_value(fixture->third, "k", 100000, 1);
}

static void test_places_outside_the_shared_memory(void **state)
{
    struct fixture *fixture = *state;
    static const struct {
        uint32_t region;
        uint64_t offset, len;
    } wrong[] = {
        {0, 8 * MIB - 10, 11}, {0, UINT64_MAX - 5, 10}, {0, 0, 8 * MIB + 1}, {1, 0, 1}, {16, 0, 1}, {99, 0, 0}};

    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        Shoal__Wire__LocalItemsRequest request = SHOAL__WIRE__LOCAL_ITEMS_REQUEST__INIT;
        Shoal__Wire__LocalCaller caller = SHOAL__WIRE__LOCAL_CALLER__INIT;
        Shoal__Wire__LocalItem item = SHOAL__WIRE__LOCAL_ITEM__INIT, *items = &item;
        Shoal__Wire__LocalPlace place = SHOAL__WIRE__LOCAL_PLACE__INIT;
        struct call call = {.deadline_ms = deadline_after_ms(PATIENCE_MS)};
        struct buf body;

        buf_init(&body, MIB);
        place.region = wrong[i].region;
        place.offset_bytes = wrong[i].offset;
        place.len_bytes = wrong[i].len;
        item.key = "k";
        item.place = &place;
        request.caller = &caller;
        request.items = &items;
        request.n_items = 1;
        EXPECT_SAYING(
            INVALID_ARGUMENT, "outside",
            thin_call(fixture->third->thin, LOCAL_METHOD_PUT, &request.base, &caller, &call, &body, NULL, &error));
        EXPECT_SAYING(
            INVALID_ARGUMENT, "outside",
            thin_call(fixture->third->thin, LOCAL_METHOD_GET, &request.base, &caller, &call, &body, NULL, &error));
        buf_release(&body);
    }
    check_absent(fixture->third, "k");
}

static void test_counters_outside_the_shared_memory(void **state)
{
    struct fixture *fixture = *state;
    static const struct {
        uint32_t region;
        uint64_t offset, len;
    } wrong[] = {{0, 8 * MIB - 8, 16}, {0, UINT64_MAX - 7, 16}, {0, 4, 16}, {0, 8, 8}, {0, 8, 24}, {1, 0, 16}};

    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        Shoal__Wire__LocalItemsRequest request = SHOAL__WIRE__LOCAL_ITEMS_REQUEST__INIT;
        Shoal__Wire__LocalCaller caller = SHOAL__WIRE__LOCAL_CALLER__INIT;
        Shoal__Wire__LocalItem item = SHOAL__WIRE__LOCAL_ITEM__INIT, *items = &item;
        Shoal__Wire__LocalPlace progress = SHOAL__WIRE__LOCAL_PLACE__INIT;
        struct call call = {.deadline_ms = deadline_after_ms(PATIENCE_MS)};
        struct buf body;

        buf_init(&body, MIB);
        progress.region = wrong[i].region;
        progress.offset_bytes = wrong[i].offset;
        progress.len_bytes = wrong[i].len;
        item.key = "k";
        request.caller = &caller;
        request.items = &items;
        request.n_items = 1;
        request.progress = &progress;
        EXPECT_SAYING(
            INVALID_ARGUMENT, "outside",
            thin_call(fixture->third->thin, LOCAL_METHOD_PUT, &request.base, &caller, &call, &body, NULL, &error));
        buf_release(&body);
    }
    check_absent(fixture->third, "k");
}

/* --- cancellation --- */

struct waiting_get {
    struct shoal_kv *kv;
    struct shoal_cancel *cancel;
    enum shoal_status status;
};

static void *wait_for_master(void *arg)
{
    struct waiting_get *get = arg;
    const struct shoal_call call = {.struct_size = sizeof call, .timeout_ms = -1, .cancel = get->cancel};
    void *data;
    uint64_t len;

    get->status = shoal_kv_get(get->kv, "never", &call, &data, &len, NULL);
    return NULL;
}

static void test_a_running_call_is_canceled(void **state)
{
    struct fixture *fixture = *state;
    struct waiting_get get = {.kv = fixture->third, .status = SHOAL_INTERNAL};
    pthread_t thread;

    kv_master_stop(&fixture->master);
    assert_int_equal(shoal_cancel_create(&get.cancel), SHOAL_OK);
    assert_int_equal(pthread_create(&thread, NULL, wait_for_master, &get), 0);
    WAIT_UNTIL(metric(fixture, "shoal_kv_local_running") == 1);
    shoal_cancel_trigger(get.cancel);
    pthread_join(thread, NULL);
    assert_int_equal(get.status, SHOAL_CANCELED);
    WAIT_UNTIL(metric(fixture, "shoal_kv_local_running") == 0);
    shoal_cancel_destroy(get.cancel);
}

static void test_the_service_ends_while_calls_run(void **state)
{
    struct fixture *fixture = *state;
    struct waiting_get get = {.kv = fixture->third, .status = SHOAL_OK};
    pthread_t thread;

    kv_master_stop(&fixture->master);
    assert_int_equal(pthread_create(&thread, NULL, wait_for_master, &get), 0);
    WAIT_UNTIL(metric(fixture, "shoal_kv_local_running") == 1);
    local_service_destroy(fixture->local);
    fixture->local = NULL;
    pthread_join(thread, NULL);
    assert_true(get.status == SHOAL_CANCELED || get.status == SHOAL_UNREACHABLE);
}

#define TEST(function) cmocka_unit_test_setup_teardown(function, kv_world_setup, kv_world_teardown)

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        TEST(test_the_service_is_restarted),         TEST(test_values_when_the_arena_is_full_or_too_small),
        TEST(test_no_more_processes_than_allowed),   TEST(test_more_memory_than_allowed),
        TEST(test_a_process_that_is_killed),         TEST(test_processes_that_lie),
        TEST(test_places_outside_the_shared_memory), TEST(test_counters_outside_the_shared_memory),
        TEST(test_a_running_call_is_canceled),       TEST(test_the_service_ends_while_calls_run),
    };

    if (argc > 2 && strcmp(argv[1], "child") == 0)
        return be_child(argv[2]);
    is_thin = true;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
