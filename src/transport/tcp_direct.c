/* SPDX-License-Identifier: Apache-2.0 */
/* Small requests without the loops: a connection of its own that is lent to one batch at a time. The thread that
 * submits sends, the thread that waits receives, and no other thread is woken.
 *
 * A connection has one driver at a time: its owner while it is inside of submit or drive, else nobody, or, once it was
 * handed over, loop 0. Whoever else wants its requests to end shuts the socket down: the driver notices. Everything
 * that is not simple ends with the connection, and what can be repeated goes the usual way then. */
#include <errno.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"
#include "base/spin.h"
#include "transport/tcp_internal.h"

#define LOG_MODULE "tcp"

#define CONNECTIONS_MAX 8    /* of one peer */
#define WISHES_BEFORE_DIAL 3 /* a peer that is asked once or twice is not worth another connection */
#define DIAL_AGAIN_MS 1000   /* after one that failed */
#define SEND_BUFFER_BYTES (2 * TRANSPORT_DIRECT_BYTES_MAX)
#define WAIT_MAX_MS (1 << 20)
#define UNDRIVEN_MS 100 /* then a submission whose owner does not wait for it is handed over */

enum direct_state {
    DIRECT_IDLE,   /* in the pool, nothing is asked */
    DIRECT_LENT,   /* has an owner; nobody drives it */
    DIRECT_DRIVEN, /* its owner drives it */
    DIRECT_LOOP,   /* loop 0 drives it until its requests have ended */
    DIRECT_GONE,   /* given back broken; loop 0 frees it */
};

struct direct_slot {
    struct tcp_out out;
    uint64_t id;
    bool is_granted, is_answered;
};

struct transport_direct {
    struct tcp_direct_pool *pool;
    struct list_node node; /* pool->connections; loop 0 */
    struct loop_task task;

    /* under tcp->direct_mutex */
    struct list_node idle_node; /* pool->idle */
    enum direct_state state;
    bool is_asked;    /* requests holds what has not ended */
    bool is_unwanted; /* end it with CANCELED */
    bool is_shut;     /* the socket is of no use any more, whatever the driver knows */
    int64_t since_ms; /* lent, or idle */

    /* of the driver; requests also for evict, under the mutex while is_asked */
    struct tcp_stream stream;
    struct loop_io io; /* loop 0 */
    bool is_attached;  /* loop 0 */
    bool is_broken;
    int64_t wait_ms; /* timeout of receives that wait, as the socket has it; 0: none yet */
    struct spin spin;
    size_t count, unanswered;
    uint64_t next_id;
    void (*finished)(void *arg, struct transport_request *requests, size_t count);
    void *arg;
    struct direct_slot *current; /* whose answer's body is coming in */
    struct data_frame frame;     /* header of that answer */
    struct direct_slot slots[TRANSPORT_DIRECT_REQUESTS_MAX];
    struct transport_request requests[TRANSPORT_DIRECT_REQUESTS_MAX];
    uint8_t text[DATA_REASON_MAX_BYTES + 1];
};

static struct transport_direct *direct_of(struct tcp_stream *stream)
{
    return container_of(stream, struct transport_direct, stream);
}

static struct transport_request *request_of(struct transport_direct *direct, const struct direct_slot *slot)
{
    return &direct->requests[slot - direct->slots];
}

/* --- outcomes --- */

static void answered(struct transport_direct *direct, struct direct_slot *slot, enum shoal_status status,
                     struct shoal_error *error)
{
    struct transport_request *request = request_of(direct, slot);

    if (slot->is_answered) {
        free(error);
        return;
    }
    slot->is_answered = true;
    direct->unanswered--;
    request->status = status;
    request->error = error;
    request->transferred_bytes = status == SHOAL_OK ? request->len_bytes : 0;
}

