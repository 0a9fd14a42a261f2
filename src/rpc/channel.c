/* SPDX-License-Identifier: Apache-2.0 */
#include "rpc/channel.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/hostport.h"
#include "base/list.h"
#include "base/mutex.h"
#include "wire/hello.h"
#include "wire/rpc_frame.h"

#define LOG_MODULE "rpc"
#include "base/log.h"

#define DEFAULT_MAX_IDLE_PER_PEER 32
#define DEFAULT_MAX_IDLE 256
#define DEFAULT_IDLE_MS 60000
#define DEFAULT_CONNECT_TIMEOUT_MS 3000
#define FRESH_MS 1000 /* idle for less: not worth a system call to see whether the peer is still there */
#define BUCKETS 64    /* power of two */
#define REFUSAL_MS 60000
/* What the first receive of an answer can take beside the header, on the stack: small answers cost one system call and
 * no memory, of longer ones the rest is received where it belongs. */
#define FIRST_RECEIVE_BYTES (8u << 10)

/* A connection with its handshake done, in use by one call or idle. */
struct channel {
    struct list_node node;     /* idle: in its bucket, last used first */
    struct list_node age_node; /* idle: in channels->idle, longest idle first */
    const struct byte_channel_ops *ops;
    struct byte_channel *bytes; /* owned */
    uint64_t instance;          /* of the peer */
    uint64_t next_id;
    int64_t idle_since_ms;
    bool is_interrupted; /* atomic: set by the cancellation hook */
    char address[HOSTPORT_TEXT_BYTES];
};

/* A peer that did not offer our protocol when it was asked last. */
struct refusal {
    uint32_t hash;    /* of its address: one that is taken for another goes by the fallback for a while, too */
    int64_t until_ms; /* is not asked again before; 0: free */
};

struct rpc_channels {
    struct hello hello; /* what is sent, but for the wanted instance */
    const struct byte_channel_ops *ops;
    unsigned max_idle_per_peer, max_idle;
    int64_t idle_ms, connect_timeout_ms;
    char source[HOSTPORT_TEXT_BYTES];      /* "": any */
    struct rpc_channels_counters counters; /* atomic, relaxed; but for idle */

    struct mutex mutex;           /* RANK_RPC: guards what follows; nothing is opened or closed under it */
    struct list buckets[BUCKETS]; /* struct channel, by address */
    struct list idle;             /* all of them */
    unsigned idle_count;
    struct refusal refusals[BUCKETS]; /* by hash */
};

static void count(uint64_t *counter, uint64_t more)
{
    __atomic_fetch_add(counter, more, __ATOMIC_RELAXED);
}

enum shoal_status rpc_channels_create(const struct rpc_channels_config *config, struct rpc_channels **channels_out,
                                      struct shoal_error *error)
{
    const struct byte_channel_ops *ops = config->ops;
    struct rpc_channels *channels;
    enum shoal_status status = SHOAL_OK;

    if (!config->cluster || !config->cluster[0] || strlen(config->cluster) > HELLO_CLUSTER_MAX_BYTES)
        return error_set(error, SHOAL_INVALID_ARGUMENT, 0, "cluster name must have 1..%d bytes",
                         HELLO_CLUSTER_MAX_BYTES);
    if (!config->server_name || strlen(config->server_name) > HELLO_NAME_MAX_BYTES)
        return error_set(error, SHOAL_INVALID_ARGUMENT, 0, "server name must have at most %d bytes",
                         HELLO_NAME_MAX_BYTES);
    if (config->source && strlen(config->source) >= sizeof channels->source)
        return error_set(error, SHOAL_INVALID_ARGUMENT, 0, "'%.100s...' is not an address", config->source);
    if (!ops)
        status = byte_channel_find(NULL, &ops, error);
    if (status == SHOAL_OK)
        status = byte_channel_start(ops, error);
    if (status)
        return status;
    channels = calloc(1, sizeof *channels);
    if (!channels) {
        ops->stop();
        return error_no_memory(error);
    }
    channels->hello =
        (struct hello){.version = HELLO_VERSION, .channel = HELLO_CHANNEL_CONTROL, .instance = config->instance};
    snprintf(channels->hello.name, sizeof channels->hello.name, "%s", config->server_name);
    snprintf(channels->hello.cluster, sizeof channels->hello.cluster, "%s", config->cluster);
    snprintf(channels->source, sizeof channels->source, "%s", config->source ? config->source : "");
    channels->ops = ops;
    channels->max_idle_per_peer = config->max_idle_per_peer ? config->max_idle_per_peer : DEFAULT_MAX_IDLE_PER_PEER;
    channels->max_idle = config->max_idle ? config->max_idle : DEFAULT_MAX_IDLE;
    channels->idle_ms = config->idle_ms > 0 ? config->idle_ms : DEFAULT_IDLE_MS;
    channels->connect_timeout_ms =
        config->connect_timeout_ms > 0 ? config->connect_timeout_ms : DEFAULT_CONNECT_TIMEOUT_MS;
    mutex_init(&channels->mutex, RANK_RPC);
    list_init(&channels->idle);
    for (size_t i = 0; i < BUCKETS; i++)
        list_init(&channels->buckets[i]);
    *channels_out = channels;
    return SHOAL_OK;
}

