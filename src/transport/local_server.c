/* SPDX-License-Identifier: Apache-2.0 */
/* Requests of other processes of this host. While one is going on, the memory that it is about is pinned: a READ from
 * its grant until it is released, a WRITE while its bytes are copied here. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"
#include "transport/local_internal.h"

#define LOG_MODULE "local"

struct local_serve {
    uint64_t id; /* 0: free */
    bool is_write;
    struct memory_region *region; /* pinned */
    uint64_t addr, len;
    bool is_canceled;
    int64_t revoke_deadline_ms; /* > 0: READ that was revoked */
    int64_t told_ms;            /* of WRITE: when PROGRESS was sent */
    struct local_server *server;
    struct local_copy copy;
};

struct local_server {
    struct local_link link;
    struct list_node node;                  /* in local->servers */
    struct local_serve *slots[LOCAL_SLOTS]; /* owned; NULL: never used */
    unsigned used;
    int64_t idle_since_ms;
};

static struct local_server *server_of(struct local_link *link)
{
    return container_of(link, struct local_server, link);
}

struct local_server *local_server_of_node(struct list_node *node)
{
    return container_of(node, struct local_server, node);
}

struct local_link *local_server_link(struct local_server *server)
{
    return &server->link;
}

static struct local_counters *counters(struct local_server *server)
{
    return &server->link.local->counters;
}

static void serve_release(struct local_serve *serve)
{
    struct local_server *server = serve->server;

    if (serve->region)
        memory_unpin(server->link.local->env.memory, serve->region);
    serve->region = NULL;
    serve->id = 0;
    serve->revoke_deadline_ms = 0;
    if (--server->used == 0)
        server->idle_since_ms = clock_now_ms();
}

static void refuse(struct local_server *server, uint64_t id, enum local_code code, const char *text)
{
    struct local_frame frame = {.type = LOCAL_REFUSE, .code = (uint8_t)code, .id = id};

    snprintf(frame.text, sizeof frame.text, "%s", text);
    if (code != LOCAL_CODE_CANCELED)
        local_count(&counters(server)->serve_refusals, 1);
    local_link_send(&server->link, &frame);
}

static void mark_faulty(struct local_server *server, struct memory_region *region)
{
    local_count(&counters(server)->serve_faults, 1);
    memory_mark_faulty(server->link.local->env.memory, region);
}

/* --- WRITE --- */

static void write_copied(struct local_copy *copy)
{
    struct local_serve *serve = container_of(copy, struct local_serve, copy);
    struct local_server *server = serve->server;
    struct local_link *link = &server->link;
    uint64_t id = serve->id;

    if (copy->status == SHOAL_IO && !copy->is_remote_fault)
        mark_faulty(server, serve->region);
    serve_release(serve);
    if (link->is_dead)
        return;
    if (copy->status == SHOAL_OK) {
        local_count(&counters(server)->served_writes, 1);
        local_count(&counters(server)->served_write_bytes, copy->len);
        local_link_send(link, &(struct local_frame){.type = LOCAL_DONE, .id = id});
    } else if (serve->is_canceled || copy->status == SHOAL_CANCELED) {
        refuse(server, id, LOCAL_CODE_CANCELED, "canceled");
    } else if (copy->status == SHOAL_IO) {
        refuse(server, id, LOCAL_CODE_UNREADABLE,
               copy->is_remote_fault ? "memory of the requesting node is not readable" : "memory is not writable");
    } else if (copy->status == SHOAL_NO_MEMORY) {
        refuse(server, id, LOCAL_CODE_NO_MEMORY, "out of memory");
    } else {
        local_link_fail(link, SHOAL_UNREACHABLE, NULL);
    }
}

static void begin_write(struct local_server *server, struct local_serve *serve, const struct local_frame *frame)
{
    struct local_link *link = &server->link;
    struct local_copy *copy = &serve->copy;

    copy->share = frame->share ? local_share_use(link, frame->share, frame->from, frame->len) : NULL;
    if (frame->share ? !copy->share : !link->can_read) {
        serve_release(serve);
        refuse(server, frame->id, LOCAL_CODE_UNABLE,
               frame->share ? "the shared memory could not be opened" : "the memory cannot be read");
        return;
    }
    copy->local = link->local;
    copy->link = link;
    copy->from = frame->from;
    copy->to = (uint8_t *)(uintptr_t)frame->addr;
    copy->len = frame->len;
    copy->done = write_copied;
    serve->told_ms = clock_now_ms();
    local_copy_start(copy);
}