/* The connection is of no use any more; why is nobody's fault but the peer's or the network's. */
static void break_off(struct transport_direct *direct, const struct shoal_error *why)
{
    struct tcp *tcp = direct->pool->tcp;
    bool is_unwanted;

    mutex_lock(&tcp->direct_mutex);
    is_unwanted = direct->is_unwanted;
    mutex_unlock(&tcp->direct_mutex);
    direct->is_broken = true;
    for (size_t i = 0; i < direct->count; i++) {
        struct direct_slot *slot = &direct->slots[i];
        struct transport_request *request = &direct->requests[i];
        bool is_begun = tcp_out_is_begun(&slot->out);

        list_remove(&slot->out.node);
        if (slot->is_answered)
            continue;
        if (is_unwanted || memory_is_dying(tcp->env.memory, request->local_region)) {
            answered(direct, slot, SHOAL_CANCELED, NULL);
        } else if (why->status != SHOAL_TIMED_OUT && (request->op == SHOAL_OP_READ || !is_begun)) {
            /* A READ can be repeated at any time, a WRITE only if nothing of it is on its way. */
            request->is_repeatable = true;
            tcp_count(&tcp->counters.retries, 1);
            answered(direct, slot, why->status, NULL);
        } else {
            struct shoal_error *error = malloc(sizeof *error);

            if (error)
                *error = *why;
            answered(direct, slot, why->status, error);
        }
    }
}

static void lost(struct transport_direct *direct, int sys_errno)
{
    struct shoal_error why;

    error_set(&why, SHOAL_UNREACHABLE, sys_errno, "connection to '%s' (%s) was lost: %s", direct->pool->name,
              direct->pool->address, sys_errno ? strerror(sys_errno) : "closed by peer");
    LOG_DEBUG("%s", why.message);
    break_off(direct, &why);
}

static void dropped(struct transport_direct *direct, const char *what)
{
    struct shoal_error why;

    error_set(&why, SHOAL_UNREACHABLE, 0, "connection to '%s' (%s) was dropped: %s", direct->pool->name,
              direct->pool->address, what);
    break_off(direct, &why);
}

static void protocol_error(struct transport_direct *direct, const char *what)
{
    struct tcp *tcp = direct->pool->tcp;
    struct shoal_error why;

    error_set(&why, SHOAL_PROTOCOL, 0, "'%s' (%s) sent %s", direct->pool->name, direct->pool->address, what);
    LOG_WARN("%s", why.message);
    tcp_count(&tcp->counters.protocol_errors, 1);
    break_off(direct, &why);
}

static void stalled(struct transport_direct *direct)
{
    long long limit_ms = (long long)direct->pool->tcp->env.progress_timeout_ms;
    struct shoal_error why;

    error_set(&why, SHOAL_TIMED_OUT, 0, "'%s' (%s) made no progress for %lld ms", direct->pool->name,
              direct->pool->address, limit_ms);
    LOG_WARN("%s", why.message);
    break_off(direct, &why);
}

/* --- frames --- */

static void on_sent(struct tcp_stream *stream, struct tcp_out *out)
{
    (void)stream;
    (void)out;
}

static bool on_head(struct tcp_stream *stream, const struct data_frame *frame)
{
    struct transport_direct *direct = direct_of(stream);
    size_t index = frame->id % TRANSPORT_DIRECT_REQUESTS_MAX;
    struct direct_slot *slot = &direct->slots[index];
    struct transport_request *request = &direct->requests[index];

    if (index >= direct->count || slot->id != frame->id || slot->is_answered || !tcp_out_is_begun(&slot->out)) {
        protocol_error(direct, "an answer to no request");
        return false;
    }
    direct->current = slot;
    direct->frame = *frame;
    switch (frame->type) {
    case DATA_DATA:
        if (request->op != SHOAL_OP_READ || frame->len != request->len_bytes) {
            protocol_error(direct, "an answer of another kind or length than asked for");
            return false;
        }
        stream->body = request->local;
        return true;
    case DATA_GRANT:
    case DATA_DONE:
        if (request->op != SHOAL_OP_WRITE || slot->is_granted != (frame->type == DATA_DONE) ||
            (slot->is_granted && list_node_is_linked(&slot->out.node))) {
            protocol_error(direct, "a grant or an acknowledgement that was not due");
            return false;
        }
        slot->is_granted = true;
        if (frame->type == DATA_DONE)
            answered(direct, slot, SHOAL_OK, NULL);
        return direct->unanswered > 0;
    case DATA_REFUSE:
        stream->body = direct->text;
        return frame->len > 0 || stream->ops->body(stream);
    default:
        protocol_error(direct, "a frame that only a requesting side sends");
        return false;
    }
}

static void on_part(struct tcp_stream *stream, const void *data, uint64_t len)
{
    (void)stream;
    (void)data;
    (void)len;
}

