/* SPDX-License-Identifier: Apache-2.0 */
/* The serving side: accepted connections, the workers that peers reach, and the memory that they were granted. */
#include <assert.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/endian.h"
#include "base/error.h"
#include "base/log.h"
#include "base/random.h"
#include "transport/ucx_message.h"

#define LOG_MODULE "ucx"

#define PULLS_MAX (2 * UCX_WINDOW_CHUNKS) /* of one link */
#define ARRIVALS_MAX UCX_WINDOW_CHUNKS    /* of one link */

/* A chunk that the requester asked for. */
struct pull {
    struct list_node node; /* in link->pulls */
    struct serving_link *link;
    struct ucx_push push;
};

/* A chunk that the requester is writing. */
struct arrival {
    struct list_node node; /* in link->arrivals */
    uint64_t id, grant, addr;
    uint32_t len, bits; /* messages that have come */
    bool is_failed;     /* memory cannot be written */
};

struct serving_link {
    struct ucx_serving *serving;
    uint64_t id;
    struct ucx_worker *worker; /* owned */
    uint8_t *address;          /* owned: of the requester's worker */
    uint64_t token;            /* of messages to us */
    uint64_t peer_token;       /* and to the requester */
    struct list pulls;         /* struct pull */
    struct list arrivals;      /* struct arrival */
    unsigned pull_count, arrival_count;
    struct ucx_sender sender;
    bool is_closing;
};

struct ucx_serving {
    struct ucx *ucx;
    struct list_node node; /* in ucx->servings */
    struct loop_task attach_task;
    int fd; /* until it is attached */
    char peer_name[HELLO_NAME_MAX_BYTES + 1];
    struct ucx_channel channel;
    struct list lent; /* struct ucx_lent */
    unsigned lent_count;
    struct serving_link links[UCX_LINKS_MAX];
    unsigned link_count;
    int64_t heard_ms;
    bool is_failed; /* closed soon */
    struct loop_task fail_task;
    bool is_fail_posted, is_closed;
};

static void pull_free(struct pull *pull)
{
    pull->link->pull_count--;
    list_remove(&pull->node);
    free(pull);
}

static void arrival_free(struct serving_link *link, struct arrival *arrival)
{
    link->arrival_count--;
    list_remove(&arrival->node);
    free(arrival);
}

/* The link touches no memory under that grant any more. */
static void link_forget(struct serving_link *link, uint64_t grant)
{
    LIST_FOR_EACH_SAFE (pull, &link->pulls, struct pull, node) {
        if (pull->push.header.grant == grant)
            ucx_sender_stop(&link->sender, &pull->push);
    }
    LIST_FOR_EACH_SAFE (arrival, &link->arrivals, struct arrival, node) {
        if (arrival->grant == grant)
            arrival_free(link, arrival);
    }
}

static void drop_lent(struct ucx_lent *lent)
{
    for (unsigned i = 0; i < lent->serving->link_count; i++)
        link_forget(&lent->serving->links[i], lent->id);
    list_remove(&lent->node);
    lent->serving->lent_count--;
    ucx_mapping_drop(lent->mapping, lent);
    free(lent);
}

/* Afterwards nobody accesses memory through its worker, and no callback comes. */
static void link_close(struct serving_link *link)
{
    link->is_closing = true;
    ucx_sender_close(&link->sender);
    (void)ucx_worker_disconnect(link->worker, &link->sender.flying_count);
    ucx_worker_destroy(link->worker);
    ucx_sender_release(&link->sender);
    LIST_FOR_EACH_SAFE (pull, &link->pulls, struct pull, node)
        pull_free(pull);
    LIST_FOR_EACH_SAFE (arrival, &link->arrivals, struct arrival, node)
        arrival_free(link, arrival);
    free(link->address);
}

static void serving_free(void *arg)
{
    free(arg);
}

