/* SPDX-License-Identifier: Apache-2.0 */
/* Links of the requesting side: requests cut into chunks, a window of them given to UCX, WRITEs flushed. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/endian.h"
#include "base/error.h"
#include "base/log.h"
#include "base/random.h"
#include "transport/ucx_client.h"

#define LOG_MODULE "ucx"

struct chunk {
    struct list_node node; /* in link->chunks or link->spare_chunks */
    struct ucx_link *link;
    struct ucx_transfer *transfer;
    uint64_t offset, len;
    /* Of messages. Done once both sides are: UCX has sent what is written and the peer has answered. */
    uint64_t id;
    uint32_t bits; /* messages that have arrived */
    bool is_pushing, is_stored, is_refused;
    struct ucx_push push;
};

static struct ucx *ucx_of(const struct ucx_link *link)
{
    return link->conn->peer_ucx;
}

static void link_broke(struct ucx_link *link, const char *what, ucs_status_t status)
{
    struct ucx *ucx = ucx_of(link);
    char text[256];

    if (link->state == UCX_LINK_CLOSING)
        return;
    ucx_count(&ucx->sets[link->own_set].failures, 1);
    link->conn->has_failed_link = true;
    snprintf(text, sizeof text, "%s: %s", what, ucx->lib->status_string(status));
    ucx_conn_fail(link->conn, SHOAL_UNREACHABLE, text);
}

/* --- chunks --- */

static void account(struct ucx_link *link, struct chunk *chunk, int sign)
{
    struct ucx_set *set = &ucx_of(link)->sets[link->own_set];

    link->inflight_bytes += (uint64_t)(sign * (int64_t)chunk->len);
    ucx_count(&set->inflight_bytes, sign * (int64_t)chunk->len);
    link->chunk_count += (unsigned)sign;
    chunk->transfer->in_flight += (unsigned)sign;
}

/* Nothing of it is under way: its end, or first the flush that makes this true for the other side, too. */
static void transfer_done(struct ucx_link *link, struct ucx_transfer *transfer)
{
    struct shoal_error why;

    if (transfer->request->op == SHOAL_OP_WRITE && transfer->issued > 0 && !transfer->is_flushing &&
        !link->is_messaging) {
        transfer->is_flushing = true;
        list_remove(&transfer->node);
        list_push_back(&link->flushing, &transfer->node);
        ucx_worker_kick(link->worker);
        return;
    }
    why = transfer->error;
    if (transfer->is_ending)
        ucx_transfer_end(transfer, transfer->status, &why);
    else
        ucx_transfer_end(transfer, SHOAL_OK, NULL);
}

static void advance(struct ucx_transfer *transfer, const struct chunk *chunk)
{
    struct transport_request *request = transfer->request;
    uint64_t before = transfer->arrived;

    transfer->done_bits |= 1ull << ((chunk->offset - before) / UCX_CHUNK_BYTES);
    while (transfer->done_bits & 1) {
        uint64_t left = request->len_bytes - transfer->arrived;

        transfer->arrived += left < UCX_CHUNK_BYTES ? left : UCX_CHUNK_BYTES;
        transfer->done_bits >>= 1;
    }
    request->transferred_bytes = transfer->arrived;
    if (request->arrived && request->op == SHOAL_OP_READ && transfer->arrived > before && !transfer->is_ending)
        request->arrived(request, before, transfer->arrived - before);
}

static void chunk_done(struct chunk *chunk, ucs_status_t status)
{
    struct ucx_link *link = chunk->link;
    struct ucx_transfer *transfer = chunk->transfer;
    struct ucx_set *set = &ucx_of(link)->sets[link->own_set];

    account(link, chunk, -1);
    list_remove(&chunk->node);
    list_push_back(&link->spare_chunks, &chunk->node);
    if (link->state == UCX_LINK_CLOSING)
        return;
    if (status != UCS_OK) {
        link_broke(link, "UCX", status);
        return;
    }
    link->progress_ms = clock_now_ms();
    ucx_count(transfer->request->op == SHOAL_OP_READ ? &set->read_bytes : &set->write_bytes, (int64_t)chunk->len);
    advance(transfer, chunk);
    if (transfer->in_flight == 0 && (transfer->is_ending || transfer->issued == transfer->request->len_bytes))
        transfer_done(link, transfer);
}

static void chunk_called(void *request, ucs_status_t status, void *arg)
{
    struct chunk *chunk = arg;

    ucx_of(chunk->link)->lib->request_free(request);
    chunk_done(chunk, status);
}