static bool on_body(struct tcp_stream *stream)
{
    struct transport_direct *direct = direct_of(stream);
    const struct transport_request *request = request_of(direct, direct->current);

    if (direct->frame.type == DATA_DATA) {
        answered(direct, direct->current, SHOAL_OK, NULL);
    } else if (list_node_is_linked(&direct->current->out.node)) {
        protocol_error(direct, "a refusal of half a request");
    } else {
        enum shoal_status status = data_code_status(direct->frame.code);

        direct->text[direct->frame.len] = '\0';
        answered(direct, direct->current, status,
                 tcp_refusal(direct->pool->name, direct->pool->address, (unsigned)request->op, request->remote_addr,
                             request->len_bytes, status, (const char *)direct->text));
    }
    return direct->unanswered > 0;
}

static void on_fault(struct tcp_stream *stream)
{
    struct transport_direct *direct = direct_of(stream);

    answered(direct, direct->current, SHOAL_IO, tcp_error(SHOAL_IO, EFAULT, "local memory is not writable"));
}

static const struct tcp_stream_ops direct_stream_ops = {
    .sent = on_sent,
    .head = on_head,
    .part = on_part,
    .body = on_body,
    .fault = on_fault,
};

/* --- driving --- */

static bool is_over(const struct transport_direct *direct)
{
    /* A fault ends its request before the rest of the body has been read. */
    return direct->is_broken || (direct->unanswered == 0 && direct->stream.body_left == 0);
}

static void send_some(struct transport_direct *direct)
{
    struct tcp_stream *stream = &direct->stream;
    int saved = 0;

    switch (tcp_stream_send(stream, &saved)) {
    case TCP_STEP_LOST:
        lost(direct, saved);
        break;
    case TCP_STEP_FAULT: {
        struct tcp_out *out = container_of(list_first(&stream->out), struct tcp_out, node);

        answered(direct, container_of(out, struct direct_slot, out), SHOAL_IO,
                 tcp_error(SHOAL_IO, saved, "local memory is unreadable: %s", strerror(saved)));
        dropped(direct, "local memory of another request is unreadable");
        break;
    }
    default:
        break;
    }
}

/* What can be done without waiting. */
static void work(struct transport_direct *direct)
{
    struct tcp_stream *stream = &direct->stream;
    enum tcp_step step;
    int saved = 0;

    if (!is_over(direct) && !list_is_empty(&stream->out))
        send_some(direct);
    if (is_over(direct))
        return;
    step = tcp_stream_receive(stream, &saved);
    if (step == TCP_STEP_LOST)
        lost(direct, saved);
    else if (step == TCP_STEP_PROTOCOL)
        protocol_error(direct, "something that is not a frame");
}

static int64_t moved_ms(const struct tcp_stream *stream)
{
    return stream->moved_in_ms > stream->moved_out_ms ? stream->moved_in_ms : stream->moved_out_ms;
}

/* Tells the owner, who may give the connection back at once: nothing of it is touched any more. */
static void finish(struct transport_direct *direct)
{
    struct tcp *tcp = direct->pool->tcp;

    if (direct->stream.head_have > 0)
        direct->is_broken = true; /* it said more than it was asked */
    for (size_t i = 0; i < direct->count; i++) {
        if (!direct->requests[i].is_repeatable) {
            tcp_count_outcome(tcp, &direct->requests[i]);
            tcp_count(&tcp->counters.direct_requests, 1);
        }
    }
    mutex_lock(&tcp->direct_mutex);
    direct->state = DIRECT_LENT;
    direct->is_asked = false;
    mutex_unlock(&tcp->direct_mutex);
    direct->finished(direct->arg, direct->requests, direct->count);
}

/* Makes the next receive end by the deadline, or earlier. The timeouts are powers of two: successive waits of about the
 * same length need not set it again. */
static bool bound_wait(struct transport_direct *direct, int64_t deadline_ms)
{
    int64_t left_ms = deadline_left_ms(deadline_ms), timeout_ms = 1;
    struct timeval value;

    if (left_ms == 0)
        return false;
    while (timeout_ms < WAIT_MAX_MS && timeout_ms * 2 <= left_ms)
        timeout_ms *= 2;
    if (timeout_ms == direct->wait_ms)
        return true;
    value = (struct timeval){.tv_sec = (time_t)(timeout_ms / 1000), .tv_usec = (suseconds_t)(timeout_ms % 1000) * 1000};
    if (setsockopt(direct->stream.fd, SOL_SOCKET, SO_RCVTIMEO, &value, sizeof value) != 0)
        return false;
    direct->wait_ms = timeout_ms;
    return true;
}

