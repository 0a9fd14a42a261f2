/* SPDX-License-Identifier: Apache-2.0 */
/* What the KV store is compared with: plain sockets and Redis. */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#include "kv_load.h"
#include "lib/bench.h"

#ifdef BENCH_HAS_HIREDIS
#include <hiredis/hiredis.h>
#endif

/* --- processes and ports --- */

static struct sockaddr_in loopback(uint16_t port)
{
    return (struct sockaddr_in){
        .sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
}

static int listen_any(const char *congestion_control, uint16_t *port_out)
{
    struct sockaddr_in addr = loopback(0);
    socklen_t addr_len = sizeof addr;
    int fd = bench_tcp_socket(congestion_control);
    if (bind(fd, (struct sockaddr *)&addr, sizeof addr) != 0 || listen(fd, (int)KV_THREADS_MAX) != 0 ||
        getsockname(fd, (struct sockaddr *)&addr, &addr_len) != 0)
        bench_die("listen: %s", strerror(errno));
    *port_out = ntohs(addr.sin_port);
    return fd;
}

uint16_t kv_free_port(void)
{
    uint16_t port;
    close(listen_any(NULL, &port));
    return port;
}

int kv_spawn(const char *log_name, char *const *arguments)
{
    char path[512];
    pid_t parent = getpid(), child;
    int fd;
    snprintf(path, sizeof path, "%s/%s", bench_temp_dir(), log_name);
    fd = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    if (fd < 0)
        bench_die("%s: %s", path, strerror(errno));
    fflush(stdout);
    child = fork();
    if (child < 0)
        bench_die("fork: %s", strerror(errno));
    if (child == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (getppid() != parent || dup2(fd, 1) < 0 || dup2(fd, 2) < 0)
            _exit(127);
        execvp(arguments[0], arguments);
        fprintf(stderr, "%s: %s\n", arguments[0], strerror(errno));
        _exit(127);
    }
    close(fd);
    return child;
}

static void *plain_alloc(uint64_t len_bytes)
{
    return bench_alloc(len_bytes);
}

/* --- plain sockets --- */

struct raw_head {
    uint64_t op, number, len_bytes;
};

static struct {
    uint64_t budget_bytes;
    const char *congestion_control;
    uint8_t *memory; /* of the answering process */
    uint16_t port;
} raw;

static uint8_t *raw_place(const struct raw_head *head)
{
    uint64_t places = raw.budget_bytes / head->len_bytes;
    return raw.memory + (places ? head->number % places : 0) * head->len_bytes;
}

/* false: the other side has closed. */
static bool receive_all(int fd, void *to, uint64_t len)
{
    for (uint8_t *at = to; len;) {
        ssize_t got = recv(fd, at, len, MSG_WAITALL);
        if (got < 0 && errno == EINTR)
            continue;
        if (got <= 0)
            return false;
        at += got;
        len -= (uint64_t)got;
    }
    return true;
}

static void *raw_answer(void *arg)
{
    int fd = (int)(intptr_t)arg;
    struct raw_head head;
    while (receive_all(fd, &head, sizeof head)) {
        if (head.op == KV_GET) {
            bench_raw_send(fd, raw_place(&head), head.len_bytes);
        } else {
            if (!receive_all(fd, raw_place(&head), head.len_bytes))
                break;
            bench_raw_send(fd, &head.number, sizeof head.number);
        }
    }
    close(fd);
    return NULL;
}

static void raw_serve(int control)
{
    int listener = listen_any(raw.congestion_control, &raw.port), on = 1;
    signal(SIGPIPE, SIG_IGN);
    raw.memory = bench_alloc(raw.budget_bytes);
    bench_send(control, &raw.port, sizeof raw.port);
    for (;;) {
        pthread_t thread;
        int fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
        if (fd < 0)
            bench_die("accept: %s", strerror(errno));
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
        if (pthread_create(&thread, NULL, raw_answer, (void *)(intptr_t)fd) != 0)
            bench_die("cannot start a thread");
        pthread_detach(thread);
    }
}

static void *raw_open(void)
{
    struct sockaddr_in addr = loopback(raw.port);
    int fd = bench_tcp_socket(raw.congestion_control), on = 1;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    if (connect(fd, (struct sockaddr *)&addr, sizeof addr) != 0)
        bench_die("connect: %s", strerror(errno));
    return (void *)(intptr_t)fd;
}

static void raw_close(void *connection)
{
    close((int)(intptr_t)connection);
}

static void raw_put(void *connection, uint64_t number, const void *buffer, uint64_t len_bytes)
{
    int fd = (int)(intptr_t)connection;
    struct raw_head head = {KV_PUT, number, len_bytes};
    struct iovec parts[] = {{&head, sizeof head}, {(void *)(uintptr_t)buffer, (size_t)len_bytes}};
    struct msghdr message = {.msg_iov = parts, .msg_iovlen = 2};
    uint64_t answer;
    ssize_t sent = sendmsg(fd, &message, MSG_NOSIGNAL);
    if (sent < (ssize_t)sizeof head)
        bench_die("send: %s", strerror(errno));
    bench_raw_send(fd, (const uint8_t *)buffer + (sent - (ssize_t)sizeof head),
                   len_bytes + sizeof head - (uint64_t)sent);
    if (!receive_all(fd, &answer, sizeof answer) || answer != number)
        bench_die("raw: a wrong answer");
}

static void raw_get(void *connection, uint64_t number, void *buffer, uint64_t len_bytes)
{
    int fd = (int)(intptr_t)connection;
    struct raw_head head = {KV_GET, number, len_bytes};
    bench_raw_send(fd, &head, sizeof head);
    if (!receive_all(fd, buffer, len_bytes))
        bench_die("raw: the other side closed early");
}

static void raw_clear(void)
{
}

static const struct kv_system raw_system = {
    .name = "raw",
    .open = raw_open,
    .close = raw_close,
    .alloc = plain_alloc,
    .free = bench_free,
    .put = raw_put,
    .get = raw_get,
    .clear = raw_clear,
};

const struct kv_system *kv_raw_start(uint64_t budget_bytes, const char *congestion_control)
{
    raw.budget_bytes = budget_bytes;
    raw.congestion_control = congestion_control;
    struct bench_side side = bench_side_start(raw_serve, NULL, 0);
    bench_receive(side.control, &raw.port, sizeof raw.port);
    return &raw_system;
}

/* --- Redis --- */

#ifdef BENCH_HAS_HIREDIS

#define REDIS_ATTEMPTS 5
#define REDIS_START_S 20

static struct {
    pid_t pid;
    uint16_t port;
    bool is_over_socket;
    char path[512]; /* of its socket */
} redis;

static redisContext *redis_connect(void)
{
    return redis.is_over_socket ? redisConnectUnix(redis.path) : redisConnect("127.0.0.1", redis.port);
}

static void *redis_open(void)
{
    redisContext *context = redis_connect();
    if (!context || context->err)
        bench_die("redis: %s", context ? context->errstr : "out of memory");
    return context;
}

static void redis_close(void *connection)
{
    redisFree(connection);
}

static void redis_put(void *connection, uint64_t number, const void *buffer, uint64_t len_bytes)
{
    redisContext *context = connection;
    redisReply *reply =
        redisCommand(context, "SET bench/%llu %b", (unsigned long long)number, buffer, (size_t)len_bytes);
    if (!reply || reply->type != REDIS_REPLY_STATUS)
        bench_die("redis: SET: %s", reply ? reply->str : context->errstr);
    freeReplyObject(reply);
}

/* hiredis has the value in memory of its own; it is not copied once more, only its beginning is looked at. */
static void redis_get(void *connection, uint64_t number, void *buffer, uint64_t len_bytes)
{
    redisContext *context = connection;
    redisReply *reply = redisCommand(context, "GET bench/%llu", (unsigned long long)number);
    if (!reply || reply->type != REDIS_REPLY_STRING || (uint64_t)reply->len != len_bytes)
        bench_die("redis: GET: %s", reply ? "a wrong answer" : context->errstr);
    memcpy(buffer, reply->str, len_bytes < sizeof number ? (size_t)len_bytes : sizeof number);
    freeReplyObject(reply);
}

static void redis_clear(void)
{
    redisContext *context = redis_open();
    redisReply *reply = redisCommand(context, "FLUSHALL");
    if (!reply || reply->type != REDIS_REPLY_STATUS)
        bench_die("redis: FLUSHALL: %s", reply ? reply->str : context->errstr);
    freeReplyObject(reply);
    redis_close(context);
}

static const struct kv_system redis_system = {
    .name = "redis",
    .open = redis_open,
    .close = redis_close,
    .alloc = plain_alloc,
    .free = bench_free,
    .put = redis_put,
    .get = redis_get,
    .clear = redis_clear,
};

/* Whether it answers in time; false also if it has ended, as when another process took the port. */
static bool redis_answers(void)
{
    double end_s = bench_now_s() + REDIS_START_S;
    while (bench_now_s() < end_s) {
        redisContext *context = redis_connect();
        redisReply *reply = context && !context->err ? redisCommand(context, "PING") : NULL;
        bool is_up = reply && reply->type == REDIS_REPLY_STATUS;
        freeReplyObject(reply);
        redisFree(context);
        if (is_up)
            return true;
        if (waitpid(redis.pid, NULL, WNOHANG) == redis.pid) {
            redis.pid = 0;
            return false;
        }
        usleep(20000);
    }
    return false;
}

void kv_redis_stop(void)
{
    if (redis.pid > 0) {
        kill(redis.pid, SIGKILL);
        waitpid(redis.pid, NULL, 0);
    }
    redis.pid = 0;
}

const struct kv_system *kv_redis_start(bool is_over_socket)
{
    redis.is_over_socket = is_over_socket;
    snprintf(redis.path, sizeof redis.path, "%s/redis.sock", bench_temp_dir());
    for (int i = 0; i < REDIS_ATTEMPTS; i++) {
        char port[16], dir[512];
        char *const arguments[] = {"redis-server", "--port", port,    "--bind", "127.0.0.1", "--save", "",
                                   "--appendonly", "no",     "--dir", dir,      "--logfile", "",       "--unixsocket",
                                   redis.path,     NULL};
        redis.port = kv_free_port();
        snprintf(port, sizeof port, "%u", redis.port);
        snprintf(dir, sizeof dir, "%s", bench_temp_dir());
        redis.pid = kv_spawn("redis.log", arguments);
        if (redis_answers())
            return &redis_system;
        kv_redis_stop();
    }
    fprintf(stderr, "bench kv: no Redis to compare with: is redis-server installed? (tools/setup --bench)\n");
    return NULL;
}

#else

const struct kv_system *kv_redis_start(bool is_over_socket)
{
    (void)is_over_socket;
    fprintf(stderr, "bench kv: no Redis to compare with: built without hiredis (tools/setup --bench, then again)\n");
    return NULL;
}

void kv_redis_stop(void)
{
}

#endif
