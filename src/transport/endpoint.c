/* SPDX-License-Identifier: Apache-2.0 */
/* Listening, the accepting side of the handshake, and what both sides share. The dialing side is endpoint_dial.c. */
#include "transport/endpoint.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/hostport.h"
#include "base/log.h"
#include "base/random.h"
#include "transport/endpoint_internal.h"

#define LOG_MODULE "endpoint"

#define LISTEN_BACKLOG 512
#define ACCEPTS_PER_TURN 64
#define DEFAULT_MAX_CONNECTIONS 4096
#define DEFAULT_MAX_HANDSHAKES 128
#define DEFAULT_HANDSHAKE_TIMEOUT_MS 5000

/* One accepted connection whose handshake is not finished. */
struct handshake {
    struct list_node node; /* in endpoint->handshakes, oldest first */
    struct endpoint *endpoint;
    struct loop_io io;
    int fd; /* owned */
    int64_t deadline_ms;
    struct hello_reader reader;
    struct hello peer;
    bool is_local;                /* came over the local socket */
    bool is_accepted, is_counted; /* is_counted: has a share of open_connections */
    size_t out_len, out_sent;     /* out_len > 0: the answer is on its way */
    uint8_t out[HELLO_MAX_BYTES];
};

void endpoint_count(uint64_t *counter)
{
    __atomic_fetch_add(counter, 1, __ATOMIC_RELAXED);
}

enum hello_read hello_reader_step(struct hello_reader *reader, int fd, int *errno_out)
{
    for (;;) {
        size_t want = reader->len < HELLO_PREFIX_BYTES ? HELLO_PREFIX_BYTES : reader->frame_len;
        ssize_t got = recv(fd, reader->data + reader->len, want - reader->len, 0);

        if (got < 0) {
            if (errno == EINTR)
                continue;
            *errno_out = errno;
            return errno == EAGAIN || errno == EWOULDBLOCK ? HELLO_READ_AGAIN : HELLO_READ_LOST;
        }
        if (got == 0) {
            *errno_out = 0;
            return HELLO_READ_LOST;
        }
        reader->len += (size_t)got;
        if (reader->len == HELLO_PREFIX_BYTES && hello_frame_len(reader->data, &reader->frame_len) != SHOAL_OK)
            return HELLO_READ_BAD;
        if (reader->len > HELLO_PREFIX_BYTES && reader->len == reader->frame_len)
            return HELLO_READ_DONE;
    }
}

void endpoint_fill_hello(const struct endpoint *endpoint, struct hello *hello)
{
    memset(hello, 0, sizeof *hello);
    hello->version = HELLO_VERSION;
    hello->instance = endpoint->instance;
    memcpy(hello->name, endpoint->name, sizeof hello->name);
    memcpy(hello->cluster, endpoint->cluster, sizeof hello->cluster);
}

/* --- the accepting side --- */

static void handshake_free(struct handshake *handshake)
{
    struct endpoint *endpoint = handshake->endpoint;

    list_remove(&handshake->node);
    loop_io_release(&handshake->io);
    if (handshake->fd >= 0)
        close(handshake->fd);
    if (handshake->is_counted)
        endpoint_released(endpoint);
    __atomic_fetch_sub(&endpoint->handshake_count, 1, __ATOMIC_RELAXED);
    free(handshake);
}

static void handshake_finish(struct handshake *handshake)
{
    struct endpoint *endpoint = handshake->endpoint;
    struct endpoint_handler handler =
        endpoint->handlers[handshake->peer.channel < HELLO_CHANNEL_COUNT ? handshake->peer.channel : 0];
    struct hello peer = handshake->peer;
    int fd = handshake->fd;

    if (!handshake->is_accepted || !handler.fn) {
        handshake_free(handshake);
        return;
    }
    handshake->fd = -1;
    handshake->is_counted = false; /* the share goes to the handler */
    handshake_free(handshake);
    endpoint_count(&endpoint->counters.accepted);
    handler.fn(handler.arg, fd, &peer);
}

/* Control calls take either way; data channels belong to the transport of theirs. */
static bool may_come_by(bool is_local, unsigned channel)
{
    return channel == HELLO_CHANNEL_CONTROL || is_local == (channel == HELLO_CHANNEL_LOCAL);
}

static enum hello_verdict judge(struct endpoint *endpoint, const struct handshake *handshake)
{
    const struct hello *peer = &handshake->peer;