/* Looks for the answer a little instead of sleeping, if that has paid lately. true: something came. */
static bool look(struct transport_direct *direct)
{
    uint64_t seen = direct->stream.bytes_in;

    if (!list_is_empty(&direct->stream.out) || !spin_begin(&direct->spin))
        return false;
    do {
        work(direct);
    } while (seen == direct->stream.bytes_in && !is_over(direct) && spin_again(&direct->spin));
    spin_end(&direct->spin, seen != direct->stream.bytes_in);
    return seen != direct->stream.bytes_in || is_over(direct);
}

/* Sleeps until something comes, but not beyond the deadline, and does what can be done then. */
static void wait_and_work(struct transport_direct *direct, int64_t deadline_ms)
{
    struct tcp_stream *stream = &direct->stream;
    struct pollfd ready = {.fd = stream->fd};
    int64_t began_ns;

    if (look(direct))
        return;
    began_ns = spin_limit_us() ? clock_now_ns() : 0;
    ready.events = (short)(list_is_empty(&stream->out) ? POLLIN : POLLIN | POLLOUT);
    stream->may_wait = list_is_empty(&stream->out) && bound_wait(direct, deadline_ms);
    if (!stream->may_wait) /* else the receive does both in one system call */
        (void)poll(&ready, 1, deadline_poll_ms(deadline_ms));
    work(direct);
    stream->may_wait = false;
    if (began_ns)
        spin_slept(&direct->spin, clock_now_ns() - began_ns);
}

static void tcp_direct_drive(struct transport_direct *direct, int64_t deadline_ms)
{
    struct tcp *tcp = direct->pool->tcp;
    int64_t limit_ms = tcp->env.progress_timeout_ms;
    bool is_ours;

    mutex_lock(&tcp->direct_mutex);
    is_ours = direct->state == DIRECT_LENT && direct->is_asked;
    if (is_ours)
        direct->state = DIRECT_DRIVEN;
    mutex_unlock(&tcp->direct_mutex);
    if (!is_ours)
        return;
    while (!is_over(direct) && !deadline_is_past(deadline_ms)) {
        int64_t now_ms;

        wait_and_work(direct, deadline_min(deadline_ms, moved_ms(&direct->stream) + limit_ms));
        now_ms = clock_now_ms();
        if (is_over(direct) || now_ms - moved_ms(&direct->stream) < limit_ms)
            continue;
        work(direct); /* what came while this process was stopped counts */
        if (!is_over(direct) && now_ms - moved_ms(&direct->stream) >= limit_ms)
            stalled(direct);
    }
    work(direct); /* all there is to a look without waiting */
    if (is_over(direct)) {
        finish(direct);
        return;
    }
    mutex_lock(&tcp->direct_mutex);
    direct->state = DIRECT_LENT;
    direct->since_ms = clock_now_ms();
    mutex_unlock(&tcp->direct_mutex);
}

/* --- loop 0 --- */

static void drive_on_loop(struct transport_direct *direct)
{
    work(direct);
    if (is_over(direct)) {
        loop_io_release(&direct->io);
        direct->is_attached = false;
        finish(direct);
        return;
    }
    loop_io_set(&direct->io, (unsigned)LOOP_READ | (list_is_empty(&direct->stream.out) ? 0u : (unsigned)LOOP_WRITE));
}

static void direct_io(void *arg, unsigned events)
{
    (void)events;
    drive_on_loop(arg);
}

/* Its state is DIRECT_LOOP. */
static void attach(void *arg)
{
    struct transport_direct *direct = arg;

    direct->is_attached = true;
    if (loop_io_init(&direct->io, direct->pool->tcp->env.loop, direct->stream.fd, direct_io, direct, NULL) != SHOAL_OK)
        lost(direct, ENOMEM);
    drive_on_loop(direct);
}

static void direct_free(struct transport_direct *direct)
{
    struct tcp *tcp = direct->pool->tcp;

    list_remove(&direct->node);
    direct->pool->connection_count--;
    tcp_stream_release(&direct->stream);
    free(direct);
    tcp_count(&tcp->counters.client_connections, (uint64_t)-1);
    tcp_direct_freed(tcp);
}

static void free_on_loop(void *arg)
{
    direct_free(arg);
}

