/* SPDX-License-Identifier: Apache-2.0 */
#include "rpc/ucx_pipe.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#include "base/endian.h"
#include "base/error.h"
#include "base/list.h"
#include "base/map.h"
#include "base/mutex.h"
#include "base/random.h"
#include "transport/ucx_am.h"

#define LOG_MODULE "rpc"
#include "base/log.h"

#define RDMA_CLASS "/sys/class/infiniband"
#define RDMA_TLS "ib"
#define OTHER_TLS "^sm" /* shared memory reports no peer that failed, and makes a worker four times as large */

/* Active messages: a token of the receiving side (8 bytes), a number (8 bytes), bytes of the stream. */
enum { MESSAGE_DATA = 1 /* number: where in the stream */, MESSAGE_TAKEN = 2 /* number: bytes taken out so far */ };
#define HEADER_BYTES 16

#define MESSAGE_MAX_BYTES 8000u /* with its headers it fits into a segment of UCX over TCP, and is taken at once */
#define TAKEN_STEP_BYTES (UCX_PIPE_WINDOW_BYTES / 4)
#define CHUNK_MIN_BYTES 512u /* small messages share one */
#define CHUNKS_MAX 4096u     /* UCX_PIPE_WINDOW_BYTES in messages that fill half a chunk */
#define LOOK_AGAIN_MS 1
#define BUSY_MAX 64
#define CLOSE_STEPS 10000
#define PORT_FDS 10u /* what a worker opens, measured with UCX's choice of transports */

struct ucx_carrier {
    const char *protocol;
    const struct ucx_lib *lib;
    ucp_context_h context; /* owned */
    unsigned users;
};

/* Guards the carriers' contexts and users. A leaf but for UCX's own; held while a context is opened, which takes some
 * milliseconds once in the life of a process. */
static pthread_mutex_t carriers_mutex = PTHREAD_MUTEX_INITIALIZER;
static struct ucx_carrier carriers[] = {{.protocol = "rdma"}, {.protocol = "ucx"}};
static unsigned private_ports; /* atomic */

struct ucx_port {
    struct ucx_carrier *carrier;
    const struct ucx_lib *lib;
    ucp_worker_h worker; /* owned */
    ucp_address_t *address;
    size_t address_len;
    int fd; /* UCX's */
    bool is_private;
    /* Shared memory does not tell a sender that there is room again: messages under way that wait for it. And a peer
     * that stopped or died while it was writing there leaves what looks like something to do, for ever: how many times
     * in a row there was nothing. */
    unsigned untold, busy_count;
    struct map pipes;    /* token -> struct ucx_pipe */
    struct list ready;   /* struct ucx_pipe */
    struct list orphans; /* struct message, of pipes that were closed */
    struct list blocked; /* struct ucx_pipe: UCX did not take something */
    bool has_slept;      /* since they were tried last */
};

/* One that is being sent. */
struct message {
    struct list_node node; /* in pipe->sending or port->orphans */
    struct ucx_port *port;
    struct ucx_pipe *pipe; /* NULL: closed */
    bool is_data, is_untold;
    uint8_t header[HEADER_BYTES];
    uint8_t data[];
};

/* Bytes that came and wait to be read. */
struct chunk {
    struct list_node node; /* in pipe->chunks, by offset */
    uint64_t offset;
    uint32_t len, capacity;
    uint8_t data[];
};

struct ucx_pipe {
    struct list_node ready_node, blocked_node;
    struct ucx_port *port;
    void *arg;
    uint64_t token, peer_token;
    ucp_ep_h ep;             /* owned; NULL: not connected */
    bool has_error_handling; /* UCX reports a peer that failed, and the endpoint can be closed by force */

    uint64_t written, acked; /* of our stream: given to UCX; taken out by the peer */
    struct list sending;     /* struct message */
    unsigned unsent;         /* data messages in it */
    struct message *spare;   /* owned; without data; NULL: none */
    struct ucx_am am;

    uint64_t taken, told; /* of the peer's stream: taken out, and how much of that the peer knows */
    struct list chunks;   /* struct chunk */
    unsigned chunk_count;
    const struct iovec *parts; /* expected; borrowed */
    int part_count;
    size_t part_used, placed; /* of parts[0]; of all */

