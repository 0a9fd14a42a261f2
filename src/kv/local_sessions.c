/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/error.h"
#include "base/random.h"
#include "kv/client.h"
#include "kv/local_internal.h"

#define LOG_MODULE "kv"
#include "base/log.h"

#define BACKLOG 64
#define LISTEN_AGAIN_MS 200

/* --- regions --- */

static void unmap_region(void *arg, bool is_canceled)
{
    struct local_region *region = arg;
    struct local_service *service = region->service;

    (void)is_canceled; /* the service goes: then it is done here, too */
    (void)shoal_engine_unregister_memory(kv_engine(service->kv), region->memory, region->len_bytes, NULL);
    munmap(region->memory, region->len_bytes);
    atomic_fetch_sub(&service->mapped_bytes, region->len_bytes);
    atomic_fetch_sub(&service->region_count, 1);
    free(region);
}

void local_region_unref(struct local_region *region)
{
    if (!region || --region->refs > 0)
        return;
    /* Every region has its place in the queue, so this fails only when the reaper is gone, with nothing going on. */
    if (executor_submit(region->service->reaper, &region->task, unmap_region, region) != SHOAL_OK)
        unmap_region(region, true);
}

/* A file that may shrink could end this process by a touch. */
static enum shoal_status check_memfd(int fd, uint64_t len_bytes, struct shoal_error *error)
{
    struct stat info;
    int seals = fcntl(fd, F_GET_SEALS);

    if (seals < 0 || !(seals & F_SEAL_SHRINK))
        return error_set(error, SHOAL_INVALID_ARGUMENT, 0, "the memory is no memfd that is sealed against shrinking");
    if (fstat(fd, &info) != 0 || len_bytes == 0 || (uint64_t)info.st_size < len_bytes)
        return error_set(error, SHOAL_INVALID_ARGUMENT, 0, "the memory has not the length that was told");
    return SHOAL_OK;
}

static enum shoal_status add_region(struct local_session *session, uint32_t slot, uint64_t len_bytes, int fd,
                                    struct shoal_error *error)
{
    struct local_service *service = session->service;
    struct local_region *region;
    enum shoal_status status;