static ucp_rkey_h rkey_of(struct ucx_link *link, struct ucx_grant *grant)
{
    ucp_rkey_h *rkey = &grant->rkeys[link->index];
    ucs_status_t status = UCS_OK;

    if (!*rkey)
        status = ucx_of(link)->lib->ep_rkey_unpack(link->worker->ep, grant->packed, rkey);
    if (status != UCS_OK) {
        *rkey = NULL;
        link_broke(link, "remote key", status);
    }
    return *rkey;
}

/* --- messages --- */

static void unreadable(struct chunk *chunk)
{
    struct ucx_link *link = chunk->link;
    struct shoal_error error;

    error_set(&error, SHOAL_IO, EFAULT, "local memory cannot be read");
    ucx_transfer_stop(chunk->transfer, SHOAL_IO, &error);
    ucx_conn_fail(link->conn, SHOAL_UNREACHABLE, "a write ended in its middle"); /* the peer waits for the rest */
}

/* It was refused; transfer is ending. */
static void chunk_drop(struct chunk *chunk)
{
    struct ucx_link *link = chunk->link;
    struct ucx_transfer *transfer = chunk->transfer;

    account(link, chunk, -1);
    list_remove(&chunk->node);
    list_push_back(&link->spare_chunks, &chunk->node);
    if (transfer->in_flight == 0)
        transfer_done(link, transfer);
}

static void pushed(struct ucx_push *push, ucs_status_t status)
{
    struct chunk *chunk = container_of(push, struct chunk, push);

    chunk->is_pushing = false;
    if (chunk->is_refused)
        chunk_drop(chunk);
    else if (status == UCS_ERR_INVALID_ADDR)
        unreadable(chunk);
    else if (status != UCS_OK || chunk->is_stored)
        chunk_done(chunk, status);
}

/* Asks the peer to send the chunk, or sends it. false: the connection fails. */
static bool exchange(struct ucx_link *link, struct chunk *chunk)
{
    const struct ucx_transfer *transfer = chunk->transfer;
    const struct transport_request *request = transfer->request;
    uint64_t addr = request->remote_addr + chunk->offset;
    struct ucx_frame frame = {.type = UCX_FRAME_PULL,
                              .addr = addr,
                              .key = transfer->grant->id,
                              .len = chunk->len,
                              .body_len = UCX_FRAME_PULL_BYTES};
    uint8_t body[UCX_FRAME_PULL_BYTES];

    frame.id = chunk->id = ++link->conn->next_id;
    if (request->op == SHOAL_OP_WRITE) {
        chunk->is_pushing = true;
        chunk->push = (struct ucx_push){.from = (const uint8_t *)request->local + chunk->offset,
                                        .header = {.token = link->peer_token,
                                                   .id = chunk->id,
                                                   .grant = transfer->grant->id,
                                                   .addr = addr,
                                                   .len = (uint32_t)chunk->len}};
        ucx_sender_add(&link->sender, &chunk->push);
        return true;
    }
    put_le64(body, link->id);
    if (!ucx_channel_send(&link->conn->channel, &frame, body))
        ucx_conn_fail(link->conn, SHOAL_UNREACHABLE, "connection was lost");
    return !link->conn->is_failed;
}

static struct chunk *find_chunk(struct ucx_link *link, uint64_t id)
{
    LIST_FOR_EACH (chunk, &link->chunks, struct chunk, node) {
        if (chunk->id == id)
            return chunk;
    }
    return NULL;
}

static struct chunk *find_exchanged(struct ucx_conn *conn, uint64_t id)
{
    struct chunk *chunk = NULL;

    for (unsigned i = 0; i < UCX_LINKS_MAX && !chunk; i++)
        if (conn->links[i].state == UCX_LINK_OPEN && conn->links[i].is_messaging)
            chunk = find_chunk(&conn->links[i], id);
    return chunk;
}

bool ucx_link_stored(struct ucx_conn *conn, uint64_t id)
{
    struct chunk *chunk = find_exchanged(conn, id);

    if (!chunk || chunk->transfer->request->op != SHOAL_OP_WRITE || chunk->is_stored)
        return false;
    chunk->is_stored = true;
    ucx_worker_kick(chunk->link->worker);
    if (!chunk->is_pushing)
        chunk_done(chunk, UCS_OK);
    return true;
}