    bool has_failed;
    char failure[128];
};

/* --- carriers --- */

static bool has_rdma_device(void)
{
    DIR *folder = opendir(RDMA_CLASS);
    const struct dirent *entry;
    bool has_one = false;

    while (folder && !has_one && (entry = readdir(folder)))
        has_one = entry->d_name[0] != '.';
    if (folder)
        closedir(folder);
    return has_one;
}

static enum shoal_status open_context(struct ucx_carrier *carrier, struct shoal_error *error)
{
    ucp_params_t params = {.field_mask = UCP_PARAM_FIELD_FEATURES | UCP_PARAM_FIELD_MT_WORKERS_SHARED,
                           .features = UCP_FEATURE_AM | UCP_FEATURE_WAKEUP,
                           .mt_workers_shared = 1};
    bool is_rdma = strcmp(carrier->protocol, "rdma") == 0;
    const char *tls = getenv("UCX_TLS") ? NULL : is_rdma ? RDMA_TLS : OTHER_TLS;
    ucp_config_t *config;
    ucs_status_t status;

    if (is_rdma && !has_rdma_device())
        return error_set(error, SHOAL_UNSUPPORTED, 0,
                         "this machine has no RDMA device (%s is empty); 'ucx' runs without one", RDMA_CLASS);
    carrier->lib = ucx_lib_load(error);
    if (!carrier->lib)
        return SHOAL_UNSUPPORTED;
    status = carrier->lib->config_read(NULL, NULL, &config);
    if (status == UCS_OK) {
        if (tls)
            status = carrier->lib->config_modify(config, "TLS", tls);
        if (status == UCS_OK)
            status = carrier->lib->init_version(UCP_API_MAJOR, UCP_API_MINOR, &params, config, &carrier->context);
        carrier->lib->config_release(config);
    }
    if (status == UCS_OK)
        return SHOAL_OK;
    carrier->context = NULL;
    return error_set(error, SHOAL_UNSUPPORTED, 0, "UCX finds nothing to run over%s%s: %s",
                     tls ? " with transports " : "", tls ? tls : "", carrier->lib->status_string(status));
}

struct ucx_carrier *ucx_carrier_find(const char *protocol)
{
    return &carriers[strcmp(protocol, carriers[0].protocol) == 0 ? 0 : 1];
}

enum shoal_status ucx_carrier_open(const char *protocol, struct ucx_carrier **carrier_out, struct shoal_error *error)
{
    struct ucx_carrier *carrier = ucx_carrier_find(protocol);
    enum shoal_status status = SHOAL_OK;

    pthread_mutex_lock(&carriers_mutex);
    if (!carrier->context)
        status = open_context(carrier, error);
    if (status == SHOAL_OK)
        carrier->users++;
    pthread_mutex_unlock(&carriers_mutex);
    if (status == SHOAL_OK)
        *carrier_out = carrier;
    return status;
}

void ucx_carrier_close(struct ucx_carrier *carrier)
{
    if (!carrier)
        return;
    pthread_mutex_lock(&carriers_mutex);
    if (--carrier->users == 0) {
        carrier->lib->cleanup(carrier->context);
        carrier->context = NULL;
    }
    pthread_mutex_unlock(&carriers_mutex);
}

/* --- what arrives --- */

static void mark_ready(struct ucx_pipe *pipe)
{
    if (!list_node_is_linked(&pipe->ready_node))
        list_push_back(&pipe->port->ready, &pipe->ready_node);
}

static void fail(struct ucx_pipe *pipe, const char *what, const char *detail)
{
    if (pipe->has_failed)
        return;
    pipe->has_failed = true;
    snprintf(pipe->failure, sizeof pipe->failure, "%s%s%s", what, detail ? ": " : "", detail ? detail : "");
    mark_ready(pipe);
}

/* Copies into parts; *used: of the first one. Returns how many bytes found room. */
static size_t scatter(const struct iovec **parts, int *count, size_t *used, const uint8_t *data, size_t len)
{
    size_t done = 0;

    while (*count && done < len) {
        size_t room = (*parts)->iov_len - *used, more = len - done < room ? len - done : room;

        if (more)
            memcpy((uint8_t *)(*parts)->iov_base + *used, data + done, more);
        done += more;
        *used += more;
        if (*used < (*parts)->iov_len)
            break;
        (*parts)++;
        (*count)--;
        *used = 0;
    }
    return done;
}