/* Not from inside UCX. */
static void serving_close(struct ucx_serving *serving)
{
    struct ucx *ucx = serving->ucx;
    struct list_node *node;

    serving->is_closed = true;
    list_remove(&serving->node);
    ucx_channel_close(&serving->channel);
    for (unsigned i = 0; i < serving->link_count; i++)
        link_close(&serving->links[i]);
    ucx_count(&ucx->counters.serving_links, -(int64_t)serving->link_count);
    serving->link_count = 0;
    while ((node = list_first(&serving->lent)))
        drop_lent(container_of(node, struct ucx_lent, node));
    ucx_count(&ucx->counters.servings, -1);
    endpoint_released(ucx->env.endpoint);
    if (!serving->is_fail_posted)
        serving_free(serving);
    ucx_live(ucx, -1);
}

static void fail_posted(void *arg)
{
    struct ucx_serving *serving = arg;

    serving->is_fail_posted = false;
    if (serving->is_closed)
        serving_free(serving);
    else
        serving_close(serving);
}

/* Closes it soon; may be called from inside of UCX. */
static void serving_fail(struct ucx_serving *serving)
{
    serving->is_failed = true;
    if (serving->is_fail_posted || serving->is_closed)
        return;
    serving->is_fail_posted = true;
    loop_post(serving->ucx->loop, &serving->fail_task, fail_posted, serving);
}

static void serving_lost(void *arg, bool is_malformed, int sys_errno)
{
    struct ucx_serving *serving = arg;

    (void)sys_errno;
    if (is_malformed) {
        ucx_count(&serving->ucx->counters.protocol_errors, 1);
        LOG_WARN("'%s' sent a malformed frame", serving->peer_name);
    }
    serving_close(serving);
}

/* false: closed. */
static bool answer(struct ucx_serving *serving, const struct ucx_frame *frame, const void *body)
{
    if (ucx_channel_send(&serving->channel, frame, body))
        return true;
    serving_close(serving);
    return false;
}

static bool refuse(struct ucx_serving *serving, uint64_t id, enum ucx_frame_code code, const char *text)
{
    struct ucx_frame frame = {.type = UCX_FRAME_REFUSE, .code = (uint8_t)code, .id = id};
    size_t len = strlen(text);

    frame.body_len = (uint32_t)(len < UCX_FRAME_REASON_MAX_BYTES ? len : UCX_FRAME_REASON_MAX_BYTES);
    return answer(serving, &frame, text);
}

static bool grant(struct ucx_lent *lent)
{
    const struct ucx_mapping *mapping = lent->mapping;
    struct ucx_frame frame = {.type = UCX_FRAME_GRANT,
                              .set = (uint16_t)mapping->set,
                              .body_len = (uint32_t)mapping->rkey_len,
                              .id = lent->id,
                              .addr = mapping->bounds.addr,
                              .key = mapping->bounds.key,
                              .len = mapping->bounds.len};

    ucx_count(&lent->serving->ucx->counters.grants, 1);
    return answer(lent->serving, &frame, mapping->rkey);
}

void ucx_serving_mapped(struct ucx_lent *lent)
{
    struct ucx_serving *serving = lent->serving;
    uint64_t id = lent->id;
    struct shoal_error error;

    if (!lent->mapping->is_failed) {
        (void)grant(lent);
        return;
    }
    error = lent->mapping->error;
    drop_lent(lent);
    (void)refuse(serving, id, UCX_FRAME_UNSUPPORTED, error.message);
}

static struct ucx_lent *find_lent(struct ucx_serving *serving, uint64_t id)
{
    LIST_FOR_EACH (lent, &serving->lent, struct ucx_lent, node) {
        if (lent->id == id)
            return lent;
    }
    return NULL;
}