/* From inside of UCX: bytes that were asked for. What came too late, for chunks that are no more, is nobody's. */
static ucs_status_t take(void *arg, const void *header, size_t header_len, void *data, size_t len,
                         const ucp_am_recv_param_t *param)
{
    struct ucx_link *link = arg;
    struct ucx_message message;
    enum ucx_message_kind kind = ucx_message_read(header, header_len, len, param, link->token, &message);
    struct chunk *chunk = kind == UCX_MESSAGE_GOOD ? find_chunk(link, message.id) : NULL;
    struct transport_request *request = chunk ? chunk->transfer->request : NULL;

    if (kind == UCX_MESSAGE_STRANGE || link->state != UCX_LINK_OPEN || link->conn->is_failed)
        return UCS_OK;
    if (kind == UCX_MESSAGE_BAD || (chunk && (request->op != SHOAL_OP_READ || message.len != chunk->len ||
                                              chunk->bits & ucx_message_bit(&message)))) {
        ucx_count(&ucx_of(link)->counters.protocol_errors, 1);
        ucx_conn_fail(link->conn, SHOAL_PROTOCOL, "malformed message");
    } else if (chunk && !ucx_copy_to((char *)request->local + chunk->offset + message.offset, data, len)) {
        struct shoal_error error;

        error_set(&error, SHOAL_IO, EFAULT, "local memory cannot be written");
        ucx_transfer_stop(chunk->transfer, SHOAL_IO, &error);
        ucx_conn_fail(link->conn, SHOAL_UNREACHABLE, "a read ended in its middle");
    } else if (chunk) {
        link->progress_ms = clock_now_ms();
        chunk->bits |= ucx_message_bit(&message);
        if (chunk->bits == ucx_message_all_bits(message.len))
            chunk_done(chunk, UCS_OK);
    }
    return UCS_OK;
}

/* The peer cannot access its memory. */
static void chunk_refused(struct chunk *chunk, enum shoal_status status, const struct shoal_error *error)
{
    ucx_transfer_stop(chunk->transfer, status, error);
    chunk->is_refused = true;
    if (chunk->is_pushing)
        ucx_sender_stop(&chunk->link->sender, &chunk->push);
    else
        chunk_drop(chunk);
}

/* Gives the next chunk to UCX; transfer may be gone afterwards. false: it could not. */
static bool issue(struct ucx_link *link, struct ucx_transfer *transfer)
{
    const struct ucx_lib *lib = ucx_of(link)->lib;
    const struct transport_request *request = transfer->request;
    ucp_rkey_h rkey = link->is_messaging ? NULL : rkey_of(link, transfer->grant);
    bool is_ready = link->is_messaging || rkey;
    struct list_node *spare = is_ready ? list_pop_front(&link->spare_chunks) : NULL;
    struct chunk *chunk = spare ? container_of(spare, struct chunk, node) : is_ready ? malloc(sizeof *chunk) : NULL;
    ucp_request_param_t param = {.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA,
                                 .cb.send = chunk_called,
                                 .user_data = chunk};
    uint64_t offset = transfer->issued, left = request->len_bytes - offset;
    char *local = (char *)request->local + offset;
    ucs_status_ptr_t result;

    if (!chunk) {
        if (is_ready)
            ucx_conn_fail(link->conn, SHOAL_NO_MEMORY, "out of memory");
        return false;
    }
    *chunk = (struct chunk){
        .link = link, .transfer = transfer, .offset = offset, .len = left < UCX_CHUNK_BYTES ? left : UCX_CHUNK_BYTES};
    list_push_back(&link->chunks, &chunk->node);
    if (link->chunk_count == 0 && !link->is_flush_running)
        link->progress_ms = clock_now_ms();
    account(link, chunk, 1);
    transfer->issued += chunk->len;
    list_remove(&transfer->node);
    if (chunk->len < left)
        list_push_back(&link->ready, &transfer->node);
    if (link->is_messaging)
        return exchange(link, chunk);
    if (request->op == SHOAL_OP_READ)
        result = lib->get_nbx(link->worker->ep, local, chunk->len, request->remote_addr + offset, rkey, &param);
    else
        result = lib->put_nbx(link->worker->ep, local, chunk->len, request->remote_addr + offset, rkey, &param);
    if (!UCS_PTR_IS_PTR(result))
        chunk_done(chunk, UCS_PTR_STATUS(result));
    return true;
}

/* --- flush --- */

