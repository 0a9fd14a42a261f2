/* SPDX-License-Identifier: Apache-2.0 */
/* One connection over the local socket, whichever side made it. */
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"
#include "transport/local_internal.h"

#define LOG_MODULE "local"

bool local_link_is_alive(const struct local_link *link)
{
    /* A socket that a forked child of the other process still holds says nothing about that process. */
    struct pollfd fds[2] = {{.fd = link->fd, .events = POLLRDHUP}, {.fd = link->pid_fd, .events = POLLIN}};
    int result;

    do
        result = poll(fds, link->pid_fd >= 0 ? 2 : 1, 0);
    while (result < 0 && errno == EINTR);
    return result == 0;
}

static void unused_posted(void *arg)
{
    struct local_link *link = arg;

    link->ops->unused(link);
}

void local_link_hold(struct local_link *link)
{
    link->holds++;
}

void local_link_unhold(struct local_link *link)
{
    if (--link->holds == 0 && link->is_dead)
        loop_post(link->local->env.loop, &link->unused_task, unused_posted, link);
}

void local_link_fail(struct local_link *link, enum shoal_status status, const struct shoal_error *error)
{
    if (link->is_dead)
        return;
    local_link_hold(link);
    link->is_dead = true;
    /* At once, whoever else holds the socket: the other end looks at it after it has copied. */
    (void)shutdown(link->fd, SHUT_RDWR);
    loop_io_release(&link->io);
    link->ops->lost(link, status, error);
    local_link_unhold(link);
}

static void fail_lost(struct local_link *link, int sys_errno)
{
    struct shoal_error error;

    error_set(&error, SHOAL_UNREACHABLE, sys_errno, "local connection with '%s' was lost: %s", link->peer_name,
              sys_errno ? strerror(sys_errno) : "closed by the peer");
    local_link_fail(link, SHOAL_UNREACHABLE, &error);
}

void local_link_protocol_error(struct local_link *link, const char *what)
{
    struct shoal_error error;

    local_count(&link->local->counters.protocol_errors, 1);
    error_set(&error, SHOAL_PROTOCOL, 0, "'%s' violated the local protocol: %s", link->peer_name, what);
    LOG_WARN("%s", error.message);
    local_link_fail(link, SHOAL_PROTOCOL, &error);
}

/* --- out --- */

static ssize_t send_some(struct local_link *link)
{
    struct iovec part = {link->out.data, link->out.len};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1};
    union {
        char bytes[CMSG_SPACE(sizeof(int))];
        struct cmsghdr aligned;
    } control;

    if (link->out_fd_count > 0 && link->out_fds[0].at == link->sent_bytes) {
        struct cmsghdr *header;

        memset(&control, 0, sizeof control);
        message.msg_control = control.bytes;
        message.msg_controllen = sizeof control.bytes;
        header = CMSG_FIRSTHDR(&message);
        header->cmsg_level = SOL_SOCKET;
        header->cmsg_type = SCM_RIGHTS;
        header->cmsg_len = CMSG_LEN(sizeof(int));
        memcpy(CMSG_DATA(header), &link->out_fds[0].fd, sizeof(int));
        part.iov_len = LOCAL_FRAME_BYTES;
    } else if (link->out_fd_count > 0 && link->out_fds[0].at - link->sent_bytes < part.iov_len) {
        part.iov_len = (size_t)(link->out_fds[0].at - link->sent_bytes);
    }
    return sendmsg(link->fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
}

static void flush(struct local_link *link)
{
    while (!link->is_dead && link->out.len > 0) {
        bool has_fd = link->out_fd_count > 0 && link->out_fds[0].at == link->sent_bytes;
        ssize_t sent = send_some(link);

        if (sent < 0 && errno == EINTR)
            continue;
        if (sent < 0 && errno != EAGAIN && errno != EWOULDBLOCK) {
            fail_lost(link, errno);
            return;
        }
        if (sent < 0)
            break;
        if (has_fd) {
            close(link->out_fds[0].fd);
            link->out_fd_count--;
            memmove(&link->out_fds[0], &link->out_fds[1], link->out_fd_count * sizeof link->out_fds[0]);
        }
        link->sent_bytes += (uint64_t)sent;
        buf_consume(&link->out, (size_t)sent);
    }
    if (!link->is_dead)
        loop_io_set(&link->io, (link->out.len > 0 ? (unsigned)LOOP_WRITE : 0u) |
                                   (link->out.len < LOCAL_OUT_PAUSE_BYTES ? (unsigned)LOOP_READ : 0u));
}