static bool serve_ask(struct ucx_serving *serving, const struct ucx_frame *frame)
{
    struct ucx *ucx = serving->ucx;
    unsigned access = (frame->code & UCX_FRAME_READ ? SHOAL_ACCESS_REMOTE_READ : 0u) |
                      (frame->code & UCX_FRAME_WRITE ? SHOAL_ACCESS_REMOTE_WRITE : 0u);
    struct memory_region *region;
    const char *reason = NULL;
    struct ucx_lent *lent;
    struct shoal_error error;
    enum shoal_status status;
    unsigned set = 0;

    if (serving->lent_count == 2 * UCX_GRANTS_MAX)
        return refuse(serving, frame->id, UCX_FRAME_LIMIT, "too many grants on this connection");
    status = memory_pin(ucx->env.memory, frame->addr, frame->len, frame->key, access, &region, &reason);
    if (status != SHOAL_OK) {
        ucx_count(&ucx->counters.grant_refusals, 1);
        return refuse(serving, frame->id, status == SHOAL_IO ? UCX_FRAME_UNREADABLE : UCX_FRAME_INVALID, reason);
    }
    if (memory_device(region)) {
        memory_unpin(ucx->env.memory, region);
        ucx_count(&ucx->counters.grant_refusals, 1);
        return refuse(serving, frame->id, UCX_FRAME_UNSUPPORTED, "device memory goes through staging buffers");
    }
    lent = calloc(1, sizeof *lent);
    status = lent ? ucx_set_choose(ucx, memory_location(region), frame->code & UCX_FRAME_FALLBACK, &set, &error)
                  : error_no_memory(&error);
    if (status == SHOAL_OK)
        status = ucx_set_open(ucx, set, &error);
    if (status != SHOAL_OK && ucx->has_fallback && !(frame->code & UCX_FRAME_FALLBACK) && lent &&
        ucx_set_choose(ucx, memory_location(region), true, &set, &error) == SHOAL_OK)
        status = ucx_set_open(ucx, set, &error); /* the preferred devices are not even there */
    if (status != SHOAL_OK) {
        memory_unpin(ucx->env.memory, region);
    } else {
        *lent = (struct ucx_lent){.serving = serving, .id = frame->id, .access = frame->code};
        list_node_init(&lent->waiting_node);
        status = ucx_mapping_use(ucx, set, region, lent, &lent->mapping, &error);
    }
    if (status != SHOAL_OK) {
        free(lent);
        ucx_count(&ucx->counters.grant_refusals, 1);
        return refuse(serving, frame->id, status == SHOAL_LIMIT ? UCX_FRAME_LIMIT : UCX_FRAME_UNSUPPORTED,
                      error.message);
    }
    list_push_back(&serving->lent, &lent->node);
    serving->lent_count++;
    return lent->mapping->is_mapped ? grant(lent) : true;
}

/* --- bytes --- */

static void report(struct serving_link *link, const struct ucx_frame *frame, const char *text)
{
    if (!link->serving->is_failed && !ucx_channel_send(&link->serving->channel, frame, text))
        serving_fail(link->serving);
}

/* A mapped file shrank. Who asks for a grant again is told so. */
static void refuse_memory(struct serving_link *link, uint64_t id, uint64_t grant_id, const char *text)
{
    struct ucx *ucx = link->serving->ucx;
    struct ucx_lent *lent = find_lent(link->serving, grant_id);
    struct ucx_frame refuse_it = {
        .type = UCX_FRAME_REFUSE, .code = UCX_FRAME_UNREADABLE, .id = id, .body_len = (uint32_t)strlen(text)};
    struct ucx_frame revoke_it = {.type = UCX_FRAME_REVOKE, .id = grant_id};

    report(link, &refuse_it, text);
    if (!lent || lent->revoke_deadline_ms)
        return;
    LOG_WARN("registered memory at %#" PRIx64 " is not accessible (was a mapped file truncated?)",
             lent->mapping->bounds.addr);
    memory_mark_faulty(ucx->env.memory, lent->mapping->region);
    ucx_count(&ucx->counters.revocations, 1);
    lent->revoke_deadline_ms = deadline_after_ms(UCX_REVOKE_TIMEOUT_MS);
    report(link, &revoke_it, NULL);
}

/* A chunk that was asked for was sent, or will not be. */
static void pushed(struct ucx_push *push, ucs_status_t status)
{
    struct pull *pull = container_of(push, struct pull, push);
    struct serving_link *link = pull->link;
    uint64_t id = push->header.id, grant_id = push->header.grant;

    pull_free(pull);
    if (status == UCS_ERR_INVALID_ADDR)
        refuse_memory(link, id, grant_id, "memory is unreadable");
    else if (status != UCS_OK && status != UCS_ERR_CANCELED)
        serving_fail(link->serving);
}