/* What has to be done about a connection, decided under the mutex and done without it. */
enum direct_duty { DUTY_NONE, DUTY_FREE, DUTY_ATTACH };

/* Does it for the first connection that needs it. Callbacks of operations that end may free other connections, so
 * whoever wants all of them done begins again each time. */
static bool do_first(struct tcp_direct_pool *pool,
                     enum direct_duty (*judge)(struct transport_direct *direct, const void *arg), const void *arg)
{
    LIST_FOR_EACH (direct, &pool->connections, struct transport_direct, node) {
        enum direct_duty duty;

        mutex_lock(&pool->tcp->direct_mutex);
        duty = judge(direct, arg);
        mutex_unlock(&pool->tcp->direct_mutex);
        if (duty == DUTY_NONE)
            continue;
        if (duty == DUTY_FREE)
            direct_free(direct);
        else
            attach(direct);
        return true;
    }
    return false;
}

static enum direct_duty end_idle(struct transport_direct *direct)
{
    direct->state = DIRECT_GONE;
    list_remove(&direct->idle_node);
    return DUTY_FREE;
}

/* Its requests are to end. */
static enum direct_duty end_asked(struct transport_direct *direct)
{
    (void)shutdown(direct->stream.fd, SHUT_RDWR);
    direct->is_shut = true;
    if (direct->state != DIRECT_LENT)
        return DUTY_NONE;
    direct->state = DIRECT_LOOP;
    return DUTY_ATTACH;
}

static enum direct_duty abort_duty(struct transport_direct *direct, const void *arg)
{
    (void)arg;
    if (direct->state == DIRECT_IDLE)
        return end_idle(direct);
    direct->is_unwanted |= direct->is_asked;
    return direct->is_asked ? end_asked(direct) : DUTY_NONE;
}

void tcp_direct_abort(struct tcp_direct_pool *pool)
{

    if (pool->dial)
        endpoint_dial_cancel(pool->dial);
    while (do_first(pool, abort_duty, NULL))
        ;
}

void tcp_direct_close(struct tcp_direct_pool *pool)
{
    mutex_lock(&pool->tcp->direct_mutex);
    pool->is_closed = true; /* what is given back from now on is freed */
    mutex_unlock(&pool->tcp->direct_mutex);
    tcp_direct_abort(pool);
}

static enum direct_duty evict_duty(struct transport_direct *direct, const void *arg)
{
    for (size_t i = 0; i < direct->count && direct->is_asked; i++) {
        if (direct->requests[i].local_region == arg)
            return end_asked(direct);
    }
    return DUTY_NONE;
}

void tcp_direct_evict(struct tcp_direct_pool *pool, const struct memory_region *region)
{
    while (do_first(pool, evict_duty, region))
        ;
}

static enum direct_duty tick_duty(struct transport_direct *direct, const void *arg)
{
    int64_t quiet_ms = *(const int64_t *)arg - direct->since_ms;

    if (direct->state == DIRECT_IDLE && quiet_ms >= TCP_CLIENT_IDLE_MS)
        return end_idle(direct);
    if (direct->state != DIRECT_LENT || !direct->is_asked || quiet_ms < UNDRIVEN_MS)
        return DUTY_NONE;
    direct->state = DIRECT_LOOP; /* its owner does something else */
    return DUTY_ATTACH;
}

/* Judges the first attached connection that makes no progress. */
static bool end_first_stalled(struct tcp_direct_pool *pool, int64_t now_ms)
{
    LIST_FOR_EACH (direct, &pool->connections, struct transport_direct, node) {
        if (direct->is_attached && now_ms - moved_ms(&direct->stream) >= pool->tcp->env.progress_timeout_ms) {
            stalled(direct);
            drive_on_loop(direct);
            return true;
        }
    }
    return false;
}

void tcp_direct_tick(struct tcp_direct_pool *pool, int64_t now_ms, bool is_late)
{
    while (do_first(pool, tick_duty, &now_ms))
        ;
    while (!is_late && end_first_stalled(pool, now_ms))
        ;
}

/* --- making connections, on loop 0 --- */