static void channel_destroy(struct channel *channel)
{
    channel->ops->close(channel->bytes);
    free(channel);
}

/* --- idle channels --- */

/* FNV-1a; the list is short and its length bounded, so nobody gains by collisions. */
static uint32_t hash_of(const char *address)
{
    uint32_t hash = 2166136261u;

    for (; *address; address++)
        hash = (hash ^ (uint8_t)*address) * 16777619u;
    return hash;
}

static struct list *bucket_of(struct rpc_channels *channels, const char *address)
{
    return &channels->buckets[hash_of(address) & (BUCKETS - 1)];
}

/* With the mutex. The channel goes to the list of those to be closed, by its node. */
static void withdraw(struct rpc_channels *channels, struct channel *channel, struct list *closed)
{
    list_remove(&channel->node);
    list_remove(&channel->age_node);
    channels->idle_count--;
    if (closed)
        list_push_back(closed, &channel->node);
}

static void close_all(struct list *closed)
{
    struct list_node *node;

    while ((node = list_pop_front(closed)))
        channel_destroy(container_of(node, struct channel, node));
}

/* With the mutex. */
static void withdraw_expired(struct rpc_channels *channels, int64_t now_ms, struct list *closed)
{
    struct list_node *node;

    while ((node = list_first(&channels->idle))) {
        struct channel *oldest = container_of(node, struct channel, age_node);
        if (now_ms - oldest->idle_since_ms <= channels->idle_ms)
            return;
        withdraw(channels, oldest, closed);
    }
}

/* The one used last: its peer and its caches are most likely still there. */
static struct channel *take_idle(struct rpc_channels *channels, const char *address, uint64_t instance, bool is_once)
{
    int64_t now_ms = clock_now_ms();
    struct channel *found = NULL;
    struct list closed;

    list_init(&closed);
    mutex_lock(&channels->mutex);
    withdraw_expired(channels, now_ms, &closed);
    LIST_FOR_EACH (channel, bucket_of(channels, address), struct channel, node) {
        if ((instance == 0 || channel->instance == instance) && strcmp(channel->address, address) == 0) {
            found = channel;
            withdraw(channels, channel, NULL);
            break;
        }
    }
    mutex_unlock(&channels->mutex);
    close_all(&closed);
    if (found && (is_once || now_ms - found->idle_since_ms > FRESH_MS) && found->ops->is_stale(found->bytes)) {
        channel_destroy(found);
        rpc_channels_forget(channels, address); /* the others were made before */
        return NULL;
    }
    return found;
}

static void put_idle(struct rpc_channels *channels, struct channel *channel)
{
    struct list *bucket = bucket_of(channels, channel->address);
    struct channel *oldest_of_peer = NULL;
    unsigned of_peer = 0;
    struct list closed;

    list_init(&closed);
    channel->idle_since_ms = clock_now_ms();
    mutex_lock(&channels->mutex);
    LIST_FOR_EACH (other, bucket, struct channel, node) {
        if (strcmp(other->address, channel->address) == 0) {
            oldest_of_peer = other;
            of_peer++;
        }
    }
    if (oldest_of_peer && of_peer >= channels->max_idle_per_peer)
        withdraw(channels, oldest_of_peer, &closed);
    if (channels->idle_count >= channels->max_idle)
        withdraw(channels, container_of(list_first(&channels->idle), struct channel, age_node), &closed);
    list_push_front(bucket, &channel->node);
    list_push_back(&channels->idle, &channel->age_node);
    channels->idle_count++;
    withdraw_expired(channels, channel->idle_since_ms, &closed);
    mutex_unlock(&channels->mutex);
    close_all(&closed);
}