/* Called after each progress of the worker. */
static bool pump(void *arg)
{
    struct serving_link *link = arg;

    return !link->is_closing && ucx_sender_pump(&link->sender);
}

static void ep_failed(void *arg, ucp_ep_h ep, ucs_status_t status)
{
    struct serving_link *link = arg;

    (void)ep;
    (void)status;
    if (!link->is_closing)
        serving_fail(link->serving);
}

static struct serving_link *find_link(struct ucx_serving *serving, uint64_t id)
{
    for (unsigned i = 0; i < serving->link_count; i++)
        if (serving->links[i].id == id)
            return &serving->links[i];
    return NULL;
}

/* Whether the peer may access that range in that way. */
static bool is_granted(const struct ucx_lent *lent, unsigned access, uint64_t addr, uint64_t len)
{
    const struct memory_bounds *bounds;

    if (!lent || !(lent->access & access) || !lent->mapping->is_mapped || lent->mapping->is_failed)
        return false;
    bounds = &lent->mapping->bounds;
    return addr >= bounds->addr && addr - bounds->addr <= bounds->len && len <= bounds->len - (addr - bounds->addr);
}

static void count_violation(struct ucx_serving *serving)
{
    ucx_count(&serving->ucx->counters.protocol_errors, 1);
    LOG_WARN("'%s' asks for memory that it was not granted, or for too much at once", serving->peer_name);
}

static bool serve_pull(struct ucx_serving *serving, const struct ucx_frame *frame, const uint8_t *body)
{
    struct serving_link *link = find_link(serving, get_le64(body));
    struct pull *pull;

    if (!link || link->pull_count == PULLS_MAX ||
        !is_granted(find_lent(serving, frame->key), UCX_FRAME_READ, frame->addr, frame->len)) {
        count_violation(serving);
        serving_close(serving);
        return false;
    }
    pull = calloc(1, sizeof *pull);
    if (!pull ||
        (!link->worker->ep && ucx_worker_connect(link->worker, link->address, ep_failed, link, NULL) != SHOAL_OK)) {
        free(pull);
        serving_close(serving);
        return false;
    }
    pull->link = link;
    pull->push = (struct ucx_push){
        .from = (const uint8_t *)(uintptr_t)frame->addr,
        .header = {.token = link->peer_token, .id = frame->id, .grant = frame->key, .len = (uint32_t)frame->len}};
    list_push_back(&link->pulls, &pull->node);
    link->pull_count++;
    ucx_sender_add(&link->sender, &pull->push);
    ucx_worker_kick(link->worker);
    return true;
}

/* NULL: not a message that the peer may send. */
static struct arrival *arrival_of(struct serving_link *link, const struct ucx_message *message)
{
    struct arrival *arrival;

    LIST_FOR_EACH (known, &link->arrivals, struct arrival, node) {
        if (known->id == message->id)
            return known->grant == message->grant && known->addr == message->addr && known->len == message->len &&
                           !(known->bits & ucx_message_bit(message))
                       ? known
                       : NULL;
    }
    if (link->arrival_count == ARRIVALS_MAX ||
        !is_granted(find_lent(link->serving, message->grant), UCX_FRAME_WRITE, message->addr, message->len))
        return NULL;
    arrival = calloc(1, sizeof *arrival);
    if (!arrival)
        return NULL;
    *arrival = (struct arrival){.id = message->id, .grant = message->grant, .addr = message->addr, .len = message->len};
    list_push_back(&link->arrivals, &arrival->node);
    link->arrival_count++;
    return arrival;
}