static struct chunk *last_chunk(const struct ucx_pipe *pipe)
{
    return container_of(pipe->chunks.head.prev, struct chunk, node);
}

/* Seldom needed: a message of several fragments may be overtaken by later ones. */
static void find_place(struct ucx_pipe *pipe, uint64_t offset, struct chunk **before_out, struct chunk **after_out)
{
    *before_out = *after_out = NULL;
    LIST_FOR_EACH (chunk, &pipe->chunks, struct chunk, node) {
        if (chunk->offset > offset) {
            *after_out = chunk;
            return;
        }
        *before_out = chunk;
    }
}

/* Small messages that follow each other share a chunk: what a peer may send costs about as much memory as bytes. */
static void keep(struct ucx_pipe *pipe, uint64_t offset, const uint8_t *data, uint32_t len)
{
    struct chunk *before = NULL, *after = NULL, *chunk;
    uint32_t capacity = len < CHUNK_MIN_BYTES ? CHUNK_MIN_BYTES : len;

    if (!list_is_empty(&pipe->chunks)) {
        before = last_chunk(pipe);
        if (before->offset > offset)
            find_place(pipe, offset, &before, &after);
    }
    if ((before && before->offset + before->len > offset) || (after && offset + len > after->offset)) {
        fail(pipe, "the peer sent bytes twice", NULL);
        return;
    }
    if (before && before->offset + before->len == offset && len <= before->capacity - before->len) {
        memcpy(before->data + before->len, data, len);
        before->len += len;
        return;
    }
    chunk = pipe->chunk_count < CHUNKS_MAX ? malloc(sizeof *chunk + capacity) : NULL;
    if (!chunk) {
        fail(pipe, pipe->chunk_count < CHUNKS_MAX ? "out of memory" : "the peer sent too many small messages", NULL);
        return;
    }
    *chunk = (struct chunk){.offset = offset, .len = len, .capacity = capacity};
    memcpy(chunk->data, data, len);
    if (after)
        list_insert_before(&after->node, &chunk->node);
    else
        list_push_back(&pipe->chunks, &chunk->node);
    pipe->chunk_count++;
}

static void take_data(struct ucx_pipe *pipe, uint64_t offset, const uint8_t *data, size_t len)
{
    if (len > UCX_PIPE_WINDOW_BYTES || offset < pipe->taken || offset - pipe->taken > UCX_PIPE_WINDOW_BYTES - len) {
        fail(pipe, "the peer sent bytes beyond the window", NULL);
        return;
    }
    if (offset == pipe->taken && pipe->part_count && list_is_empty(&pipe->chunks)) {
        size_t placed = scatter(&pipe->parts, &pipe->part_count, &pipe->part_used, data, len);

        pipe->placed += placed;
        pipe->taken += placed;
        offset += placed;
        data += placed;
        len -= placed;
    }
    if (len)
        keep(pipe, offset, data, (uint32_t)len);
    mark_ready(pipe);
}

static struct ucx_pipe *addressee(struct ucx_port *port, const void *header, size_t header_len, uint64_t *number_out)
{
    struct ucx_pipe *pipe = header_len == HEADER_BYTES ? map_get_u64(&port->pipes, get_le64(header)) : NULL;

    if (!pipe || pipe->has_failed)
        return NULL;
    *number_out = get_le64((const uint8_t *)header + 8);
    return pipe;
}

/* From inside of UCX. */
static ucs_status_t on_data(void *arg, const void *header, size_t header_len, void *data, size_t len,
                            const ucp_am_recv_param_t *param)
{
    uint64_t offset;
    struct ucx_pipe *pipe = addressee(arg, header, header_len, &offset);

    if (pipe && (param->recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV))
        fail(pipe, "the peer asked for a rendezvous", NULL);
    else if (pipe)
        take_data(pipe, offset, data, len);
    return UCS_OK; /* UCX keeps nothing for us; a rendezvous ends without having moved a byte */
}