static void flush_posted(void *arg)
{
    struct local_link *link = arg;

    link->is_dirty = false;
    flush(link);
    local_link_unhold(link);
}

void local_link_send(struct local_link *link, const struct local_frame *frame)
{
    uint8_t encoded[LOCAL_FRAME_BYTES];
    struct shoal_error error;

    if (link->is_dead)
        return;
    local_encode(frame, encoded);
    if (!buf_append(&link->out, encoded, sizeof encoded)) {
        error_set(&error, SHOAL_LIMIT, 0, "'%s' does not take what it is sent", link->peer_name);
        local_link_fail(link, SHOAL_LIMIT, &error);
        return;
    }
    if (link->is_dirty || link->is_in_io)
        return;
    link->is_dirty = true;
    local_link_hold(link); /* until the task has run */
    loop_post(link->local->env.loop, &link->flush_task, flush_posted, link);
}

/* --- in --- */

static void say_ready(struct local_link *link, const struct local_frame *hello)
{
    struct local *local = link->local;
    struct local_frame ready = {.type = LOCAL_READY};
    int why = 0;

    link->has_hello = true;
    link->is_limited = hello->flags & LOCAL_FLAG_LIMITED;
    if (!local->has_cma)
        snprintf(link->why, sizeof link->why, "cross-memory attach is switched off");
    else if (link->pid <= 0)
        snprintf(link->why, sizeof link->why, "the process lives in another PID namespace");
    else if (link->pid_fd < 0)
        snprintf(link->why, sizeof link->why, "the kernel has no process descriptors");
    else if ((why = local_copy_probe(link->pid, hello->addr, hello->key)) != 0)
        snprintf(link->why, sizeof link->why, "process_vm_readv: %.40s", strerror(why));
    else
        link->can_read = true;
    if (link->can_read)
        ready.flags |= LOCAL_FLAG_CAN_READ;
    if (shared_has_any(local->env.shared))
        ready.flags |= LOCAL_FLAG_SHARES;
    memcpy(ready.text, link->why, sizeof ready.text);
    local_link_send(link, &ready);
}

static void take_ready(struct local_link *link, const struct local_frame *frame)
{
    link->is_ready = true;
    link->is_readable = frame->flags & LOCAL_FLAG_CAN_READ;
    link->has_shares = frame->flags & LOCAL_FLAG_SHARES;
    memcpy(link->peer_why, frame->text, sizeof link->peer_why);
    link->ops->ready(link);
}

static bool take_frame(struct local_link *link, const struct local_frame *frame)
{
    switch (frame->type) {
    case LOCAL_HELLO:
        if (link->has_hello || frame->id != LOCAL_VERSION)
            return false;
        say_ready(link, frame);
        return true;
    case LOCAL_READY:
        if (!link->has_hello || link->is_ready)
            return false;
        take_ready(link, frame);
        return true;
    case LOCAL_SHARE:
        return link->is_ready && local_share_take(link, frame);
    case LOCAL_UNSHARE:
        return link->is_ready && local_share_drop(link, frame);
    default:
        return link->is_ready && link->ops->frame(link, frame);
    }
}

static void take_frames(struct local_link *link)
{
    size_t at = 0;

    link->moved_ms = clock_now_ms();
    while (!link->is_dead && link->in_len - at >= LOCAL_FRAME_BYTES) {
        struct local_frame frame;

        if (local_decode(link->in + at, &frame) != SHOAL_OK) {
            local_link_protocol_error(link, "something that is not a frame");
            return;
        }
        at += LOCAL_FRAME_BYTES;
        if (!take_frame(link, &frame)) {
            local_link_protocol_error(link, "a frame out of place");
            return;
        }
    }
    memmove(link->in, link->in + at, link->in_len - at);
    link->in_len -= at;
}