static void dialed(void *arg, enum shoal_status status, int fd, const struct hello *peer_hello,
                   const struct shoal_error *error)
{
    struct tcp_direct_pool *pool = arg;
    struct tcp *tcp = pool->tcp;
    struct tcp_stream closing = {.fd = fd};
    struct transport_direct *direct;
    int buffer = SEND_BUFFER_BYTES;

    (void)peer_hello;
    (void)error; /* requests go the usual way and tell */
    pool->dial = NULL;
    direct = status == SHOAL_OK ? calloc(1, sizeof *direct) : NULL;
    if (!direct) {
        if (status == SHOAL_OK)
            tcp_stream_release(&closing);
        pool->dial_after_ms = deadline_after_ms(DIAL_AGAIN_MS);
        tcp_direct_freed(tcp);
        return;
    }
    direct->pool = pool;
    for (size_t i = 0; i < TRANSPORT_DIRECT_REQUESTS_MAX; i++)
        list_node_init(&direct->slots[i].out.node);
    tcp_stream_init(&direct->stream, &direct_stream_ops, fd);
    tcp_stream_tune(&direct->stream, 0);
    /* A submission is sent at once, whatever the window was so far. */
    (void)setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &buffer, sizeof buffer);
    (void)fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) & ~O_NONBLOCK); /* whoever drives may sleep in a receive */
    list_push_back(&pool->connections, &direct->node);
    pool->connection_count++;
    tcp_count(&tcp->counters.client_connections, 1);
    mutex_lock(&tcp->direct_mutex);
    direct->state = DIRECT_IDLE;
    direct->since_ms = clock_now_ms();
    list_push_front(&pool->idle, &direct->idle_node);
    mutex_unlock(&tcp->direct_mutex);
    if (pool->is_closed)
        tcp_direct_abort(pool);
    tcp_direct_arm_tick(tcp);
}

void tcp_direct_wish(struct tcp_direct_pool *pool)
{
    struct tcp *tcp = pool->tcp;

    if (pool->wishes < WISHES_BEFORE_DIAL)
        pool->wishes++;
    if (pool->wishes < WISHES_BEFORE_DIAL || pool->dial || pool->is_closed ||
        pool->connection_count >= CONNECTIONS_MAX || rate_is_limited(&tcp->upload_limit) ||
        rate_is_limited(&tcp->download_limit) || !deadline_is_past(pool->dial_after_ms) ||
        __atomic_load_n(&tcp->counters.client_connections, __ATOMIC_RELAXED) >= TCP_CLIENT_CONNECTIONS_MAX)
        return;
    if (endpoint_dial(tcp->env.endpoint, pool->address, pool->instance, HELLO_CHANNEL_DATA, tcp->env.connect_timeout_ms,
                      dialed, pool, &pool->dial, NULL) != SHOAL_OK)
        pool->dial_after_ms = deadline_after_ms(DIAL_AGAIN_MS);
}

void tcp_direct_pool_init(struct tcp_direct_pool *pool, struct tcp *tcp, const char *name, const char *address,
                          uint64_t instance)
{
    *pool = (struct tcp_direct_pool){.tcp = tcp, .name = name, .address = address, .instance = instance};
    list_init(&pool->connections);
    list_init(&pool->idle);
}

/* --- the table's functions, on threads of the application --- */

static struct transport_direct *borrow(struct tcp_direct_pool *pool)
{
    struct transport_direct *direct = NULL;
    struct list_node *node;

    mutex_lock(&pool->tcp->direct_mutex);
    node = pool->is_closed ? NULL : list_pop_front(&pool->idle);
    if (node) {
        direct = container_of(node, struct transport_direct, idle_node);
        direct->state = DIRECT_DRIVEN;
    }
    mutex_unlock(&pool->tcp->direct_mutex);
    return direct;
}

static void tcp_direct_release(struct transport_direct *direct)
{
    struct tcp_direct_pool *pool = direct->pool;
    struct tcp *tcp = pool->tcp;

    mutex_lock(&tcp->direct_mutex);
    if (direct->is_broken || direct->is_shut || pool->is_closed) {
        direct->state = DIRECT_GONE;
        loop_post(tcp->env.loop, &direct->task, free_on_loop, direct);
    } else {
        direct->state = DIRECT_IDLE;
        direct->since_ms = clock_now_ms();
        list_push_front(&pool->idle, &direct->idle_node);
    }
    mutex_unlock(&tcp->direct_mutex);
}

/* The peer has closed it, or said something unasked. */
static bool is_stale(const struct transport_direct *direct)
{
    uint8_t byte;
    ssize_t got;

    do
        got = recv(direct->stream.fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT);
    while (got < 0 && errno == EINTR);
    return got >= 0 || (errno != EAGAIN && errno != EWOULDBLOCK);
}