static void flush_done(struct ucx_link *link, ucs_status_t status)
{
    struct list_node *node;

    link->is_flush_running = false;
    if (link->state == UCX_LINK_CLOSING)
        return;
    if (status != UCS_OK) {
        link_broke(link, "UCX flush", status);
        return;
    }
    link->progress_ms = clock_now_ms();
    while ((node = list_first(&link->flushed)))
        transfer_done(link, container_of(node, struct ucx_transfer, node));
}

static void flush_called(void *request, ucs_status_t status, void *arg)
{
    struct ucx_link *link = arg;

    ucx_of(link)->lib->request_free(request);
    flush_done(link, status);
}

static void flush_begin(struct ucx_link *link)
{
    ucp_request_param_t param = {.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA,
                                 .cb.send = flush_called,
                                 .user_data = link};
    struct list_node *node;
    ucs_status_ptr_t result;

    while ((node = list_pop_front(&link->flushing)))
        list_push_back(&link->flushed, node);
    if (link->chunk_count == 0)
        link->progress_ms = clock_now_ms();
    link->is_flush_running = true;
    result = ucx_of(link)->lib->ep_flush_nbx(link->worker->ep, &param);
    if (!UCS_PTR_IS_PTR(result))
        flush_done(link, UCS_PTR_STATUS(result));
}

/* Called after each progress of the worker, outside of UCX. */
static bool pump(void *arg)
{
    struct ucx_link *link = arg;
    bool is_busy = false;

    if (link->state != UCX_LINK_OPEN || link->conn->is_failed)
        return false;
    while (!list_is_empty(&link->ready) && link->chunk_count < UCX_WINDOW_CHUNKS &&
           link->inflight_bytes < UCX_WINDOW_BYTES) {
        struct ucx_transfer *transfer = container_of(list_first(&link->ready), struct ucx_transfer, node);

        if (transfer->issued - transfer->arrived >= (uint64_t)UCX_TRANSFER_CHUNKS * UCX_CHUNK_BYTES)
            break; /* one chunk is late; the others of this request have no bit left */
        if (!issue(link, transfer))
            return false;
        is_busy = true;
    }
    if (link->is_messaging)
        is_busy |= ucx_sender_pump(&link->sender);
    if (!list_is_empty(&link->flushing) && !link->is_flush_running) {
        flush_begin(link);
        is_busy = true;
    }
    return is_busy;
}

/* --- life --- */

static void ep_failed(void *arg, ucp_ep_h ep, ucs_status_t status)
{
    (void)ep;
    link_broke(arg, "UCX endpoint", status);
}

static enum shoal_status own_set(struct ucx_conn *conn, const struct ucx_transfer *transfer, unsigned *set_out,
                                 struct shoal_error *error)
{
    struct ucx *ucx = conn->peer_ucx;
    const struct transport_request *request = transfer->request;
    bool is_fallback = conn->peer->fallback_until_ms > clock_now_ms();
    /* What is staged for device memory goes over the devices near that memory. */
    const char *location = request->local_region ? memory_location(request->local_region) : "*";
    enum shoal_status status;

    status = ucx_set_choose(ucx, location, is_fallback, set_out, error);
    if (status == SHOAL_OK)
        status = ucx_set_open(ucx, *set_out, error);
    if (status != SHOAL_OK && ucx->has_fallback && !is_fallback) {
        status = ucx_set_choose(ucx, location, true, set_out, error);
        if (status == SHOAL_OK)
            status = ucx_set_open(ucx, *set_out, error);
    }
    return status;
}

enum shoal_status ucx_link_get(struct ucx_conn *conn, const struct ucx_transfer *transfer, unsigned peer_set,
                               struct ucx_link **out, struct shoal_error *error)
{
    struct ucx_frame frame = {.type = UCX_FRAME_LINK, .set = (uint16_t)peer_set, .key = random_id()};
    const struct ucx_lib *lib = conn->peer_ucx->lib;
    struct ucx_link *link, *spare = NULL;
    ucp_address_t *address = NULL;
    size_t len = 0;
    unsigned set;
    enum shoal_status status = own_set(conn, transfer, &set, error);