    if (peer->version != HELLO_VERSION || peer->proof_kind != 0)
        return HELLO_REFUSE_VERSION;
    if (strcmp(peer->cluster, endpoint->cluster) != 0)
        return HELLO_REFUSE_CLUSTER;
    if (peer->wanted && peer->wanted != endpoint->instance)
        return HELLO_REFUSE_IDENTITY;
    if (peer->channel != HELLO_CHANNEL_PROBE &&
        (peer->channel >= HELLO_CHANNEL_COUNT || !endpoint->handlers[peer->channel].fn ||
         !may_come_by(handshake->is_local, peer->channel)))
        return HELLO_REFUSE_CHANNEL;
    if (__atomic_load_n(&endpoint->open_connections, __ATOMIC_RELAXED) >= endpoint->max_connections)
        return HELLO_REFUSE_LIMIT;
    return HELLO_ACCEPT;
}

static void handshake_write(struct handshake *handshake)
{
    while (handshake->out_sent < handshake->out_len) {
        ssize_t sent = send(handshake->fd, handshake->out + handshake->out_sent,
                            handshake->out_len - handshake->out_sent, MSG_NOSIGNAL);

        if (sent < 0 && errno == EINTR)
            continue;
        if (sent < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) {
            loop_io_set(&handshake->io, LOOP_WRITE);
            return;
        }
        if (sent < 0) {
            handshake_free(handshake);
            return;
        }
        handshake->out_sent += (size_t)sent;
    }
    handshake_finish(handshake);
}

static void handshake_answer(struct handshake *handshake)
{
    struct endpoint *endpoint = handshake->endpoint;
    enum hello_verdict verdict = judge(endpoint, handshake);
    struct hello answer;

    endpoint_fill_hello(endpoint, &answer);
    answer.channel = handshake->peer.channel;
    answer.verdict = (uint8_t)verdict;
    handshake->is_accepted = verdict == HELLO_ACCEPT;
    if (verdict != HELLO_ACCEPT) {
        endpoint_count(&endpoint->counters.refused);
        LOG_DEBUG("refused %s: %s", handshake->peer.name, hello_verdict_text(verdict));
    } else {
        __atomic_fetch_add(&endpoint->open_connections, 1, __ATOMIC_RELAXED);
        handshake->is_counted = true;
    }
    handshake->out_len = hello_encode(&answer, handshake->out);
    handshake_write(handshake);
}

static void handshake_io(void *arg, unsigned events)
{
    struct handshake *handshake = arg;
    struct endpoint *endpoint = handshake->endpoint;
    int saved;

    (void)events;
    if (handshake->out_len > 0) {
        handshake_write(handshake);
        return;
    }
    switch (hello_reader_step(&handshake->reader, handshake->fd, &saved)) {
    case HELLO_READ_AGAIN:
        return;
    case HELLO_READ_DONE:
        if (hello_decode(handshake->reader.data, handshake->reader.len, &handshake->peer) == SHOAL_OK) {
            handshake_answer(handshake);
            return;
        }
        endpoint_count(&endpoint->counters.protocol_errors);
        break;
    case HELLO_READ_BAD:
        endpoint_count(&endpoint->counters.protocol_errors);
        break;
    case HELLO_READ_LOST:
        break;
    }
    handshake_free(handshake);
}

static void arm_handshake_timer(struct endpoint *endpoint)
{
    struct list_node *oldest = list_first(&endpoint->handshakes);

    if (oldest) {
        struct handshake *handshake = container_of(oldest, struct handshake, node);
        loop_timer_start(&endpoint->handshake_timer, deadline_left_ms(handshake->deadline_ms) + 1);
    }
}

static void drop_late_handshakes(void *arg)
{
    struct endpoint *endpoint = arg;

    LIST_FOR_EACH_SAFE (handshake, &endpoint->handshakes, struct handshake, node) {
        if (!deadline_is_past(handshake->deadline_ms))
            break;
        endpoint_count(&endpoint->counters.handshake_timeouts);
        handshake_free(handshake);
    }
    arm_handshake_timer(endpoint);
}

