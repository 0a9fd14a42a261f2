/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/hostport.h"
#include "base/random.h"
#include "kv/client_thin.h"

/* Longer than the operation may take, for its answer. */
#define GRACE_MS 3000
/* A request of an endless call ends with this at the latest. */
#define ENDLESS_MS (24 * 3600 * 1000)

/* --- the socket: one thread at a time --- */

static enum shoal_status enter(struct thin *thin, const struct call *call, struct shoal_error *error)
{
    enum shoal_status status = SHOAL_OK;

    mutex_lock(&thin->mutex);
    while (thin->is_busy && !status)
        if (!cond_wait_until(&thin->changed, &thin->mutex, call->deadline_ms))
            status = error_set(error, SHOAL_TIMED_OUT, 0, "local client %s: deadline passed", thin->address);
    if (!status)
        thin->is_busy = true;
    mutex_unlock(&thin->mutex);
    return status;
}

static void leave(struct thin *thin)
{
    mutex_lock(&thin->mutex);
    thin->is_busy = false;
    cond_broadcast(&thin->changed);
    mutex_unlock(&thin->mutex);
}

/* Only by who has entered. */
static void set_session(struct thin *thin, int fd, uint64_t session)
{
    int old;

    mutex_lock(&thin->mutex);
    old = thin->fd;
    thin->fd = fd;
    thin->session = session;
    mutex_unlock(&thin->mutex);
    if (old >= 0 && old != fd)
        close(old);
}

static enum shoal_status closed_by_peer(const struct thin *thin, const struct local_message *message,
                                        struct shoal_error *error)
{
    return error_set(error, SHOAL_UNREACHABLE, 0, "local client %s %s", thin->address,
                     message->kind == LOCAL_HELLO ? "takes no more processes, or not those of this user"
                                                  : "has closed the local socket");
}

static enum shoal_status exchange(struct thin *thin, int fd, const struct local_message *message, int passed,
                                  const struct call *call, struct local_answer *answer, struct shoal_error *error)
{
    union {
        struct cmsghdr header;
        char room[CMSG_SPACE(sizeof(int))];
    } control = {.room = {0}};
    struct iovec part = {(void *)(uintptr_t)message, sizeof *message};
    struct msghdr header = {.msg_iov = &part, .msg_iovlen = 1};
    struct pollfd waiting = {.fd = fd, .events = POLLIN};
    int ready;

    if (passed >= 0) {
        header.msg_control = &control;
        header.msg_controllen = CMSG_SPACE(sizeof(int));
        control.header =
            (struct cmsghdr){.cmsg_len = CMSG_LEN(sizeof(int)), .cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS};
        memcpy(CMSG_DATA(&control.header), &passed, sizeof passed);
    }
    if (sendmsg(fd, &header, MSG_NOSIGNAL) != (ssize_t)sizeof *message)
        return closed_by_peer(thin, message, error);
    do
        ready = poll(&waiting, 1, deadline_poll_ms(call->deadline_ms));
    while (ready < 0 && errno == EINTR);
    if (ready == 0)
        return error_set(error, SHOAL_TIMED_OUT, 0, "local client %s: deadline passed", thin->address);
    if (ready < 0 || recv(fd, answer, sizeof *answer, MSG_DONTWAIT) != (ssize_t)sizeof *answer)
        return closed_by_peer(thin, message, error);
    return SHOAL_OK;
}

static enum shoal_status tell_region(struct thin *thin, int fd, uint32_t slot, const struct call *call,
                                     struct shoal_error *error)
{
    const struct local_message message = {
        .kind = LOCAL_ADD_REGION, .region = slot, .number = thin->regions[slot].len_bytes};
    struct local_answer answer = {.status = SHOAL_OK};
    enum shoal_status status = exchange(thin, fd, &message, thin->regions[slot].memfd, call, &answer, error);

    if (!status && answer.status)
        status = error_set(error, answer.status == SHOAL_LIMIT ? SHOAL_LIMIT : SHOAL_NO_MEMORY, 0,
                           "local client %s does not take %llu bytes of shared memory: %s", thin->address,
                           (unsigned long long)message.number, shoal_status_text((enum shoal_status)answer.status));
    return status;
}

static enum shoal_status connect_socket(struct thin *thin, const char *name, int *fd_out, struct shoal_error *error)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    size_t len = strlen(name);
    int fd;

    if (!len || len + 1 > sizeof address.sun_path)
        return error_set(error, SHOAL_PROTOCOL, 0, "local client %s: malformed answer", thin->address);
    memcpy(address.sun_path + 1, name, len);
    fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    if (fd >= 0 && connect(fd, (const struct sockaddr *)&address,
                           (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + len)) == 0) {
        *fd_out = fd;
        return SHOAL_OK;
    }
    error_set(error, SHOAL_UNREACHABLE, errno, "local client %s is not on this host (its local socket: %s)",
              thin->address, strerror(errno));
    if (fd >= 0)
        close(fd);
    return SHOAL_UNREACHABLE;
}