    if (status != SHOAL_OK) {
        transfer->request->refusal = "no device";
        return SHOAL_UNSUPPORTED;
    }
    for (unsigned i = 0; i < UCX_LINKS_MAX; i++) {
        link = &conn->links[i];
        if (link->state == UCX_LINK_NONE) {
            spare = spare ? spare : link;
        } else if (link->own_set == set && link->peer_set == peer_set) {
            *out = link;
            return SHOAL_OK;
        }
    }
    if (!spare) {
        transfer->request->refusal = "too many links";
        return error_set(error, SHOAL_UNSUPPORTED, 0, "'%s': more than %d pairs of device sets", conn->peer->name,
                         UCX_LINKS_MAX);
    }
    frame.id = ++conn->next_id;
    *spare = (struct ucx_link){.conn = conn,
                               .state = UCX_LINK_OPENING,
                               .index = (unsigned)(spare - conn->links),
                               .own_set = set,
                               .peer_set = peer_set,
                               .id = frame.id,
                               .token = frame.key};
    list_init(&spare->ready);
    list_init(&spare->flushing);
    list_init(&spare->flushed);
    list_init(&spare->chunks);
    list_init(&spare->spare_chunks);
    status = ucx_worker_create(conn->peer_ucx, set, pump, spare, &spare->worker, error);
    ucx_sender_init(&spare->sender, spare->worker, pushed);
    if (status == SHOAL_OK && (ucx_am_receive(lib, spare->worker->handle, UCX_MESSAGE_ID, take, spare) != UCS_OK ||
                               lib->worker_get_address(spare->worker->handle, &address, &len) != UCS_OK)) {
        ucx_worker_destroy(spare->worker);
        status = error_set(error, SHOAL_UNSUPPORTED, 0, "the worker has no address");
    }
    if (status != SHOAL_OK) {
        spare->state = UCX_LINK_NONE;
        transfer->request->refusal = "no device";
        return SHOAL_UNSUPPORTED;
    }
    frame.body_len = (uint32_t)len;
    if (len > UCX_FRAME_BODY_MAX_BYTES || !ucx_channel_send(&conn->channel, &frame, address))
        ucx_conn_fail(conn, SHOAL_UNREACHABLE, "connection was lost");
    lib->worker_release_address(spare->worker->handle, address);
    *out = spare;
    return SHOAL_OK;
}

void ucx_link_add(struct ucx_link *link, struct ucx_transfer *transfer)
{
    transfer->link = link;
    list_remove(&transfer->node);
    list_push_back(&link->ready, &transfer->node);
    if (link->state == UCX_LINK_OPEN)
        ucx_worker_kick(link->worker);
}

/* There will be no link: what waits for it may go by another transport, unless there are other devices to try. */
static void give_up(struct ucx_link *link, const struct shoal_error *error)
{
    struct ucx *ucx = ucx_of(link);
    struct list_node *node;

    ucx_count(&ucx->sets[link->own_set].failures, 1);
    link->state = UCX_LINK_NONE;
    ucx_worker_destroy(link->worker);
    link->worker = NULL;
    if (ucx->has_fallback && link->conn->peer->fallback_until_ms <= clock_now_ms()) {
        link->conn->has_failed_link = true;
        while ((node = list_first(&link->ready))) {
            container_of(node, struct ucx_transfer, node)->link = NULL;
            list_remove(node);
        }
        ucx_conn_fail(link->conn, SHOAL_UNREACHABLE, error->message);
        return;
    }
    while ((node = list_first(&link->ready))) {
        struct ucx_transfer *transfer = container_of(node, struct ucx_transfer, node);

        transfer->request->refusal = "no common device";
        ucx_transfer_end(transfer, SHOAL_UNSUPPORTED, error);
    }
}

static struct ucx_link *find_opening(struct ucx_conn *conn, uint64_t id)
{
    for (unsigned i = 0; i < UCX_LINKS_MAX; i++)
        if (conn->links[i].state == UCX_LINK_OPENING && conn->links[i].id == id)
            return &conn->links[i];
    return NULL;
}

bool ucx_link_open(struct ucx_conn *conn, uint64_t id, uint64_t peer_token, const uint8_t *address)
{
    struct ucx_link *link = find_opening(conn, id);
    struct ucx *ucx = conn->peer_ucx;
    struct shoal_error error;

    if (!link)
        return false;
    if (ucx_worker_connect(link->worker, address, ep_failed, link, &error) != SHOAL_OK) {
        error_prefix(&error, "'%s'", conn->peer->name);
        give_up(link, &error);
        return true;
    }
    /* Where UCX answers a get or a put in software, a peer that dies takes this process with it (UCX 1.13 aborts when
     * an answer cannot be sent). Shared memory always takes an answer, and RDMA devices answer without software. */
    link->is_messaging = link->worker->has_error_handling && !ucx->is_one_sided;
    link->peer_token = peer_token;
    link->state = UCX_LINK_OPEN;
    link->progress_ms = clock_now_ms();
    ucx_count(&ucx->counters.links, 1);
    ucx_worker_kick(link->worker); /* for what has waited */
    LOG_DEBUG("link to '%s' over %s", conn->peer->name,
              ucx->sets[link->own_set].devices[0] ? ucx->sets[link->own_set].devices : "all devices");
    return true;
}