void rpc_channels_forget(struct rpc_channels *channels, const char *address)
{
    struct list closed;

    list_init(&closed);
    mutex_lock(&channels->mutex);
    LIST_FOR_EACH_SAFE (channel, bucket_of(channels, address), struct channel, node) {
        if (strcmp(channel->address, address) == 0)
            withdraw(channels, channel, &closed);
    }
    mutex_unlock(&channels->mutex);
    close_all(&closed);
}

void rpc_channels_destroy(struct rpc_channels *channels)
{
    struct list_node *node;

    if (!channels)
        return;
    while ((node = list_pop_front(&channels->idle)))
        channel_destroy(container_of(node, struct channel, age_node));
    channels->ops->stop();
    mutex_release(&channels->mutex);
    free(channels);
}

void rpc_channels_counters(struct rpc_channels *channels, struct rpc_channels_counters *out)
{
    const struct rpc_channels_counters *from = &channels->counters;

    out->calls = __atomic_load_n(&from->calls, __ATOMIC_RELAXED);
    out->failures = __atomic_load_n(&from->failures, __ATOMIC_RELAXED);
    out->fallbacks = __atomic_load_n(&from->fallbacks, __ATOMIC_RELAXED);
    out->local_dials = __atomic_load_n(&from->local_dials, __ATOMIC_RELAXED);
    out->dials = __atomic_load_n(&from->dials, __ATOMIC_RELAXED);
    out->bytes_in = __atomic_load_n(&from->bytes_in, __ATOMIC_RELAXED);
    out->bytes_out = __atomic_load_n(&from->bytes_out, __ATOMIC_RELAXED);
    mutex_lock(&channels->mutex);
    out->idle = channels->idle_count;
    mutex_unlock(&channels->mutex);
}

/* --- a new connection --- */

static void interrupt(void *arg)
{
    struct channel *channel = arg;

    __atomic_store_n(&channel->is_interrupted, true, __ATOMIC_RELAXED); /* read after cancel_hook_remove */
    channel->ops->interrupt(channel->bytes);
}

static bool was_interrupted(struct channel *channel)
{
    return __atomic_load_n(&channel->is_interrupted, __ATOMIC_RELAXED);
}

static enum shoal_status receive_all(struct channel *channel, uint8_t *out, size_t len, int64_t deadline_ms,
                                     struct shoal_error *error)
{
    while (len) {
        struct iovec part = {out, len};
        size_t got;
        enum shoal_status status = channel->ops->receive(channel->bytes, &part, 1, &got, deadline_ms, error);
        if (status)
            return status;
        out += got;
        len -= got;
    }
    return SHOAL_OK;
}

static enum shoal_status shake_hands(struct rpc_channels *channels, struct channel *channel, uint64_t instance,
                                     int64_t deadline_ms, struct shoal_error *error)
{
    struct hello hello = channels->hello, answer;
    uint8_t frame[HELLO_MAX_BYTES];
    size_t len;
    struct iovec part;
    enum shoal_status status;

    hello.wanted = instance;
    hello.channel = channel->ops->hello_channel;
    len = hello_encode(&hello, frame);
    part = (struct iovec){frame, len};
    status = channel->ops->send(channel->bytes, &part, 1, deadline_ms, error);
    if (status == SHOAL_OK)
        status = receive_all(channel, frame, HELLO_PREFIX_BYTES, deadline_ms, error);
    if (status)
        goto lost;
    if (hello_frame_len(frame, &len))
        return error_set(error, SHOAL_PROTOCOL, 0, "%s does not speak our protocol", channel->address);
    status = receive_all(channel, frame + HELLO_PREFIX_BYTES, len - HELLO_PREFIX_BYTES, deadline_ms, error);
    if (status)
        goto lost;
    if (hello_decode(frame, len, &answer))
        return error_set(error, SHOAL_PROTOCOL, 0, "%s answered the handshake with nonsense", channel->address);
    status = hello_judge_answer(&answer, channel->address, channels->hello.cluster, instance, error);
    channel->instance = answer.instance;
    if (status == SHOAL_OK) {
        status = channel->ops->begin(channel->bytes, deadline_ms, error);
        if (status)
            goto lost;
    }
    return status;

lost:
    error_prefix(error, "%s: handshake", channel->address);
    return status;
}