static void handshake_begin(struct endpoint *endpoint, int fd, bool is_local)
{
    struct handshake *handshake;
    int one = 1;

    if (endpoint->handshake_count >= endpoint->max_handshakes) {
        /* Whoever connects and stays silent makes room for who speaks. */
        handshake = container_of(list_first(&endpoint->handshakes), struct handshake, node);
        endpoint_count(&endpoint->counters.handshake_timeouts);
        handshake_free(handshake);
    }
    handshake = calloc(1, sizeof *handshake);
    if (!handshake || loop_io_init(&handshake->io, endpoint->loop, fd, handshake_io, handshake, NULL) != SHOAL_OK) {
        free(handshake);
        close(fd);
        return;
    }
    if (!is_local)
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    handshake->is_local = is_local;
    handshake->endpoint = endpoint;
    handshake->fd = fd;
    handshake->deadline_ms = deadline_after_ms(endpoint->handshake_timeout_ms);
    list_push_back(&endpoint->handshakes, &handshake->node);
    __atomic_fetch_add(&endpoint->handshake_count, 1, __ATOMIC_RELAXED);
    loop_io_set(&handshake->io, LOOP_READ);
    if (!loop_timer_is_running(&endpoint->handshake_timer))
        arm_handshake_timer(endpoint);
}

/* Out of descriptors: without this the pending connection would keep the listener readable for ever. */
static void shed_connection(struct endpoint *endpoint, int listen_fd)
{
    int fd;

    if (endpoint->spare_fd < 0)
        return;
    close(endpoint->spare_fd);
    fd = accept4(listen_fd, NULL, NULL, SOCK_CLOEXEC);
    if (fd >= 0)
        close(fd);
    endpoint->spare_fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
    endpoint_count(&endpoint->counters.refused);
    LOG_WARN("refused a connection: no file descriptor left (see ulimit -n)");
}

static void accept_some(struct endpoint *endpoint, int listen_fd)
{
    for (int i = 0; i < ACCEPTS_PER_TURN; i++) {
        int fd = accept4(listen_fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);

        if (fd >= 0) {
            handshake_begin(endpoint, fd, listen_fd == endpoint->local_fd);
        } else if (errno == EMFILE || errno == ENFILE) {
            shed_connection(endpoint, listen_fd);
            return;
        } else if (errno == EAGAIN || errno == EWOULDBLOCK || errno == ENOMEM || errno == ENOBUFS) {
            return;
        }
    }
}

static void listener_io(void *arg, unsigned events)
{
    struct endpoint *endpoint = arg;

    (void)events;
    accept_some(endpoint, endpoint->listen_fd);
}

static void local_io(void *arg, unsigned events)
{
    struct endpoint *endpoint = arg;

    (void)events;
    accept_some(endpoint, endpoint->local_fd);
}

/* --- the local socket --- */

socklen_t endpoint_local_address(uint64_t instance, struct sockaddr_un *addr_out)
{
    int len;

    memset(addr_out, 0, sizeof *addr_out);
    addr_out->sun_family = AF_UNIX;
    len =
        snprintf(addr_out->sun_path + 1, sizeof addr_out->sun_path - 1, "shoal-%016llx", (unsigned long long)instance);
    return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)len);
}

struct local_call {
    struct endpoint *endpoint;
    enum shoal_status status;
    struct shoal_error *error;
};

static void listen_local_on_loop(void *arg)
{
    struct local_call *call = arg;
    struct endpoint *endpoint = call->endpoint;
    struct sockaddr_un addr;
    socklen_t len = endpoint_local_address(endpoint->instance, &addr);
    int saved, fd;

    if (endpoint->local_fd >= 0)
        return;
    fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0 || bind(fd, (const struct sockaddr *)&addr, len) != 0 || listen(fd, LISTEN_BACKLOG) != 0) {
        saved = errno;
        call->status = error_set(call->error, fd < 0 ? SHOAL_LIMIT : SHOAL_ADDRESS, saved,
                                 "cannot open a local socket: %s", strerror(saved));
        goto close_fd;
    }
    call->status = loop_io_init(&endpoint->local_io, endpoint->loop, fd, local_io, endpoint, call->error);
    if (call->status != SHOAL_OK)
        goto close_fd;
    endpoint->local_fd = fd;
    loop_io_set(&endpoint->local_io, LOOP_READ);
    return;

close_fd:
    if (fd >= 0)
        close(fd);
}

enum shoal_status endpoint_listen_local(struct endpoint *endpoint, struct shoal_error *error)
{
    struct local_call call = {endpoint, SHOAL_OK, error};

    loop_call(endpoint->loop, listen_local_on_loop, &call);
    return call.status;
}

int endpoint_connect_local(uint64_t instance)
{
    struct sockaddr_un addr;
    socklen_t len = endpoint_local_address(instance, &addr);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0), saved;

    if (fd < 0 || connect(fd, (const struct sockaddr *)&addr, len) == 0)
        return fd;
    saved = errno;
    close(fd);
    errno = saved;
    return -1;
}