bool ucx_link_refused(struct ucx_conn *conn, uint64_t id, const struct shoal_error *error)
{
    struct ucx_link *link = find_opening(conn, id);
    struct chunk *chunk = link ? NULL : find_exchanged(conn, id);

    if (link)
        give_up(link, error);
    else if (chunk)
        chunk_refused(chunk, error->status, error);
    return link || chunk;
}

void ucx_link_stop(struct ucx_transfer *transfer)
{
    if (transfer->is_flushing)
        return; /* it ends with the flush */
    list_remove(&transfer->node);
    if (transfer->in_flight == 0)
        transfer_done(transfer->link, transfer);
}

static void link_close(struct ucx_link *link)
{
    struct ucx *ucx = ucx_of(link);
    const struct ucx_lib *lib = ucx->lib;
    bool is_quiet = !link->is_flush_running || link->worker->has_error_handling;
    struct list_node *node;

    link->state = UCX_LINK_CLOSING;
    ucx_sender_close(&link->sender);
    is_quiet =
        ucx_worker_disconnect(link->worker, link->is_messaging ? &link->sender.flying_count : &link->chunk_count) &&
        is_quiet;
    LIST_FOR_EACH (grant, &link->conn->grants, struct ucx_grant, node) {
        /* A request that still holds the key is released with the worker, and so is the key. */
        if (grant->rkeys[link->index] && is_quiet)
            lib->rkey_destroy(grant->rkeys[link->index]);
        grant->rkeys[link->index] = NULL;
    }
    ucx_worker_destroy(link->worker);
    link->worker = NULL;
    ucx_sender_release(&link->sender);
    while ((node = list_pop_front(&link->chunks))) {
        struct chunk *chunk = container_of(node, struct chunk, node);

        account(link, chunk, -1);
        free(chunk);
    }
    while ((node = list_pop_front(&link->spare_chunks)))
        free(container_of(node, struct chunk, node));
    ucx_count(&ucx->counters.links, -1);
}

void ucx_links_close(struct ucx_conn *conn)
{
    for (unsigned i = 0; i < UCX_LINKS_MAX; i++) {
        struct ucx_link *link = &conn->links[i];

        if (link->state == UCX_LINK_OPEN)
            link_close(link);
        else if (link->state == UCX_LINK_OPENING)
            ucx_worker_destroy(link->worker);
        link->state = UCX_LINK_NONE;
    }
    LIST_FOR_EACH (transfer, &conn->peer->transfers, struct ucx_transfer, peer_node) {
        list_remove(&transfer->node);
        transfer->link = NULL;
    }
}

void ucx_links_nudge(struct ucx_conn *conn)
{
    for (unsigned i = 0; i < UCX_LINKS_MAX; i++)
        if (conn->links[i].state == UCX_LINK_OPEN)
            ucx_sender_nudge(&conn->links[i].sender);
}

void ucx_links_touch(struct ucx_conn *conn, int64_t now_ms)
{
    for (unsigned i = 0; i < UCX_LINKS_MAX; i++)
        conn->links[i].progress_ms = now_ms;
}

bool ucx_links_are_opening(const struct ucx_conn *conn)
{
    for (unsigned i = 0; i < UCX_LINKS_MAX; i++)
        if (conn->links[i].state == UCX_LINK_OPENING)
            return true;
    return false;
}

int64_t ucx_links_silent_ms(const struct ucx_conn *conn, int64_t now_ms)
{
    int64_t silent_ms = 0;

    for (unsigned i = 0; i < UCX_LINKS_MAX; i++) {
        const struct ucx_link *link = &conn->links[i];

        if (link->state == UCX_LINK_OPEN && (link->chunk_count > 0 || link->is_flush_running) &&
            now_ms - link->progress_ms > silent_ms)
            silent_ms = now_ms - link->progress_ms;
    }
    return silent_ms;
}