/* More descriptors than anyone has a use for are closed. */
static void keep_fds(struct local_link *link, struct msghdr *message)
{
    for (struct cmsghdr *header = CMSG_FIRSTHDR(message); header; header = CMSG_NXTHDR(message, header)) {
        size_t count;

        if (header->cmsg_level != SOL_SOCKET || header->cmsg_type != SCM_RIGHTS)
            continue;
        count = (header->cmsg_len - CMSG_LEN(0)) / sizeof(int);
        for (size_t i = 0; i < count; i++) {
            int fd;

            memcpy(&fd, CMSG_DATA(header) + i * sizeof fd, sizeof fd);
            if (link->in_fd_count < LOCAL_FDS_MAX)
                link->in_fds[link->in_fd_count++] = fd;
            else
                close(fd);
        }
    }
}

static void receive(struct local_link *link)
{
    while (!link->is_dead) {
        struct iovec part = {link->in + link->in_len, sizeof link->in - link->in_len};
        union {
            char bytes[CMSG_SPACE(LOCAL_FDS_MAX * sizeof(int))];
            struct cmsghdr aligned;
        } control;
        struct msghdr message = {
            .msg_iov = &part, .msg_iovlen = 1, .msg_control = control.bytes, .msg_controllen = sizeof control.bytes};
        ssize_t got = recvmsg(link->fd, &message, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);

        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))
            return;
        if (got <= 0) {
            fail_lost(link, got < 0 ? errno : 0);
            return;
        }
        keep_fds(link, &message);
        link->in_len += (size_t)got;
        take_frames(link);
        if ((size_t)got < part.iov_len) /* nothing more, most likely; else the loop comes back */
            return;
    }
}

static void link_io(void *arg, unsigned events)
{
    struct local_link *link = arg;

    local_link_hold(link);
    link->is_in_io = true; /* what is sent meanwhile leaves below */
    if (events & LOOP_READ)
        receive(link);
    flush(link);
    link->is_in_io = false;
    local_link_unhold(link);
}

/* --- life --- */

/* The process at the other end, and a descriptor that cannot come to mean another one. */
static void find_process(struct local_link *link)
{
    struct ucred peer;
    socklen_t len = sizeof peer;

    link->pid_fd = -1;
    if (getsockopt(link->fd, SOL_SOCKET, SO_PEERCRED, &peer, &len) != 0)
        return;
    link->pid = peer.pid;
    if (peer.pid > 0)
        link->pid_fd = (int)syscall(SYS_pidfd_open, peer.pid, 0);
}

bool local_link_open(struct local_link *link, struct local *local, const struct local_link_ops *ops, int fd,
                     const char *peer_name)
{
    struct local_frame hello = {.type = LOCAL_HELLO,
                                .flags = local->is_limited ? LOCAL_FLAG_LIMITED : 0,
                                .id = LOCAL_VERSION,
                                .addr = (uint64_t)(uintptr_t)&local->probe,
                                .key = local->probe};

    link->local = local;
    link->ops = ops;
    link->fd = fd;
    list_init(&link->shares);
    buf_init(&link->out, LOCAL_OUT_MAX_BYTES);
    memcpy(link->peer_name, peer_name, strnlen(peer_name, HELLO_NAME_MAX_BYTES));
    link->opened_ms = link->moved_ms = clock_now_ms();
    find_process(link);
    if (loop_io_init(&link->io, local->env.loop, fd, link_io, link, NULL) != SHOAL_OK) {
        local_link_release(link);
        return false;
    }
    loop_io_set(&link->io, LOOP_READ);
    local_link_send(link, &hello);
    return true;
}

void local_link_release(struct local_link *link)
{
    local_share_release_all(link);
    loop_io_release(&link->io);
    buf_release(&link->out);
    if (link->pid_fd >= 0)
        close(link->pid_fd);
    close(link->fd);
}