static ucs_status_t on_taken(void *arg, const void *header, size_t header_len, void *data, size_t len,
                             const ucp_am_recv_param_t *param)
{
    uint64_t taken;
    struct ucx_pipe *pipe = addressee(arg, header, header_len, &taken);

    (void)data;
    (void)len;
    (void)param;
    if (pipe && taken > pipe->written) {
        fail(pipe, "the peer took bytes that were not sent", NULL);
    } else if (pipe && taken > pipe->acked) {
        pipe->acked = taken;
        mark_ready(pipe);
    }
    return UCS_OK;
}

static void on_ep_failed(void *arg, ucp_ep_h ep, ucs_status_t status)
{
    struct ucx_pipe *pipe = arg;

    (void)ep;
    fail(pipe, "connection lost", pipe->port->lib->status_string(status));
}

/* --- what is sent --- */

static void message_done(struct message *message)
{
    list_remove(&message->node);
    if (message->pipe && message->is_data)
        message->pipe->unsent--;
    message->port->untold -= message->is_untold;
}

static void on_sent(void *request, ucs_status_t status, void *arg)
{
    struct message *message = arg;
    struct ucx_port *port = message->port;

    if (message->pipe) {
        if (status != UCS_OK)
            fail(message->pipe, "connection lost", port->lib->status_string(status));
        mark_ready(message->pipe);
    }
    message_done(message);
    free(message);
    port->lib->request_free(request);
}

/* copy_len: how much room for a copy of the data there must be. */
static struct message *message_new(struct ucx_pipe *pipe, size_t copy_len)
{
    struct message *message = copy_len ? NULL : pipe->spare;

    if (message)
        pipe->spare = NULL;
    else
        message = malloc(sizeof *message + copy_len);
    if (message)
        *message = (struct message){.port = pipe->port, .pipe = pipe};
    return message;
}

/* It is not under way, or not any more. */
static void put_away(struct ucx_pipe *pipe, struct message *message, bool has_data)
{
    message_done(message);
    if (!pipe->spare && !has_data)
        pipe->spare = message;
    else
        free(message);
}

/* UCX's small messages are copied by it at once; what it keeps a pointer to must last. false: not now, or it failed. */
static bool send_message(struct ucx_pipe *pipe, unsigned id, uint64_t number, const void *data, size_t len,
                         bool is_lasting)
{
    struct message *message = message_new(pipe, is_lasting ? 0 : len);
    ucs_status_ptr_t result;

    if (!message) {
        fail(pipe, "out of memory", NULL);
        return false;
    }
    put_le64(message->header, pipe->peer_token);
    put_le64(message->header + 8, number);
    if (!is_lasting && len) {
        memcpy(message->data, data, len);
        data = message->data;
    }
    message->is_data = id == MESSAGE_DATA;
    message->is_untold = !pipe->has_error_handling;
    pipe->unsent += message->is_data;
    pipe->port->untold += message->is_untold;
    list_push_back(&pipe->sending, &message->node);
    result = ucx_am_send(pipe->port->lib, pipe->ep, &pipe->am, id, message->header, HEADER_BYTES, data, len, on_sent,
                         message);
    if (UCS_PTR_IS_PTR(result))
        return true; /* on_sent will be called */
    put_away(pipe, message, !is_lasting && len);
    if (UCS_PTR_STATUS(result) == UCS_ERR_NO_RESOURCE)
        list_push_back(&pipe->port->blocked, &pipe->blocked_node);
    else if (UCS_PTR_IS_ERR(result))
        fail(pipe, "cannot send", pipe->port->lib->status_string(UCS_PTR_STATUS(result)));
    return result == NULL;
}

static bool is_blocked(const struct ucx_pipe *pipe)
{
    return list_node_is_linked(&pipe->blocked_node);
}