    if (slot >= LOCAL_REGIONS_MAX || session->regions[slot])
        return error_set(error, SHOAL_INVALID_ARGUMENT, 0, "region %u is used or out of range", slot);
    status = check_memfd(fd, len_bytes, error);
    if (status)
        return status;
    if (atomic_load(&service->region_count) >= service->max_clients * LOCAL_REGIONS_MAX ||
        len_bytes > service->max_bytes || atomic_load(&service->mapped_bytes) > service->max_bytes - len_bytes)
        return error_set(error, SHOAL_LIMIT, 0, "the local client shares no more than %llu bytes",
                         (unsigned long long)service->max_bytes);
    region = calloc(1, sizeof *region);
    if (!region)
        return error_no_memory(error);
    *region = (struct local_region){.service = service, .len_bytes = len_bytes, .refs = 1};
    region->memory = mmap(NULL, len_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (region->memory == MAP_FAILED) {
        status = error_set(error, SHOAL_NO_MEMORY, errno, "mmap of %llu bytes: %s", (unsigned long long)len_bytes,
                           strerror(errno));
        goto free_region;
    }
    status = shoal_engine_register_memory(kv_engine(service->kv), region->memory, len_bytes, NULL,
                                          SHOAL_ACCESS_REMOTE_READ, NULL, error);
    if (status)
        goto unmap;
    atomic_fetch_add(&service->mapped_bytes, len_bytes);
    atomic_fetch_add(&service->region_count, 1);
    session->regions[slot] = region;
    return SHOAL_OK;

unmap:
    munmap(region->memory, len_bytes);
free_region:
    free(region);
    return status;
}

static void remove_region(struct local_session *session, uint32_t slot)
{
    if (slot >= LOCAL_REGIONS_MAX)
        return;
    local_region_unref(session->regions[slot]);
    session->regions[slot] = NULL;
}

/* --- sessions --- */

void local_session_unref(struct local_session *session)
{
    if (--session->refs > 0)
        return;
    session->service->session_count--;
    free(session);
}

/* The process is gone, or has done what it must not do. */
static void session_close(struct local_session *session)
{
    struct local_service *service = session->service;

    if (session->fd < 0)
        return;
    loop_io_release(&session->io);
    close(session->fd);
    session->fd = -1;
    list_remove(&session->node);
    if (session->id)
        map_remove_u64(&service->sessions_by_id, session->id);
    local_operations_cancel_all(session);
    for (uint32_t i = 0; i < LOCAL_REGIONS_MAX; i++)
        remove_region(session, i);
    local_session_unref(session);
}

static bool send_answer(struct local_session *session, enum shoal_status status, uint32_t region, uint64_t number)
{
    const struct local_answer answer = {.status = status, .region = region, .number = number};

    return send(session->fd, &answer, sizeof answer, MSG_NOSIGNAL | MSG_DONTWAIT) == (ssize_t)sizeof answer;
}

static bool say_hello(struct local_session *session, const struct local_message *message)
{
    struct local_service *service = session->service;
    uint64_t id = random_id();

    if (session->id || memcmp(message->token, service->token, sizeof service->token) != 0)
        return false;
    if (!map_put_u64(&service->sessions_by_id, id, session))
        return false;
    session->id = id;
    service->counters.sessions++;
    return send_answer(session, SHOAL_OK, 0, id);
}

/* false: the session is to be closed. */
static bool take_message(struct local_session *session, const struct local_message *message, int fd)
{
    struct shoal_error error;
    enum shoal_status status;

    if (message->kind == LOCAL_HELLO)
        return say_hello(session, message);
    if (!session->id)
        return false;
    switch (message->kind) {
    case LOCAL_ADD_REGION:
        status = fd < 0 ? error_set(&error, SHOAL_INVALID_ARGUMENT, 0, "no descriptor came with it")
                        : add_region(session, message->region, message->number, fd, &error);
        if (status)
            LOG_WARN("local session: %s", error.message);
        return send_answer(session, status, message->region, message->number);
    case LOCAL_REMOVE_REGION:
        remove_region(session, message->region);
        return true;
    case LOCAL_CANCEL:
        local_operation_cancel(session, message->number);
        return true;
    default:
        return false;
    }
}

/* The first one; the room for one has, by its alignment, place for two. */
static int descriptor_of(struct msghdr *header)
{
    int fd = -1;

    for (struct cmsghdr *part = CMSG_FIRSTHDR(header); part; part = CMSG_NXTHDR(header, part)) {
        size_t count = part->cmsg_level == SOL_SOCKET && part->cmsg_type == SCM_RIGHTS
                           ? (part->cmsg_len - CMSG_LEN(0)) / sizeof fd
                           : 0;
        for (size_t i = 0; i < count; i++) {
            int got;

            memcpy(&got, CMSG_DATA(part) + i * sizeof got, sizeof got);
            if (fd < 0)
                fd = got;
            else
                close(got);
        }
    }
    return fd;
}

static void on_session_readable(void *arg, unsigned events)
{
    struct local_session *session = arg;
    struct local_message message;
    union {
        struct cmsghdr header;
        char room[CMSG_SPACE(sizeof(int))];
    } control;
    struct iovec part = {&message, sizeof message};
    struct msghdr header = {
        .msg_iov = &part, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof control};
    bool is_fine = false;
    ssize_t len;
    int fd;

    (void)events;
    len = recvmsg(session->fd, &header, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    if (len < 0 && (errno == EAGAIN || errno == EINTR))
        return;
    fd = len > 0 ? descriptor_of(&header) : -1;
    if (len == (ssize_t)sizeof message && !(header.msg_flags & (MSG_TRUNC | MSG_CTRUNC)))
        is_fine = take_message(session, &message, fd);
    if (fd >= 0)
        close(fd);
    if (!is_fine)
        session_close(session);
}

static bool is_ours(int fd)
{
    struct ucred peer;
    socklen_t len = sizeof peer;

    return getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &len) == 0 && peer.uid == geteuid();
}

static void listen_again(void *arg)
{
    struct local_service *service = arg;

    loop_io_set(&service->listen_io, LOOP_READ);
}

static void on_connect(void *arg, unsigned events)
{
    struct local_service *service = arg;
    struct local_session *session = NULL;
    int fd = accept4(service->listen_fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);

    (void)events;
    if (fd < 0) {
        if (errno == EMFILE || errno == ENFILE) { /* who waits there would wake us again and again */
            LOG_WARN("local socket: no file descriptor left (see ulimit -n)");
            loop_io_set(&service->listen_io, 0);
            loop_timer_start(&service->listen_again, LISTEN_AGAIN_MS);
        }
        return;
    }
    if (!is_ours(fd) || service->session_count >= service->max_clients)
        goto refuse;
    session = calloc(1, sizeof *session);
    if (!session)
        goto refuse;
    session->service = service;
    session->fd = fd;
    session->refs = 1;
    list_init(&session->operations);
    if (loop_io_init(&session->io, service->loop, fd, on_session_readable, session, NULL) != SHOAL_OK)
        goto refuse;
    loop_io_set(&session->io, LOOP_READ);
    list_push_back(&service->sessions, &session->node);
    service->session_count++;
    return;

refuse:
    service->counters.refused++;
    free(session);
    close(fd);
}

enum shoal_status local_sessions_listen(struct local_service *service, struct shoal_error *error)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    size_t name_len;
    enum shoal_status status;

    for (size_t i = 0; i < sizeof service->token; i += sizeof(uint64_t)) {
        uint64_t part = random_id();
        memcpy(service->token + i, &part, sizeof part);
    }
    snprintf(service->socket_name, sizeof service->socket_name, "shoal-kv-%016llx", (unsigned long long)random_id());
    name_len = strlen(service->socket_name);
    memcpy(address.sun_path + 1, service->socket_name, name_len);
    service->listen_fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (service->listen_fd < 0 ||
        bind(service->listen_fd, (const struct sockaddr *)&address,
             (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + name_len)) != 0 ||
        listen(service->listen_fd, BACKLOG) != 0)
        return error_set(error, SHOAL_IO, errno, "local socket: %s", strerror(errno));
    status = loop_timer_init(&service->listen_again, service->loop, listen_again, service, error);
    if (!status)
        status = loop_io_init(&service->listen_io, service->loop, service->listen_fd, on_connect, service, error);
    if (!status)
        loop_io_set(&service->listen_io, LOOP_READ);
    return status;
}

void local_sessions_close(struct local_service *service)
{
    struct list_node *node;

    loop_timer_release(&service->listen_again);
    loop_io_release(&service->listen_io);
    if (service->listen_fd >= 0)
        close(service->listen_fd);
    service->listen_fd = -1;
    while ((node = list_first(&service->sessions)))
        session_close(container_of(node, struct local_session, node));
}