/* Entered. */
static enum shoal_status attach(struct thin *thin, const struct call *call, struct shoal_error *error)
{
    Shoal__Wire__LocalAttachResponse *response = NULL;
    struct local_message hello = {.kind = LOCAL_HELLO};
    struct local_answer answer = {.status = SHOAL_OK};
    struct buf body;
    int fd = -1;
    enum shoal_status status;

    buf_init(&body, RPC_REQUEST_MAX_BYTES);
    status = rpc_channels_call(thin->channels, thin->address, 0, LOCAL_METHOD_ATTACH, NULL, 0, call, &body, error);
    if (!status) {
        response = shoal__wire__local_attach_response__unpack(NULL, body.len, body.data);
        if (!response || response->token.len != sizeof hello.token)
            status = error_set(error, SHOAL_PROTOCOL, 0, "local client %s: malformed answer", thin->address);
    } else if (status == SHOAL_UNSUPPORTED) { /* a node of Shoal that does not know the method */
        status = error_set(error, SHOAL_PROTOCOL, 0,
                           "local client %s: that is another port than a client's for its host", thin->address);
    } else {
        error_prefix(error, "local client");
    }
    buf_release(&body);
    if (!status)
        status = connect_socket(thin, response->socket, &fd, error);
    if (!status) {
        memcpy(hello.token, response->token.data, sizeof hello.token);
        status = exchange(thin, fd, &hello, -1, call, &answer, error);
    }
    for (uint32_t i = 0; i < LOCAL_REGIONS_MAX && !status; i++)
        if (thin->regions[i].memfd >= 0)
            status = tell_region(thin, fd, i, call, error);
    if (!status) {
        snprintf(thin->owner, sizeof thin->owner, "%s", response->address);
        set_session(thin, fd, answer.number);
    } else if (fd >= 0) {
        close(fd);
    }
    if (response)
        shoal__wire__local_attach_response__free_unpacked(response, NULL);
    return status;
}

static enum shoal_status current_session(struct thin *thin, const struct call *call, uint64_t *session_out,
                                         struct shoal_error *error)
{
    enum shoal_status status;

    mutex_lock(&thin->mutex);
    *session_out = thin->session;
    mutex_unlock(&thin->mutex);
    if (*session_out)
        return SHOAL_OK;
    status = enter(thin, call, error);
    if (status)
        return status;
    if (!thin->session)
        status = attach(thin, call, error);
    *session_out = thin->session;
    leave(thin);
    return status;
}

/* The local client does not know the session any more: it was restarted. */
static void forget_session(struct thin *thin, uint64_t session, const struct call *call)
{
    if (enter(thin, call, NULL))
        return;
    if (thin->session == session)
        set_session(thin, -1, 0);
    leave(thin);
}

/* --- calls --- */

struct canceling {
    struct thin *thin;
    uint64_t session, operation;
};

static void send_cancel(void *arg)
{
    const struct canceling *canceling = arg;
    const struct local_message message = {.kind = LOCAL_CANCEL, .number = canceling->operation};
    struct thin *thin = canceling->thin;

    mutex_lock(&thin->mutex);
    if (thin->fd >= 0 && thin->session == canceling->session)
        (void)!send(thin->fd, &message, sizeof message, MSG_NOSIGNAL | MSG_DONTWAIT);
    mutex_unlock(&thin->mutex);
}

static enum shoal_status call_once(struct thin *thin, enum local_method method, const ProtobufCMessage *request,
                                   Shoal__Wire__LocalCaller *caller, const struct call *call, struct buf *body_out,
                                   struct shoal_error *error)
{
    size_t len = protobuf_c_message_get_packed_size(request);
    struct canceling canceling = {thin, caller->session, caller->operation};
    struct call longer = {.deadline_ms = deadline_after_ms((int64_t)caller->timeout_ms + GRACE_MS)};
    struct cancel_hook hook;
    struct iovec part = {malloc(len + 1), len};
    enum shoal_status status;

    if (!part.iov_base)
        return error_no_memory(error);
    protobuf_c_message_pack(request, part.iov_base);
    cancel_hook_add(call->cancel, &hook, send_cancel, &canceling);
    {
        struct iovec parts[1] = {part};

        status = rpc_channels_call_once(thin->channels, thin->address, 0, (uint16_t)method, parts, 1, &longer, body_out,
                                        error);
    }
    cancel_hook_remove(call->cancel, &hook);
    free(part.iov_base);
    return status;
}