/* Takes bytes, which are connected. */
static enum shoal_status open_channel(struct rpc_channels *channels, const struct byte_channel_ops *ops,
                                      struct byte_channel *bytes, const char *address, uint64_t instance,
                                      const struct call *call, struct channel **channel_out, struct shoal_error *error)
{
    struct channel *channel = malloc(sizeof *channel);
    struct cancel_hook hook;
    enum shoal_status status;

    if (!channel) {
        ops->close(bytes);
        return error_no_memory(error);
    }
    *channel = (struct channel){.ops = ops, .bytes = bytes};
    snprintf(channel->address, sizeof channel->address, "%s", address);
    cancel_hook_add(call->cancel, &hook, interrupt, channel);
    status = shake_hands(channels, channel, instance, call->deadline_ms, error);
    cancel_hook_remove(call->cancel, &hook);
    if (was_interrupted(channel))
        status = error_set(error, SHOAL_CANCELED, 0, "%s: canceled", address);
    if (status == SHOAL_OK)
        *channel_out = channel;
    else
        channel_destroy(channel);
    return status;
}

/* A peer of this host has a local socket, too. Any trouble with it: the connection that is there will do. */
static struct channel *prefer_local(struct rpc_channels *channels, struct channel *channel, const struct call *call)
{
    struct shoal_error ignored;
    struct byte_channel *bytes;
    struct channel *local;

    if (!channel->ops->dial_local || !channel->ops->dial_local(channel->instance, &bytes))
        return channel;
    if (open_channel(channels, channel->ops, bytes, channel->address, channel->instance, call, &local, &ignored))
        return channel;
    count(&channels->counters.local_dials, 1);
    channel_destroy(channel);
    return local;
}

static enum shoal_status dial_by(struct rpc_channels *channels, const struct byte_channel_ops *ops, const char *address,
                                 uint64_t instance, const struct call *call, struct channel **channel_out,
                                 struct shoal_error *error)
{
    struct byte_channel *bytes;
    struct channel *channel;
    enum shoal_status status;

    count(&channels->counters.dials, 1);
    status = ops->dial(address, channels->source[0] ? channels->source : NULL, call, &bytes, error);
    if (status) {
        error_prefix(error, "%s", address);
        return status;
    }
    status = open_channel(channels, ops, bytes, address, instance, call, &channel, error);
    if (status == SHOAL_OK)
        *channel_out = prefer_local(channels, channel, call);
    return status;
}

/* --- peers that do not offer our protocol --- */

static struct refusal *refusal_of(struct rpc_channels *channels, uint32_t hash)
{
    return &channels->refusals[hash & (BUCKETS - 1)];
}

static bool has_refused(struct rpc_channels *channels, const char *address)
{
    uint32_t hash = hash_of(address);
    bool has;

    mutex_lock(&channels->mutex);
    has = refusal_of(channels, hash)->hash == hash && refusal_of(channels, hash)->until_ms > clock_now_ms();
    mutex_unlock(&channels->mutex);
    return has;
}

static void note_refusal(struct rpc_channels *channels, const char *address, const struct shoal_error *why)
{
    uint32_t hash = hash_of(address);
    struct refusal *refusal = refusal_of(channels, hash);
    bool is_known;

    mutex_lock(&channels->mutex);
    is_known = refusal->hash == hash && refusal->until_ms;
    *refusal = (struct refusal){.hash = hash, .until_ms = deadline_after_ms(REFUSAL_MS)};
    mutex_unlock(&channels->mutex);
    if (!is_known)
        LOG_INFO("calls to %s go by TCP, not '%s': %s", address, channels->ops->name, why->message);
}