size_t ucx_pipe_write(struct ucx_pipe *pipe, const void *data, size_t len, bool is_lasting)
{
    size_t done = 0;

    while (done < len && pipe->ep && !pipe->has_failed && !is_blocked(pipe)) {
        uint64_t room = UCX_PIPE_WINDOW_BYTES - (pipe->written - pipe->acked);
        size_t more = len - done;

        if (more > room)
            more = (size_t)room;
        if (more > MESSAGE_MAX_BYTES)
            more = MESSAGE_MAX_BYTES;
        if (more == 0 ||
            !send_message(pipe, MESSAGE_DATA, pipe->written, (const uint8_t *)data + done, more, is_lasting))
            break;
        pipe->written += more;
        done += more;
    }
    return done;
}

bool ucx_pipe_has_room(const struct ucx_pipe *pipe)
{
    return !is_blocked(pipe) && pipe->written - pipe->acked < UCX_PIPE_WINDOW_BYTES;
}

bool ucx_pipe_is_sent(const struct ucx_pipe *pipe)
{
    return pipe->unsent == 0;
}

/* --- what is read --- */

static void tell_taken(struct ucx_pipe *pipe)
{
    if (pipe->taken - pipe->told < TAKEN_STEP_BYTES || !pipe->ep || pipe->has_failed || is_blocked(pipe))
        return; /* if it is blocked, later */
    if (send_message(pipe, MESSAGE_TAKEN, pipe->taken, NULL, 0, true))
        pipe->told = pipe->taken;
}

size_t ucx_pipe_read(struct ucx_pipe *pipe, const struct iovec *parts, int count)
{
    size_t used = 0, done = 0;
    struct list_node *node;

    while (count && (node = list_first(&pipe->chunks))) {
        struct chunk *chunk = container_of(node, struct chunk, node);
        size_t skip, more;

        if (chunk->offset > pipe->taken)
            break; /* overtook what belongs before it */
        skip = (size_t)(pipe->taken - chunk->offset);
        more = scatter(&parts, &count, &used, chunk->data + skip, chunk->len - skip);
        pipe->taken += more;
        done += more;
        if (pipe->taken == chunk->offset + chunk->len) {
            list_remove(node);
            pipe->chunk_count--;
            free(chunk);
        }
    }
    tell_taken(pipe);
    return done;
}

void ucx_pipe_expect(struct ucx_pipe *pipe, const struct iovec *parts, int count)
{
    pipe->parts = parts;
    pipe->part_count = count;
    pipe->part_used = pipe->placed = 0;
}

size_t ucx_pipe_expected(struct ucx_pipe *pipe)
{
    size_t placed = pipe->placed;

    ucx_pipe_expect(pipe, NULL, 0);
    tell_taken(pipe);
    return placed;
}

bool ucx_pipe_has_come(const struct ucx_pipe *pipe)
{
    struct list_node *first = list_first(&pipe->chunks);

    return pipe->placed > 0 || (first && container_of(first, struct chunk, node)->offset <= pipe->taken);
}

bool ucx_pipe_has_failed(const struct ucx_pipe *pipe)
{
    return pipe->has_failed;
}

const char *ucx_pipe_failure(const struct ucx_pipe *pipe)
{
    return pipe->failure;
}

void *ucx_pipe_arg(const struct ucx_pipe *pipe)
{
    return pipe->arg;
}

struct ucx_port *ucx_pipe_port(const struct ucx_pipe *pipe)
{
    return pipe->port;
}

/* --- life of a pipe --- */

enum shoal_status ucx_pipe_create(struct ucx_port *port, void *arg, struct ucx_pipe **pipe_out,
                                  struct shoal_error *error)
{
    struct ucx_pipe *pipe = calloc(1, sizeof *pipe);

    if (!pipe)
        return error_no_memory(error);
    pipe->port = port;
    pipe->arg = arg;
    pipe->token = random_id();
    list_node_init(&pipe->ready_node);
    list_node_init(&pipe->blocked_node);
    list_init(&pipe->sending);
    list_init(&pipe->chunks);
    if (!map_put_u64(&port->pipes, pipe->token, pipe)) {
        free(pipe);
        return error_no_memory(error);
    }
    *pipe_out = pipe;
    return SHOAL_OK;
}