enum shoal_status thin_call(struct thin *thin, enum local_method method, const ProtobufCMessage *request,
                            Shoal__Wire__LocalCaller *caller, const struct call *call, struct buf *body_out,
                            bool *is_quiet_out, struct shoal_error *error)
{
    enum shoal_status status;

    if (is_quiet_out)
        *is_quiet_out = true;
    for (unsigned attempt = 0;; attempt++) {
        int64_t left_ms = deadline_left_ms(call->deadline_ms);

        status = call_check(call, error, "local client");
        if (!status)
            status = current_session(thin, call, &caller->session, error);
        if (status)
            return status;
        caller->operation = atomic_fetch_add_explicit(&thin->next_operation, 1, memory_order_relaxed);
        caller->timeout_ms = (uint32_t)(left_ms > ENDLESS_MS ? ENDLESS_MS : left_ms);
        status = call_once(thin, method, request, caller, call, body_out, error);
        if (status != SHOAL_CLOSED || attempt > 0)
            break;
        forget_session(thin, caller->session, call);
    }
    if (is_quiet_out && (status == SHOAL_UNREACHABLE || status == SHOAL_TIMED_OUT || status == SHOAL_PROTOCOL ||
                         status == SHOAL_NO_MEMORY))
        *is_quiet_out = false;
    if (status)
        error_prefix(error, "local client");
    return status;
}

/* --- shared memory --- */

static enum shoal_status region_init(struct thin_region *region, uint64_t len_bytes, struct shoal_error *error)
{
    int fd = memfd_create("shoal-kv", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    void *memory = MAP_FAILED;

    if (fd >= 0 && len_bytes <= INT64_MAX && ftruncate(fd, (off_t)len_bytes) == 0 &&
        fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) == 0)
        memory = mmap(NULL, len_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (memory == MAP_FAILED) {
        error_set(error, SHOAL_NO_MEMORY, errno, "shared memory of %llu bytes: %s", (unsigned long long)len_bytes,
                  strerror(errno));
        if (fd >= 0)
            close(fd);
        return SHOAL_NO_MEMORY;
    }
    region->memfd = fd;
    region->memory = memory;
    region->len_bytes = len_bytes;
    return SHOAL_OK;
}

static void region_release(struct thin_region *region)
{
    if (region->memfd >= 0) {
        munmap(region->memory, region->len_bytes);
        close(region->memfd);
    }
    region->memfd = -1;
    region->memory = NULL;
}

enum shoal_status thin_place_take(struct thin *thin, uint64_t len_bytes, struct thin_place *place_out,
                                  struct shoal_error *error)
{
    enum shoal_status status = kv_arena_alloc(thin->arena, len_bytes, &place_out->memory, error);

    if (status)
        return status;
    place_out->region = 0;
    place_out->is_callers = false;
    place_out->offset_bytes = (uint64_t)((char *)place_out->memory - thin->regions[0].memory);
    return SHOAL_OK;
}

static enum shoal_status take_slot(struct thin *thin, const struct call *call, uint32_t *slot_out,
                                   struct shoal_error *error)
{
    enum shoal_status status = SHOAL_OK;
    uint32_t slot = LOCAL_REGIONS_MAX;

    mutex_lock(&thin->mutex);
    while (!status && slot == LOCAL_REGIONS_MAX) {
        for (slot = 1; slot < LOCAL_REGIONS_MAX && thin->regions[slot].is_used; slot++)
            ;
        if (slot == LOCAL_REGIONS_MAX && !cond_wait_until(&thin->changed, &thin->mutex, call->deadline_ms))
            status = error_set(error, SHOAL_TIMED_OUT, 0, "too many large values at a time");
    }
    if (!status)
        thin->regions[slot].is_used = true;
    mutex_unlock(&thin->mutex);
    *slot_out = slot;
    return status;
}

static void give_slot(struct thin *thin, uint32_t slot)
{
    mutex_lock(&thin->mutex);
    thin->regions[slot].is_used = false;
    cond_broadcast(&thin->changed);
    mutex_unlock(&thin->mutex);
}

/* An attachment that comes later tells of the region by itself; entering keeps it from doing so half-way. */
enum shoal_status thin_place_map(struct thin *thin, uint64_t len_bytes, const struct call *call,
                                 struct thin_place *place_out, struct shoal_error *error)
{
    uint32_t slot;
    uint64_t session;
    enum shoal_status status = current_session(thin, call, &session, error);