/* A dial that took the connect timeout while the call still has time: the peer is not there, others may be. */
static enum shoal_status dial(struct rpc_channels *channels, const char *address, uint64_t instance,
                              const struct call *call, struct channel **channel_out, struct shoal_error *error)
{
    struct call bounded = call_with_timeout(call, channels->connect_timeout_ms);
    const struct byte_channel_ops *ops = channels->ops;
    struct shoal_error local = {0};
    enum shoal_status status;

    if (strlen(address) >= HOSTPORT_TEXT_BYTES)
        return error_set(error, SHOAL_ADDRESS, 0, "'%.100s...' is not an address", address);
    if (ops->fallback && has_refused(channels, address))
        ops = ops->fallback;
    status = dial_by(channels, ops, address, instance, &bounded, channel_out, &local);
    if (ops->fallback &&
        (status == SHOAL_UNSUPPORTED || (status == SHOAL_UNREACHABLE && local.sys_errno == EPROTONOSUPPORT))) {
        note_refusal(channels, address, &local);
        ops = ops->fallback;
        status = dial_by(channels, ops, address, instance, &bounded, channel_out, &local);
    }
    if (status == SHOAL_OK && ops != channels->ops)
        count(&channels->counters.fallbacks, 1);
    if (status == SHOAL_TIMED_OUT && !deadline_is_past(call->deadline_ms))
        return error_set(error, SHOAL_UNREACHABLE, 0, "%s did not accept a connection within %lld ms", address,
                         (long long)channels->connect_timeout_ms);
    return status ? error_copy(error, &local) : SHOAL_OK;
}

/* --- calls --- */

/* One request on one connection. */
struct exchange {
    struct rpc_channels *channels;
    const char *address;
    uint16_t method;
    const struct iovec *parts;
    int part_count;
    size_t body_len;
    const struct call *call;
    struct buf *body_out;
    struct rpc_sink *sink; /* NULL: no attachment is wanted */
    bool has_sent;         /* the whole request, so the peer may have acted on it */
    bool has_answer;       /* a byte of it at least */
    bool is_reusable;
};

static enum shoal_status send_request(struct exchange *exchange, struct channel *channel, struct shoal_error *error)
{
    int64_t left_ms = deadline_left_ms(exchange->call->deadline_ms);
    struct rpc_frame frame = {.kind = RPC_KIND_REQUEST,
                              .method = exchange->method,
                              .id = ++channel->next_id,
                              .body_len = (uint32_t)exchange->body_len,
                              .timeout_ms = left_ms > UINT32_MAX ? UINT32_MAX : (uint32_t)left_ms};
    struct iovec parts[1 + RPC_CHANNELS_PARTS_MAX];
    uint8_t header[RPC_FRAME_HEADER_BYTES];
    enum shoal_status status;

    rpc_frame_encode(&frame, header);
    parts[0] = (struct iovec){header, sizeof header};
    if (exchange->part_count)
        memcpy(&parts[1], exchange->parts, (size_t)exchange->part_count * sizeof parts[1]);
    status = channel->ops->send(channel->bytes, parts, 1 + exchange->part_count, exchange->call->deadline_ms, error);
    exchange->has_sent = status == SHOAL_OK;
    return status;
}

/* What comes with the first receive; a small answer is all of it. */
struct first_bytes {
    uint8_t header[RPC_FRAME_HEADER_BYTES];
    uint8_t body[FIRST_RECEIVE_BYTES];
    size_t body_len;
};

static enum shoal_status receive_header(struct exchange *exchange, struct channel *channel, struct first_bytes *first,
                                        struct rpc_frame *frame_out, struct shoal_error *error)
{
    size_t len = 0;

    while (len < sizeof first->header) {
        struct iovec parts[2] = {{first->header + len, sizeof first->header - len}, {first->body, sizeof first->body}};
        size_t got;
        enum shoal_status status =
            channel->ops->receive(channel->bytes, parts, 2, &got, exchange->call->deadline_ms, error);
        if (status)
            return status;
        exchange->has_answer = true;
        len += got;
    }
    if (rpc_frame_decode(first->header, RPC_RESPONSE_MAX_BYTES, frame_out) || frame_out->kind != RPC_KIND_RESPONSE)
        return error_set(error, SHOAL_PROTOCOL, 0, "malformed or oversized answer");
    if (frame_out->id != channel->next_id)
        return error_set(error, SHOAL_PROTOCOL, 0, "an answer to no call");
    first->body_len = len - sizeof first->header;
    return SHOAL_OK;
}

/* len bytes, of which the first ones have come already: here_len at here. */
static enum shoal_status receive_rest(struct exchange *exchange, struct channel *channel, uint8_t *out, size_t len,
                                      const uint8_t *here, size_t here_len, struct shoal_error *error)
{
    if (here_len > len)
        here_len = len;
    if (here_len)
        memcpy(out, here, here_len);
    return receive_all(channel, out + here_len, len - here_len, exchange->call->deadline_ms, error);
}