/* A WRITE sends its one chunk right behind its request: a refused one is dropped by the peer (docs/wire-protocol.md).
 */
static void queue_request(struct transport_direct *direct, struct direct_slot *slot)
{
    const struct transport_request *request = request_of(direct, slot);
    struct data_frame frame = {.type = DATA_READ,
                               .id = slot->id,
                               .addr = request->remote_addr,
                               .key = request->remote_key,
                               .len = request->len_bytes};
    struct tcp_out *out = &slot->out;

    if (request->op == SHOAL_OP_READ) {
        tcp_stream_prepare(out, &frame, NULL, NULL);
    } else {
        tcp_stream_prepare(out, &(struct data_frame){.type = DATA_CHUNK, .id = slot->id, .len = request->len_bytes},
                           request->local, NULL);
        memcpy(out->head + DATA_HEADER_BYTES, out->head, DATA_HEADER_BYTES);
        frame.type = DATA_WRITE;
        data_encode(&frame, out->head);
        out->head_len = (size_t)2 * DATA_HEADER_BYTES;
    }
    tcp_stream_push(&direct->stream, out);
}

static struct transport_direct *tcp_direct_submit(
    struct transport_peer *peer, const struct transport_request *requests, size_t count,
    void (*finished)(void *arg, struct transport_request *requests, size_t count), void *arg)
{
    struct tcp_direct_pool *pool = tcp_direct_pool_of(peer);
    struct transport_direct *direct;
    struct tcp *tcp = pool->tcp;
    bool has_write = false, is_dying = false;

    for (size_t i = 0; i < count; i++)
        has_write |= requests[i].op == SHOAL_OP_WRITE;
    /* A READ that meets a connection that is gone is repeated, a WRITE would fail. */
    while ((direct = borrow(pool)) && has_write && is_stale(direct)) {
        direct->is_broken = true;
        tcp_direct_release(direct);
    }
    if (!direct)
        return NULL;
    direct->count = direct->unanswered = count;
    direct->finished = finished;
    direct->arg = arg;
    direct->stream.moved_in_ms = clock_now_ms();
    for (size_t i = 0; i < count; i++) {
        struct direct_slot *slot = &direct->slots[i];

        direct->requests[i] = requests[i];
        slot->id = direct->next_id + i;
        slot->is_granted = slot->is_answered = false;
        queue_request(direct, slot);
    }
    direct->next_id += TRANSPORT_DIRECT_REQUESTS_MAX;
    mutex_lock(&tcp->direct_mutex);
    direct->is_asked = true;
    mutex_unlock(&tcp->direct_mutex);
    /* From here on evict sees it; what was evicted before is seen here. */
    for (size_t i = 0; i < count; i++)
        is_dying |= memory_is_dying(tcp->env.memory, requests[i].local_region);
    if (is_dying)
        dropped(direct, "local memory of another request is being unregistered");
    else
        send_some(direct);
    mutex_lock(&tcp->direct_mutex);
    direct->state = DIRECT_LENT;
    direct->since_ms = clock_now_ms();
    mutex_unlock(&tcp->direct_mutex);
    return direct;
}

static void tcp_direct_hand_over(struct transport_direct *direct)
{
    struct tcp *tcp = direct->pool->tcp;

    mutex_lock(&tcp->direct_mutex);
    if (direct->state == DIRECT_LENT && direct->is_asked) {
        direct->state = DIRECT_LOOP;
        loop_post(tcp->env.loop, &direct->task, attach, direct);
    }
    mutex_unlock(&tcp->direct_mutex);
}

static void tcp_direct_cancel(struct transport_direct *direct)
{
    struct tcp *tcp = direct->pool->tcp;

    mutex_lock(&tcp->direct_mutex);
    if (direct->is_asked) {
        direct->is_unwanted = direct->is_shut = true;
        (void)shutdown(direct->stream.fd, SHUT_RDWR);
    }
    mutex_unlock(&tcp->direct_mutex);
}

const struct transport_direct_ops tcp_direct_ops = {
    .submit = tcp_direct_submit,
    .drive = tcp_direct_drive,
    .hand_over = tcp_direct_hand_over,
    .cancel = tcp_direct_cancel,
    .release = tcp_direct_release,
};