bool ucx_pipe_describe(const struct ucx_pipe *pipe, enum ucx_frame_type type, struct buf *out)
{
    struct ucx_frame frame = {.type = (uint8_t)type, .body_len = (uint32_t)pipe->port->address_len, .key = pipe->token};
    uint8_t header[UCX_FRAME_HEADER_BYTES];

    ucx_frame_encode(&frame, header);
    return buf_append(out, header, sizeof header) && buf_append(out, pipe->port->address, pipe->port->address_len);
}

enum shoal_status ucx_pipe_connect(struct ucx_pipe *pipe, const struct ucx_frame *frame, const uint8_t *body,
                                   struct shoal_error *error)
{
    ucp_ep_params_t params = {.field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS | UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE |
                                            UCP_EP_PARAM_FIELD_ERR_HANDLER,
                              .address = (const ucp_address_t *)(const void *)body,
                              .err_mode = UCP_ERR_HANDLING_MODE_PEER,
                              .err_handler = {on_ep_failed, pipe}};
    struct ucx_port *port = pipe->port;
    ucs_status_t status = port->lib->ep_create(port->worker, &params, &pipe->ep);

    pipe->has_error_handling = status == UCS_OK;
    if (status == UCS_ERR_UNREACHABLE && port->is_private) {
        params.err_mode = UCP_ERR_HANDLING_MODE_NONE;
        status = port->lib->ep_create(port->worker, &params, &pipe->ep);
    }
    pipe->peer_token = frame->key;
    if (status == UCS_OK)
        return SHOAL_OK;
    pipe->ep = NULL;
    return error_set(error, SHOAL_UNSUPPORTED, 0, "UCX does not reach the peer: %s", port->lib->status_string(status));
}

static void disconnect(struct ucx_pipe *pipe)
{
    ucp_request_param_t param = {.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS, .flags = UCP_EP_CLOSE_FLAG_FORCE};
    const struct ucx_lib *lib = pipe->port->lib;
    ucs_status_ptr_t result = lib->ep_close_nbx(pipe->ep, &param);

    for (unsigned i = 0; i < CLOSE_STEPS; i++) {
        lib->worker_progress(pipe->port->worker);
        if ((!UCS_PTR_IS_PTR(result) || lib->request_check_status(result) != UCS_INPROGRESS) &&
            list_is_empty(&pipe->sending))
            break;
    }
    if (UCS_PTR_IS_PTR(result))
        lib->request_free(result);
}

void ucx_pipe_close(struct ucx_pipe *pipe)
{
    struct list_node *node;

    if (!pipe)
        return;
    map_remove_u64(&pipe->port->pipes, pipe->token); /* no message finds it any more */
    if (pipe->ep && pipe->has_error_handling)
        disconnect(pipe);
    list_remove(&pipe->ready_node);
    list_remove(&pipe->blocked_node);
    while ((node = list_pop_front(&pipe->sending))) {
        container_of(node, struct message, node)->pipe = NULL;
        list_push_back(&pipe->port->orphans, node);
    }
    while ((node = list_pop_front(&pipe->chunks)))
        free(container_of(node, struct chunk, node));
    free(pipe->spare);
    free(pipe);
}

/* --- ports --- */

static bool count_private(void)
{
    unsigned most = UCX_PIPE_PRIVATE_PORTS_MAX;
    struct rlimit files;

    /* Half of the descriptors stay for what cannot do without. */
    if (getrlimit(RLIMIT_NOFILE, &files) == 0 && files.rlim_cur / 2 / PORT_FDS < most)
        most = (unsigned)(files.rlim_cur / 2 / PORT_FDS);
    if (__atomic_fetch_add(&private_ports, 1, __ATOMIC_RELAXED) < most)
        return true;
    __atomic_fetch_sub(&private_ports, 1, __ATOMIC_RELAXED);
    return false;
}

enum shoal_status ucx_port_open(struct ucx_carrier *carrier, bool is_private, struct ucx_port **port_out,
                                struct shoal_error *error)
{
    ucp_worker_params_t params = {.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE | UCP_WORKER_PARAM_FIELD_FLAGS,
                                  .thread_mode = UCS_THREAD_MODE_SERIALIZED,
                                  .flags = UCP_WORKER_FLAG_IGNORE_REQUEST_LEAK};
    struct ucx_port *port = calloc(1, sizeof *port);
    enum shoal_status result;
    ucs_status_t status;