    if (!status)
        status = take_slot(thin, call, &slot, error);
    if (status)
        return status;
    status = enter(thin, call, error);
    if (status)
        goto give;
    status = region_init(&thin->regions[slot], len_bytes, error);
    if (!status && thin->session) {
        status = tell_region(thin, thin->fd, slot, call, error);
        if (status == SHOAL_UNREACHABLE ||
            status == SHOAL_TIMED_OUT) { /* what the answer is to is not known any more */
            set_session(thin, -1, 0);
            status = attach(thin, call, error);
        }
    }
    if (status)
        region_release(&thin->regions[slot]);
    leave(thin);
    if (status)
        goto give;
    *place_out = (struct thin_place){.memory = thin->regions[slot].memory, .region = slot};
    return SHOAL_OK;

give:
    give_slot(thin, slot);
    return status;
}

static void drop_region(struct thin *thin, uint32_t slot)
{
    const struct local_message message = {.kind = LOCAL_REMOVE_REGION, .region = slot};
    const struct call forever = {.deadline_ms = DEADLINE_NONE};

    (void)enter(thin, &forever, NULL);
    if (thin->fd >= 0 && send(thin->fd, &message, sizeof message, MSG_NOSIGNAL) != (ssize_t)sizeof message)
        set_session(thin, -1, 0);
    region_release(&thin->regions[slot]);
    leave(thin);
    give_slot(thin, slot);
}

void thin_place_give(struct thin *thin, struct thin_place *place, bool is_quiet)
{
    if (!place->memory || place->is_callers)
        return;
    if (place->region > 0)
        drop_region(thin, place->region); /* its memory lives on as long as somebody has it mapped */
    else if (is_quiet)
        kv_arena_free(thin->arena, place->memory);
    place->memory = NULL;
}

/* --- create and destroy --- */

static enum shoal_status map_arena(void *arg, uint64_t len_bytes, void **memory_out, struct shoal_error *error)
{
    struct thin *thin = arg;

    (void)len_bytes;
    (void)error;
    *memory_out = thin->regions[0].memory;
    return SHOAL_OK;
}

static void unmap_arena(void *arg, void *memory, uint64_t len_bytes)
{
    (void)arg;
    (void)memory;
    (void)len_bytes;
}

static enum shoal_status resolve(struct thin *thin, const char *address, struct shoal_error *error)
{
    struct sockaddr_storage resolved;
    struct hostport hostport;
    char text[HOSTPORT_TEXT_BYTES];
    socklen_t len;
    enum shoal_status status = hostport_parse(&hostport, address, error);

    if (!status && (!hostport.has_port || !hostport.port))
        status = error_set(error, SHOAL_INVALID_ARGUMENT, 0, "'%s' has no port", address);
    if (!status)
        status = hostport_resolve(hostport.host, hostport.port, &resolved, &len, error);
    if (status) {
        error_prefix(error, "client");
        return status;
    }
    sockaddr_format((const struct sockaddr *)&resolved, text);
    snprintf(thin->address, sizeof thin->address, "%.63s", text);
    return SHOAL_OK;
}

enum shoal_status thin_create(const char *address, const char *cluster, uint64_t arena_bytes, const struct call *call,
                              struct thin **thin_out, struct shoal_error *error)
{
    const struct kv_arena_source source = {.map = map_arena, .unmap = unmap_arena};
    struct rpc_channels_config channels_config = {.cluster = cluster, .instance = random_id()};
    struct kv_arena_source own = source;
    struct thin *thin = calloc(1, sizeof *thin);
    char name[32];
    uint64_t session;
    enum shoal_status status;

    if (!thin)
        return error_no_memory(error);
    own.arg = thin;
    mutex_init(&thin->mutex, RANK_KV);
    cond_init(&thin->changed);
    thin->fd = -1;
    for (size_t i = 0; i < LOCAL_REGIONS_MAX; i++)
        thin->regions[i].memfd = -1;
    thin->regions[0].is_used = true;
    snprintf(name, sizeof name, "local:%d", (int)getpid());
    channels_config.server_name = name;
    status = resolve(thin, address, error);
    if (!status)
        status = rpc_channels_create(&channels_config, &thin->channels, error);
    if (!status)
        status = region_init(&thin->regions[0], arena_bytes, error);
    if (!status && !(thin->arena = kv_arena_create(&own, arena_bytes)))
        status = error_no_memory(error);
    if (!status)
        status = current_session(thin, call, &session, error);
    if (status) {
        thin_destroy(thin);
        return status;
    }
    *thin_out = thin;
    return SHOAL_OK;
}

void thin_destroy(struct thin *thin)
{
    if (!thin)
        return;
    if (thin->fd >= 0)
        close(thin->fd);
    kv_arena_destroy(thin->arena);
    for (size_t i = 0; i < LOCAL_REGIONS_MAX; i++)
        region_release(&thin->regions[i]);
    rpc_channels_destroy(thin->channels);
    cond_release(&thin->changed);
    mutex_release(&thin->mutex);
    free(thin);
}