bool endpoint_has_local(uint64_t instance)
{
    int fd = endpoint_connect_local(instance);

    if (fd < 0)
        return errno == EAGAIN; /* too many wait to be accepted */
    close(fd);
    return true;
}

/* --- life --- */

static enum shoal_status bind_listener(struct endpoint *endpoint, const struct endpoint_config *config,
                                       struct shoal_error *error)
{
    struct sockaddr_storage addr;
    socklen_t len;
    enum shoal_status status;
    int one = 1, saved;

    status = hostport_resolve(config->bind_host, config->bind_port, &addr, &len, error);
    if (status != SHOAL_OK)
        return status;
    endpoint->listen_fd = socket(addr.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (endpoint->listen_fd < 0) {
        saved = errno;
        return error_set(error, SHOAL_ADDRESS, saved, "cannot open a socket for '%s': %s", config->bind_host,
                         strerror(saved));
    }
    setsockopt(endpoint->listen_fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    if (addr.ss_family == AF_INET6)
        setsockopt(endpoint->listen_fd, IPPROTO_IPV6, IPV6_V6ONLY, &one, sizeof one);
    if (bind(endpoint->listen_fd, (const struct sockaddr *)&addr, len) != 0 ||
        listen(endpoint->listen_fd, LISTEN_BACKLOG) != 0) {
        saved = errno;
        if (saved == EADDRINUSE)
            return error_set(error, SHOAL_NAME_IN_USE, saved, "port %u of '%s' is in use by another process",
                             config->bind_port, config->bind_host);
        return error_set(error, saved == EACCES ? SHOAL_PERMISSION : SHOAL_ADDRESS, saved,
                         "cannot listen on '%s' port %u: %s%s", config->bind_host, config->bind_port, strerror(saved),
                         saved == EADDRNOTAVAIL ? " (not an address of this machine)" : "");
    }
    len = sizeof addr;
    if (getsockname(endpoint->listen_fd, (struct sockaddr *)&addr, &len) != 0) {
        saved = errno;
        return error_set(error, SHOAL_ADDRESS, saved, "getsockname: %s", strerror(saved));
    }
    endpoint->port = ntohs(addr.ss_family == AF_INET6 ? ((const struct sockaddr_in6 *)(const void *)&addr)->sin6_port
                                                      : ((const struct sockaddr_in *)(const void *)&addr)->sin_port);
    sockaddr_format((const struct sockaddr *)&addr, endpoint->address);
    endpoint->bound = addr;
    return SHOAL_OK;
}

enum shoal_status endpoint_create(const struct endpoint_config *config, struct endpoint **endpoint_out,
                                  struct shoal_error *error)
{
    struct endpoint *endpoint;
    enum shoal_status status;

    if (strlen(config->cluster) > HELLO_CLUSTER_MAX_BYTES || !config->cluster[0])
        return error_set(error, SHOAL_INVALID_ARGUMENT, 0, "cluster name must have 1..%d bytes",
                         HELLO_CLUSTER_MAX_BYTES);
    endpoint = calloc(1, sizeof *endpoint);
    if (!endpoint)
        return error_no_memory(error);
    endpoint->loop = config->loop;
    endpoint->local_fd = -1;
    endpoint->max_connections = config->max_connections ? config->max_connections : DEFAULT_MAX_CONNECTIONS;
    endpoint->max_handshakes = config->max_handshakes ? config->max_handshakes : DEFAULT_MAX_HANDSHAKES;
    endpoint->handshake_timeout_ms =
        config->handshake_timeout_ms > 0 ? config->handshake_timeout_ms : DEFAULT_HANDSHAKE_TIMEOUT_MS;
    memcpy(endpoint->cluster, config->cluster, strlen(config->cluster) + 1);
    endpoint->instance = random_id();
    endpoint->spare_fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
    list_init(&endpoint->handshakes);
    list_init(&endpoint->dials);
    status = bind_listener(endpoint, config, error);
    if (status != SHOAL_OK) {
        if (endpoint->listen_fd > 0)
            close(endpoint->listen_fd);
        if (endpoint->spare_fd >= 0)
            close(endpoint->spare_fd);
        free(endpoint);
        return status;
    }
    *endpoint_out = endpoint;
    return SHOAL_OK;
}

struct start_call {
    struct endpoint *endpoint;
    enum shoal_status status;
    struct shoal_error *error;
};

static void start_on_loop(void *arg)
{
    struct start_call *call = arg;
    struct endpoint *endpoint = call->endpoint;

    call->status =
        loop_timer_init(&endpoint->handshake_timer, endpoint->loop, drop_late_handshakes, endpoint, call->error);
    if (call->status == SHOAL_OK)
        call->status =
            loop_io_init(&endpoint->listen_io, endpoint->loop, endpoint->listen_fd, listener_io, endpoint, call->error);
    if (call->status == SHOAL_OK)
        loop_io_set(&endpoint->listen_io, LOOP_READ);
}

enum shoal_status endpoint_start(struct endpoint *endpoint, const char *server_name, struct shoal_error *error)
{
    struct start_call call = {endpoint, SHOAL_OK, error};
    size_t len = strlen(server_name);

    if (len > HELLO_NAME_MAX_BYTES)
        return error_set(error, SHOAL_INVALID_ARGUMENT, 0, "server name is longer than %d bytes", HELLO_NAME_MAX_BYTES);
    memcpy(endpoint->name, server_name, len + 1);
    loop_call(endpoint->loop, start_on_loop, &call);
    return call.status;
}

static void stop_on_loop(void *arg)
{
    struct endpoint *endpoint = arg;

    endpoint->is_closing = true;
    loop_io_release(&endpoint->listen_io);
    loop_io_release(&endpoint->local_io);
    LIST_FOR_EACH_SAFE (handshake, &endpoint->handshakes, struct handshake, node)
        handshake_free(handshake);
    loop_timer_release(&endpoint->handshake_timer);
    endpoint_cancel_dials(endpoint);
}

static void nothing(void *arg)
{
    (void)arg;
}

void endpoint_destroy(struct endpoint *endpoint)
{
    if (!endpoint)
        return;
    assert(!loop_is_current(endpoint->loop));
    loop_call(endpoint->loop, stop_on_loop, endpoint);
    loop_call(endpoint->loop, nothing, NULL); /* results of dials that were posted before have run now */
    close(endpoint->listen_fd);
    if (endpoint->local_fd >= 0)
        close(endpoint->local_fd);
    if (endpoint->spare_fd >= 0)
        close(endpoint->spare_fd);
    free(endpoint);
}

uint16_t endpoint_port(const struct endpoint *endpoint)
{
    return endpoint->port;
}

const char *endpoint_address(const struct endpoint *endpoint)
{
    return endpoint->address;
}

const char *endpoint_name(const struct endpoint *endpoint)
{
    return endpoint->name;
}

uint64_t endpoint_instance(const struct endpoint *endpoint)
{
    return endpoint->instance;
}

struct handler_call {
    struct endpoint *endpoint;
    enum hello_channel channel;
    struct endpoint_handler handler;
};

static void set_handler_on_loop(void *arg)
{
    struct handler_call *call = arg;

    call->endpoint->handlers[call->channel] = call->handler;
}

void endpoint_set_handler(struct endpoint *endpoint, enum hello_channel channel, endpoint_accept_fn fn, void *arg)
{
    struct handler_call call = {endpoint, channel, {fn, arg}};

    assert(channel < HELLO_CHANNEL_COUNT && channel != HELLO_CHANNEL_PROBE);
    loop_call(endpoint->loop, set_handler_on_loop, &call);
}

void endpoint_released(struct endpoint *endpoint)
{
    __atomic_fetch_sub(&endpoint->open_connections, 1, __ATOMIC_RELAXED);
}

void endpoint_counters(const struct endpoint *endpoint, struct endpoint_counters *out)
{
    const struct endpoint_counters *from = &endpoint->counters;

    out->accepted = __atomic_load_n(&from->accepted, __ATOMIC_RELAXED);
    out->refused = __atomic_load_n(&from->refused, __ATOMIC_RELAXED);
    out->handshake_timeouts = __atomic_load_n(&from->handshake_timeouts, __ATOMIC_RELAXED);
    out->protocol_errors = __atomic_load_n(&from->protocol_errors, __ATOMIC_RELAXED);
    out->dials = __atomic_load_n(&from->dials, __ATOMIC_RELAXED);
    out->dial_failures = __atomic_load_n(&from->dial_failures, __ATOMIC_RELAXED);
    out->open_connections = __atomic_load_n(&endpoint->open_connections, __ATOMIC_RELAXED);
    out->open_handshakes = __atomic_load_n(&endpoint->handshake_count, __ATOMIC_RELAXED);
}