/* --- READ --- */

static void grant(struct local_server *server, struct local_serve *serve, const struct local_frame *frame)
{
    struct local_frame answer = {.type = LOCAL_GRANT, .id = frame->id};
    struct local_link *link = &server->link;

    if (!link->is_readable && !local_share_offer(link, frame->addr, frame->len, &answer.share, &answer.from)) {
        serve_release(serve);
        refuse(server, frame->id, LOCAL_CODE_UNABLE, "the memory is not shared");
        return;
    }
    local_link_send(link, &answer);
}

static bool release(struct local_serve *serve, uint64_t fault_addr)
{
    if (serve->is_write || (fault_addr && (fault_addr < serve->addr || fault_addr - serve->addr >= serve->len)))
        return false;
    /* What a peer says is worth a look, not more. */
    if (fault_addr && !local_copy_is_readable(fault_addr))
        mark_faulty(serve->server, serve->region);
    local_count(&counters(serve->server)->served_reads, 1);
    local_count(&counters(serve->server)->served_read_bytes, serve->len);
    serve_release(serve);
    return true;
}

/* --- frames --- */

static struct local_serve *serve_take(struct local_server *server, const struct local_frame *frame)
{
    struct local_serve **slot = &server->slots[frame->id % LOCAL_SLOTS];

    if (!*slot)
        *slot = calloc(1, sizeof **slot);
    if (!*slot)
        return NULL;
    (*slot)->id = frame->id;
    (*slot)->server = server;
    (*slot)->is_write = frame->type == LOCAL_WRITE;
    (*slot)->addr = frame->addr;
    (*slot)->len = frame->len;
    (*slot)->is_canceled = false;
    server->used++;
    return *slot;
}

static bool begin(struct local_server *server, const struct local_frame *frame)
{
    struct local_serve *serve = server->slots[frame->id % LOCAL_SLOTS];
    struct local *local = server->link.local;
    const char *reason = "";
    enum shoal_status status;

    if (frame->id == 0 || (serve && serve->id != 0))
        return false;
    serve = serve_take(server, frame);
    if (!serve) {
        refuse(server, frame->id, LOCAL_CODE_NO_MEMORY, "out of memory");
        return true;
    }
    status =
        memory_pin(local->env.memory, frame->addr, frame->len, frame->key,
                   serve->is_write ? SHOAL_ACCESS_REMOTE_WRITE : SHOAL_ACCESS_REMOTE_READ, &serve->region, &reason);
    if (status != SHOAL_OK) {
        serve->region = NULL;
        serve_release(serve);
        refuse(server, frame->id, status == SHOAL_IO ? LOCAL_CODE_UNREADABLE : LOCAL_CODE_INVALID, reason);
    } else if (memory_device(serve->region)) {
        serve_release(serve);
        refuse(server, frame->id, LOCAL_CODE_UNABLE, "device memory");
    } else if (serve->is_write) {
        begin_write(server, serve, frame);
    } else {
        grant(server, serve, frame);
    }
    return true;
}

static bool server_frame(struct local_link *link, const struct local_frame *frame)
{
    struct local_server *server = server_of(link);
    struct local_serve *serve = server->slots[frame->id % LOCAL_SLOTS];

    switch (frame->type) {
    case LOCAL_READ:
    case LOCAL_WRITE:
        return begin(server, frame);
    case LOCAL_CANCEL:
        if (serve && serve->id == frame->id && frame->id && serve->is_write) {
            serve->is_canceled = true;
            local_copy_stop(&serve->copy);
        }
        return true; /* else it has crossed our answer */
    case LOCAL_RELEASE:
        return serve && serve->id == frame->id && frame->id && release(serve, frame->addr);
    default:
        return false;
    }
}