/* From inside of UCX: bytes that the requester writes. */
static ucs_status_t take(void *arg, const void *header, size_t header_len, void *data, size_t len,
                         const ucp_am_recv_param_t *param)
{
    struct serving_link *link = arg;
    struct ucx_message message;
    enum ucx_message_kind kind = ucx_message_read(header, header_len, len, param, link->token, &message);
    struct ucx_frame stored = {.type = UCX_FRAME_STORED};
    struct arrival *arrival;

    if (kind == UCX_MESSAGE_STRANGE || link->is_closing || link->serving->is_failed)
        return UCS_OK;
    link->serving->heard_ms = clock_now_ms();
    arrival = kind == UCX_MESSAGE_GOOD ? arrival_of(link, &message) : NULL;
    if (!arrival) {
        count_violation(link->serving);
        serving_fail(link->serving);
        return UCS_OK;
    }
    if (!ucx_copy_to((void *)(uintptr_t)(arrival->addr + message.offset), data, len))
        arrival->is_failed = true;
    arrival->bits |= ucx_message_bit(&message);
    if (arrival->bits != ucx_message_all_bits(arrival->len))
        return UCS_OK;
    stored.id = arrival->id;
    if (arrival->is_failed)
        refuse_memory(link, arrival->id, arrival->grant, "memory is unwritable");
    else
        report(link, &stored, NULL);
    arrival_free(link, arrival);
    return UCS_OK;
}

static bool serve_link(struct ucx_serving *serving, const struct ucx_frame *frame, const uint8_t *body)
{
    struct ucx *ucx = serving->ucx;
    struct ucx_frame linked = {.type = UCX_FRAME_LINKED, .id = frame->id, .key = random_id()};
    struct serving_link *link = &serving->links[serving->link_count];
    ucp_address_t *address;
    struct shoal_error error;
    size_t len;
    bool is_sent;

    if (frame->set >= ucx->set_count || !ucx->sets[frame->set].context)
        return refuse(serving, frame->id, UCX_FRAME_INVALID, "no grant names these devices");
    if (serving->link_count == UCX_LINKS_MAX ||
        __atomic_load_n(&ucx->counters.serving_links, __ATOMIC_RELAXED) >= UCX_SERVING_LINKS_MAX)
        return refuse(serving, frame->id, UCX_FRAME_LIMIT, "too many links");
    *link = (struct serving_link){.serving = serving,
                                  .id = frame->id,
                                  .token = linked.key,
                                  .peer_token = frame->key,
                                  .address = malloc(frame->body_len)};
    list_init(&link->pulls);
    list_init(&link->arrivals);
    if (!link->address)
        return refuse(serving, frame->id, UCX_FRAME_LIMIT, "out of memory");
    memcpy(link->address, body, frame->body_len);
    if (ucx_worker_create(ucx, frame->set, pump, link, &link->worker, &error) != SHOAL_OK) {
        free(link->address);
        return refuse(serving, frame->id, UCX_FRAME_UNSUPPORTED, error.message);
    }
    ucx_sender_init(&link->sender, link->worker, pushed);
    if (ucx_am_receive(ucx->lib, link->worker->handle, UCX_MESSAGE_ID, take, link) != UCS_OK ||
        ucx->lib->worker_get_address(link->worker->handle, &address, &len) != UCS_OK ||
        len > UCX_FRAME_BODY_MAX_BYTES) {
        ucx_worker_destroy(link->worker);
        free(link->address);
        return refuse(serving, frame->id, UCX_FRAME_UNSUPPORTED, "the worker has no usable address");
    }
    serving->link_count++;
    ucx_count(&ucx->counters.serving_links, 1);
    linked.body_len = (uint32_t)len;
    is_sent = ucx_channel_send(&serving->channel, &linked, address);
    ucx->lib->worker_release_address(link->worker->handle, address);
    if (!is_sent)
        serving_close(serving);
    return is_sent;
}

static bool serving_frame(void *arg, const struct ucx_frame *frame, const uint8_t *body)
{
    struct ucx_serving *serving = arg;
    struct ucx_lent *lent;

    if (serving->is_failed)
        return true;
    serving->heard_ms = clock_now_ms();
    switch (frame->type) {
    case UCX_FRAME_ASK:
        if (find_lent(serving, frame->id))
            break;
        return serve_ask(serving, frame);
    case UCX_FRAME_LINK:
        return serve_link(serving, frame, body);
    case UCX_FRAME_PULL:
        return serve_pull(serving, frame, body);
    case UCX_FRAME_RELEASE:
    case UCX_FRAME_REVOKED:
        /* Both may come for one grant, if its end was asked for while it was given back. */
        lent = find_lent(serving, frame->id);
        if (lent && lent->mapping->is_mapped)
            drop_lent(lent);
        return true;
    case UCX_FRAME_PING:
        return true;
    default:
        break;
    }
    ucx_count(&serving->ucx->counters.protocol_errors, 1);
    LOG_WARN("'%s' sent an unexpected frame", serving->peer_name);
    serving_close(serving);
    return false;
}