static enum shoal_status receive_attachment(struct exchange *exchange, struct channel *channel, size_t len,
                                            const uint8_t *here, size_t here_len, struct shoal_error *error)
{
    struct rpc_sink *sink = exchange->sink;
    enum shoal_status status;
    uint8_t *memory;

    if (!sink)
        return error_set(error, SHOAL_PROTOCOL, 0, "an attachment that was not asked for");
    sink->len_bytes = len;
    sink->is_lost = sink->memory && len > sink->room_bytes;
    if (sink->is_lost) {
        exchange->is_reusable = false; /* it is still on its way */
        return SHOAL_OK;
    }
    memory = sink->memory ? sink->memory : malloc(len);
    if (!memory)
        return error_no_memory(error);
    status = receive_rest(exchange, channel, memory, len, here, here_len, error);
    if (status == SHOAL_OK)
        sink->memory = memory;
    else if (!sink->memory)
        free(memory);
    return status;
}

static enum shoal_status receive_body(struct exchange *exchange, struct channel *channel, struct first_bytes *first,
                                      const struct rpc_frame *frame, struct shoal_error *error)
{
    struct buf *body = exchange->body_out;
    size_t len = frame->body_len - frame->attachment_bytes;
    enum shoal_status status;

    if (!buf_reserve(body, len)) {
        if (len > body->max)
            return error_set(error, SHOAL_LIMIT, 0, "answer of %zu bytes, at most %zu are wanted", len, body->max);
        return error_no_memory(error);
    }
    status = receive_rest(exchange, channel, body->data, len, first->body, first->body_len, error);
    if (status == SHOAL_OK && frame->attachment_bytes)
        status = receive_attachment(exchange, channel, frame->attachment_bytes, first->body + len,
                                    first->body_len > len ? first->body_len - len : 0, error);
    if (status)
        return status;
    body->len = len;
    body->data[len] = 0;
    return SHOAL_OK;
}

static enum shoal_status receive_answer(struct exchange *exchange, struct channel *channel, struct shoal_error *error)
{
    struct buf *body = exchange->body_out;
    struct first_bytes first;
    struct rpc_frame frame = {0};
    enum shoal_status status = receive_header(exchange, channel, &first, &frame, error);

    if (status)
        return status;
    /* More than the answer: the peer says something that nobody asked for, and what follows cannot be told apart. */
    exchange->is_reusable = first.body_len <= frame.body_len;
    if (first.body_len > frame.body_len)
        first.body_len = frame.body_len;
    status = receive_body(exchange, channel, &first, &frame, error);
    if (status) {
        exchange->is_reusable = false;
        return status;
    }
    if (frame.status == SHOAL_OK)
        return SHOAL_OK;
    status = (enum shoal_status)frame.status;
    if (frame.status > 0 || strcmp(shoal_status_name(status), "UNKNOWN") == 0)
        status = SHOAL_PROTOCOL;
    return error_set(error, status, 0, "%.*s", body->len > 300 ? 300 : (int)body->len, (const char *)body->data);
}

/* Uses up the channel: it is idle or closed afterwards. */
static enum shoal_status run_exchange(struct exchange *exchange, struct channel *channel, struct shoal_error *error)
{
    size_t received;
    struct cancel_hook hook;
    enum shoal_status status;

    exchange->has_sent = exchange->has_answer = exchange->is_reusable = false;
    buf_consume(exchange->body_out, exchange->body_out->len);
    cancel_hook_add(exchange->call->cancel, &hook, interrupt, channel);
    status = send_request(exchange, channel, error);
    if (status == SHOAL_OK)
        status = receive_answer(exchange, channel, error);
    cancel_hook_remove(exchange->call->cancel, &hook);
    received = exchange->has_answer ? RPC_FRAME_HEADER_BYTES + exchange->body_out->len : 0;
    if (received && exchange->sink && !exchange->sink->is_lost)
        received += exchange->sink->len_bytes;
    count(&exchange->channels->counters.bytes_out,
          exchange->has_sent ? RPC_FRAME_HEADER_BYTES + exchange->body_len : 0);
    count(&exchange->channels->counters.bytes_in, received);
    if (status) {
        if (!exchange->is_reusable)
            buf_consume(exchange->body_out, exchange->body_out->len);
        error_prefix(error, "%s", exchange->address);
    }
    if (was_interrupted(channel)) {
        if (status && !exchange->is_reusable)
            status = error_set(error, SHOAL_CANCELED, 0, "%s: canceled", exchange->address);
        exchange->is_reusable = false;
    }
    if (exchange->is_reusable)
        put_idle(exchange->channels, channel);
    else
        channel_destroy(channel);
    return status;
}