static void server_ready(struct local_link *link)
{
    (void)link;
}

static void server_lost(struct local_link *link, enum shoal_status status, const struct shoal_error *error)
{
    struct local_server *server = server_of(link);

    (void)status;
    (void)error;
    for (size_t i = 0; i < LOCAL_SLOTS; i++) {
        struct local_serve *serve = server->slots[i];

        if (!serve || serve->id == 0)
            continue;
        if (serve->is_write)
            local_copy_stop(&serve->copy);
        else
            serve_release(serve); /* who reads still, finds the link closed when it looks back */
    }
}

static void server_unused(struct local_link *link)
{
    struct local_server *server = server_of(link);
    struct local *local = link->local;

    list_remove(&server->node);
    local_link_release(link);
    for (size_t i = 0; i < LOCAL_SLOTS; i++)
        free(server->slots[i]);
    free(server);
    endpoint_released(local->env.endpoint);
    __atomic_fetch_sub(&local->counters.server_connections, 1, __ATOMIC_RELAXED);
    local_live(local, -1);
}

static const struct local_link_ops server_ops = {
    .ready = server_ready, .frame = server_frame, .lost = server_lost, .unused = server_unused};

void local_server_accept(struct local *local, int fd, const char *peer_name)
{
    struct local_server *server = calloc(1, sizeof *server);

    if (!server || local->is_closing) {
        free(server);
        close(fd);
        endpoint_released(local->env.endpoint);
        return;
    }
    server->idle_since_ms = clock_now_ms();
    if (!local_link_open(&server->link, local, &server_ops, fd, peer_name)) {
        free(server);
        endpoint_released(local->env.endpoint);
        return;
    }
    list_push_back(&local->servers, &server->node);
    local_count(&local->counters.server_connections, 1);
    local_live(local, 1);
    local_arm_tick(local);
}

void local_server_revoke(struct local_server *server, const struct memory_region *region)
{
    if (server->link.is_dead)
        return;
    for (size_t i = 0; i < LOCAL_SLOTS; i++) {
        struct local_serve *serve = server->slots[i];

        if (!serve || serve->id == 0 || serve->region != region || serve->revoke_deadline_ms)
            continue;
        local_count(&counters(server)->revocations, 1);
        if (serve->is_write) {
            local_copy_stop(&serve->copy);
            continue;
        }
        serve->revoke_deadline_ms = deadline_after_ms(LOCAL_GRACE_MS);
        local_link_send(&server->link, &(struct local_frame){.type = LOCAL_REVOKE, .id = serve->id});
    }
}

void local_server_tick(struct local_server *server, int64_t now_ms, bool has_progress)
{
    struct local_link *link = &server->link;

    if (link->is_dead)
        return;
    if (!link->is_ready && now_ms - link->opened_ms >= link->local->env.connect_timeout_ms) {
        local_link_fail(link, SHOAL_TIMED_OUT, NULL);
        return;
    }
    if (server->used == 0) {
        if (now_ms - server->idle_since_ms >= LOCAL_SERVER_IDLE_MS)
            local_link_fail(link, SHOAL_UNREACHABLE, NULL);
        return;
    }
    for (size_t i = 0; i < LOCAL_SLOTS; i++) {
        struct local_serve *serve = server->slots[i];

        if (!serve || serve->id == 0)
            continue;
        if (serve->revoke_deadline_ms && now_ms >= serve->revoke_deadline_ms) {
            local_count(&counters(server)->evictions, 1);
            LOG_INFO("'%s' does not give memory back: its connection is closed", link->peer_name);
            local_link_fail(link, SHOAL_UNREACHABLE, NULL);
            return;
        }
        /* Those that wait for a thread are told, too, as long as the threads get on. */
        if (serve->is_write && has_progress && now_ms - serve->told_ms >= LOCAL_PROGRESS_MS) {
            serve->told_ms = now_ms;
            local_link_send(link, &(struct local_frame){.type = LOCAL_PROGRESS,
                                                        .id = serve->id,
                                                        .len = __atomic_load_n(&serve->copy.moved, __ATOMIC_RELAXED)});
        }
    }
}