    if (!port)
        return error_no_memory(error);
    if (is_private && !count_private()) {
        result = error_set(error, SHOAL_LIMIT, 0,
                           "too many connections over UCX (at most %d, fewer where the limit of "
                           "open files is low)",
                           UCX_PIPE_PRIVATE_PORTS_MAX);
        goto release;
    }
    *port = (struct ucx_port){.carrier = carrier, .lib = carrier->lib, .is_private = is_private};
    map_init(&port->pipes);
    list_init(&port->ready);
    list_init(&port->orphans);
    list_init(&port->blocked);
    status = port->lib->worker_create(carrier->context, &params, &port->worker);
    if (status != UCS_OK)
        goto uncount;
    status = port->lib->worker_get_efd(port->worker, &port->fd);
    if (status == UCS_OK)
        status = ucx_am_receive(port->lib, port->worker, MESSAGE_DATA, on_data, port);
    if (status == UCS_OK)
        status = ucx_am_receive(port->lib, port->worker, MESSAGE_TAKEN, on_taken, port);
    if (status == UCS_OK)
        status = port->lib->worker_get_address(port->worker, &port->address, &port->address_len);
    if (status != UCS_OK)
        goto destroy;
    if (port->address_len > UCX_FRAME_BODY_MAX_BYTES) {
        port->lib->worker_release_address(port->worker, port->address);
        status = UCS_ERR_EXCEEDS_LIMIT;
        goto destroy;
    }
    *port_out = port;
    return SHOAL_OK;

destroy:
    port->lib->worker_destroy(port->worker);
uncount:
    result = error_set(error, SHOAL_UNSUPPORTED, 0, "UCX worker: %s", port->lib->status_string(status));
    map_release(&port->pipes);
    if (is_private)
        __atomic_fetch_sub(&private_ports, 1, __ATOMIC_RELAXED);
release:
    free(port);
    return result;
}

void ucx_port_close(struct ucx_port *port)
{
    struct list_node *node;

    if (!port)
        return;
    port->lib->worker_release_address(port->worker, port->address);
    port->lib->worker_destroy(port->worker);
    while ((node = list_pop_front(&port->orphans)))
        free(container_of(node, struct message, node));
    map_release(&port->pipes);
    if (port->is_private)
        __atomic_fetch_sub(&private_ports, 1, __ATOMIC_RELAXED);
    free(port);
}

int ucx_port_fd(const struct ucx_port *port)
{
    return port->fd;
}

/* What UCX did not take is offered again. */
static void unblock(struct ucx_port *port)
{
    struct list blocked;
    struct list_node *node;

    list_init(&blocked);
    while ((node = list_pop_front(&port->blocked)))
        list_push_back(&blocked, node);
    while ((node = list_pop_front(&blocked))) {
        struct ucx_pipe *pipe = container_of(node, struct ucx_pipe, blocked_node);

        tell_taken(pipe);
        mark_ready(pipe);
    }
    port->has_slept = false;
}

bool ucx_port_progress(struct ucx_port *port)
{
    bool is_busy = port->lib->worker_progress(port->worker) != 0;

    if (is_busy)
        port->busy_count = 0;
    if (is_busy || port->has_slept)
        unblock(port);
    return is_busy;
}

bool ucx_port_arm(struct ucx_port *port, int *patience_ms_out)
{
    ucs_status_t status = port->lib->worker_arm(port->worker);

    *patience_ms_out = port->untold || !list_is_empty(&port->blocked) ? LOOK_AGAIN_MS : -1;
    if (status == UCS_ERR_BUSY) {
        if (++port->busy_count < BUSY_MAX)
            return false;
        *patience_ms_out = LOOK_AGAIN_MS;
    } else {
        port->busy_count = 0;
    }
    if (status != UCS_OK && status != UCS_ERR_BUSY)
        LOG_WARN("arming a worker of UCX: %s", port->lib->status_string(status));
    port->has_slept = true;
    return true;
}

struct ucx_pipe *ucx_port_next_ready(struct ucx_port *port)
{
    struct list_node *node = list_pop_front(&port->ready);

    return node ? container_of(node, struct ucx_pipe, ready_node) : NULL;
}