static enum shoal_status call_peer(struct exchange *exchange, uint64_t instance, bool is_once,
                                   struct shoal_error *error)
{
    struct rpc_channels *channels = exchange->channels;
    struct channel *channel = take_idle(channels, exchange->address, instance, is_once);
    enum shoal_status status;

    if (channel) {
        status = run_exchange(exchange, channel, error);
        if (status != SHOAL_UNREACHABLE || exchange->has_answer)
            return status;
        rpc_channels_forget(channels, exchange->address);
        /* A frame that was not sent completely cannot have been acted on. */
        if (is_once && exchange->has_sent)
            return status;
    }
    status = dial(channels, exchange->address, instance, exchange->call, &channel, error);
    return status ? status : run_exchange(exchange, channel, error);
}

static enum shoal_status run_call(struct rpc_channels *channels, const char *address, uint64_t instance,
                                  uint16_t method, const struct iovec *parts, int part_count, const struct call *call,
                                  bool is_once, struct buf *body_out, struct rpc_sink *sink, bool *is_sent_out,
                                  struct shoal_error *error)
{
    struct exchange exchange = {.channels = channels,
                                .address = address,
                                .method = method,
                                .parts = parts,
                                .part_count = part_count,
                                .call = call,
                                .body_out = body_out,
                                .sink = sink};
    enum shoal_status status;

    buf_consume(body_out, body_out->len);
    if (sink)
        sink->len_bytes = sink->is_lost = 0;
    if (part_count < 0 || part_count > RPC_CHANNELS_PARTS_MAX)
        return error_set(error, SHOAL_INVALID_ARGUMENT, 0, "%s: a request has at most %d parts", address,
                         RPC_CHANNELS_PARTS_MAX);
    for (int i = 0; i < part_count; i++) {
        if (parts[i].iov_len > RPC_REQUEST_LARGE_MAX_BYTES - exchange.body_len)
            return error_set(error, SHOAL_LIMIT, 0, "%s: request is longer than %u bytes", address,
                             RPC_REQUEST_LARGE_MAX_BYTES);
        exchange.body_len += parts[i].iov_len;
    }
    count(&channels->counters.calls, 1);
    status = call_check(call, error, address);
    if (status == SHOAL_OK)
        status = call_peer(&exchange, instance, is_once, error);
    if (status)
        count(&channels->counters.failures, 1);
    *is_sent_out = exchange.has_sent;
    return status;
}

enum shoal_status rpc_channels_call(struct rpc_channels *channels, const char *address, uint64_t instance,
                                    uint16_t method, const struct iovec *parts, int part_count, const struct call *call,
                                    struct buf *body_out, struct shoal_error *error)
{
    bool is_sent;

    return run_call(channels, address, instance, method, parts, part_count, call, false, body_out, NULL, &is_sent,
                    error);
}

enum shoal_status rpc_channels_call_once(struct rpc_channels *channels, const char *address, uint64_t instance,
                                         uint16_t method, const struct iovec *parts, int part_count,
                                         const struct call *call, struct buf *body_out, struct shoal_error *error)
{
    bool is_sent;

    return run_call(channels, address, instance, method, parts, part_count, call, true, body_out, NULL, &is_sent,
                    error);
}

enum shoal_status rpc_channels_call_once_sent(struct rpc_channels *channels, const char *address, uint64_t instance,
                                              uint16_t method, const struct iovec *parts, int part_count,
                                              const struct call *call, struct buf *body_out, bool *is_sent_out,
                                              struct shoal_error *error)
{
    return run_call(channels, address, instance, method, parts, part_count, call, true, body_out, NULL, is_sent_out,
                    error);
}

enum shoal_status rpc_channels_call_into(struct rpc_channels *channels, const char *address, uint64_t instance,
                                         uint16_t method, const struct iovec *parts, int part_count,
                                         const struct call *call, struct buf *body_out, struct rpc_sink *sink,
                                         struct shoal_error *error)
{
    bool is_sent;

    return run_call(channels, address, instance, method, parts, part_count, call, false, body_out, sink, &is_sent,
                    error);
}