static void attach(void *arg)
{
    struct ucx_serving *serving = arg;
    struct ucx *ucx = serving->ucx;
    enum shoal_status status = SHOAL_CLOSED;

    if (!ucx->is_closing)
        status = ucx_channel_open(&serving->channel, ucx->loop, serving->fd, NULL);
    else
        close(serving->fd);
    list_push_back(&ucx->servings, &serving->node);
    ucx_count(&ucx->counters.servings, 1);
    serving->heard_ms = clock_now_ms();
    if (status != SHOAL_OK) {
        serving->channel.fd = -1;
        serving_close(serving);
    }
}

void ucx_serving_accept(void *arg, int fd, const struct hello *peer)
{
    struct ucx *ucx = arg;
    struct ucx_serving *serving = NULL;

    if (__atomic_load_n(&ucx->counters.servings, __ATOMIC_RELAXED) < UCX_SERVINGS_MAX)
        serving = calloc(1, sizeof *serving);
    if (!serving) {
        close(fd);
        endpoint_released(ucx->env.endpoint);
        return;
    }
    serving->ucx = ucx;
    serving->fd = fd;
    serving->channel =
        (struct ucx_channel){.fd = -1, .on_frame = serving_frame, .on_lost = serving_lost, .arg = serving};
    list_init(&serving->lent);
    memcpy(serving->peer_name, peer->name, sizeof serving->peer_name);
    ucx_live(ucx, 1);
    loop_post(ucx->loop, &serving->attach_task, attach, serving);
}

void ucx_serving_revoke(struct ucx *ucx, const struct memory_region *region)
{
    int64_t deadline_ms = deadline_after_ms(UCX_REVOKE_TIMEOUT_MS);

    LIST_FOR_EACH_SAFE (serving, &ucx->servings, struct ucx_serving, node) {
        LIST_FOR_EACH_SAFE (lent, &serving->lent, struct ucx_lent, node) {
            struct ucx_frame frame = {.type = UCX_FRAME_REVOKE, .id = lent->id};

            if (lent->mapping->region != region || lent->revoke_deadline_ms)
                continue;
            if (!lent->mapping->is_mapped) {
                drop_lent(lent);
                if (!refuse(serving, frame.id, UCX_FRAME_INVALID, "memory is being unregistered"))
                    break;
                continue;
            }
            ucx_count(&ucx->counters.revocations, 1);
            lent->revoke_deadline_ms = deadline_ms;
            if (!answer(serving, &frame, NULL))
                break;
        }
    }
}

static bool is_overdue(const struct ucx_serving *serving, int64_t now_ms)
{
    LIST_FOR_EACH (lent, &serving->lent, struct ucx_lent, node) {
        if (lent->revoke_deadline_ms && now_ms > lent->revoke_deadline_ms)
            return true;
    }
    return false;
}

void ucx_serving_tick(struct ucx *ucx, int64_t now_ms, bool is_late)
{
    LIST_FOR_EACH_SAFE (serving, &ucx->servings, struct ucx_serving, node) {
        for (unsigned i = 0; i < serving->link_count; i++)
            ucx_sender_nudge(&serving->links[i].sender);
        if (is_late) {
            serving->heard_ms = now_ms;
        } else if (is_overdue(serving, now_ms)) {
            ucx_count(&ucx->counters.revoke_timeouts, 1);
            LOG_WARN("'%s' did not give memory back in time: its connection is closed", serving->peer_name);
            serving_close(serving);
        } else if (now_ms - serving->heard_ms > UCX_SILENCE_MS) {
            serving_close(serving);
        }
    }
}

void ucx_serving_close_all(struct ucx *ucx)
{
    LIST_FOR_EACH_SAFE (serving, &ucx->servings, struct ucx_serving, node)
        serving_close(serving);
}
