/* SPDX-License-Identifier: Apache-2.0 */
/* Requests of other processes of this host. While one is going on, the memory that it is about is pinned: a READ until
 * it is released, a WRITE while its bytes are copied here.
 *
 * READs that are not small wait in `held` for the connection's turn (upload.h): so few peers copy at a time, each at
 * full speed, and have something to pass on. While nobody else waits a turn does not end. */
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
    struct list_node node;      /* in server->held: READ that is not granted */
    bool is_turns;              /* READ that was granted in a turn */
    int64_t revoke_deadline_ms; /* > 0: READ that was revoked */
    int64_t told_ms;            /* of WRITE, or READ that is held: when PROGRESS was sent */
    struct local_server *server;
    struct local_copy copy;
};

struct local_server {
    struct local_link link;
    struct list_node node;                  /* in local->servers */
    struct local_serve *slots[LOCAL_SLOTS]; /* owned; NULL: never used */
    unsigned used;
    int64_t idle_since_ms;
    struct upload_turn turn;
    struct list held;    /* struct local_serve */
    unsigned turn_reads; /* granted in this turn */
    unsigned out_reads;  /* of all turns, not released */
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

static struct upload_scheduler *uploads(struct local_server *server)
{
    return &server->link.local->uploads;
}

static void serve_release(struct local_serve *serve)
{
    struct local_server *server = serve->server;

    list_remove(&serve->node);
    serve->is_turns = false;
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
    copy->is_alone = server->used == 1;
    serve->told_ms = clock_now_ms();
    local_copy_start(copy);
}

/* --- READ --- */

/* false: it was refused. */
static bool grant(struct local_server *server, struct local_serve *serve)
{
    struct local_frame answer = {.type = LOCAL_GRANT, .id = serve->id};
    struct local_link *link = &server->link;

    if (!link->is_readable && !local_share_offer(link, serve->addr, serve->len, &answer.share, &answer.from)) {
        serve_release(serve);
        refuse(server, answer.id, LOCAL_CODE_UNABLE, "the memory is not shared");
        return false;
    }
    local_link_send(link, &answer);
    if (server->used == 1) /* who has asked for more does not wait for each answer */
        loop_expect_more(link->local->env.loop);
    return true;
}

/* Gives what is held a turn, and as much of it as belongs into one. */
static void grant_held(struct local_server *server)
{
    struct local *local = server->link.local;

    while (!server->link.is_dead && !list_is_empty(&server->held)) {
        struct local_serve *serve = container_of(list_first(&server->held), struct local_serve, node);

        if (!upload_wants(uploads(server), &server->turn, clock_now_ms())) {
            if (!loop_timer_is_running(&local->lend_check))
                loop_timer_start(&local->lend_check, LOCAL_LEND_CHECK_MS);
            return;
        }
        if (server->turn_reads >= LOCAL_TURN_READS && upload_is_contended(uploads(server)))
            return; /* goes on when what was granted is over */
        list_remove(&serve->node);
        if (grant(server, serve)) {
            serve->is_turns = true;
            server->turn_reads++;
            server->out_reads++;
        }
    }
    if (server->out_reads == 0)
        upload_leave(uploads(server), &server->turn, clock_now_ms()); /* nothing could be granted */
}

void local_server_granted(struct upload_turn *turn)
{
    struct local_server *server = container_of(turn, struct local_server, turn);

    server->turn_reads = 0;
    grant_held(server);
}

/* A READ of the turn is over. */
static void turn_moved(struct local_server *server)
{
    int64_t now_ms = clock_now_ms();

    (void)upload_moved(uploads(server), &server->turn, now_ms);
    if (--server->out_reads == 0) {
        server->turn_reads = 0;
        (void)upload_sent(uploads(server), &server->turn, !list_is_empty(&server->held), now_ms);
    }
    if (!list_is_empty(&server->held))
        grant_held(server);
}

/* Something that was held is not any more. */
static void leave_if_idle(struct local_server *server)
{
    if (list_is_empty(&server->held) && server->out_reads == 0)
        upload_leave(uploads(server), &server->turn, clock_now_ms());
}

static void begin_read(struct local_server *server, struct local_serve *serve)
{
    if (serve->len <= LOCAL_INLINE_BYTES) {
        (void)grant(server, serve);
        return;
    }
    serve->told_ms = clock_now_ms();
    list_push_back(&server->held, &serve->node);
    grant_held(server);
}

static bool release(struct local_serve *serve, uint64_t fault_addr)
{
    struct local_server *server = serve->server;
    bool is_turns = serve->is_turns;

    if (serve->is_write || list_node_is_linked(&serve->node) ||
        (fault_addr && (fault_addr < serve->addr || fault_addr - serve->addr >= serve->len)))
        return false;
    /* What a peer says is worth a look, not more. */
    if (fault_addr && !local_copy_is_readable(fault_addr))
        mark_faulty(server, serve->region);
    local_count(&counters(server)->served_reads, 1);
    local_count(&counters(server)->served_read_bytes, serve->len);
    serve_release(serve);
    if (is_turns)
        turn_moved(server);
    if (server->used == 0)
        loop_expect_more(server->link.local->env.loop);
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
    list_node_init(&(*slot)->node);
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
        begin_read(server, serve);
    }
    return true;
}

/* Not what is granted: that is released. */
static void cancel(struct local_server *server, struct local_serve *serve)
{
    uint64_t id = serve->id;

    if (serve->is_write) {
        serve->is_canceled = true;
        local_copy_stop(&serve->copy);
    } else if (list_node_is_linked(&serve->node)) {
        serve_release(serve);
        refuse(server, id, LOCAL_CODE_CANCELED, "canceled");
        leave_if_idle(server);
    }
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
        if (serve && serve->id == frame->id && frame->id)
            cancel(server, serve);
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
    upload_leave(uploads(server), &server->turn, clock_now_ms());
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
    list_init(&server->held);
    upload_turn_init(&server->turn, &local->turns);
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
        if (list_node_is_linked(&serve->node)) {
            uint64_t id = serve->id;

            serve_release(serve);
            refuse(server, id, LOCAL_CODE_INVALID, "the memory is being unregistered");
            continue;
        }
        serve->revoke_deadline_ms = deadline_after_ms(LOCAL_GRACE_MS);
        local_link_send(&server->link, &(struct local_frame){.type = LOCAL_REVOKE, .id = serve->id});
    }
    leave_if_idle(server);
}

void local_server_tick(struct local_server *server, int64_t now_ms, bool has_progress)
{
    struct local_link *link = &server->link;
    bool is_turn_awaited = upload_is_waiting(uploads(server), &server->turn);

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
        /* Those that wait for a thread or for their turn are told, too, as long as the threads get on. */
        if ((serve->is_write ? has_progress : is_turn_awaited && list_node_is_linked(&serve->node)) &&
            now_ms - serve->told_ms >= LOCAL_PROGRESS_MS) {
            uint64_t moved = serve->is_write ? __atomic_load_n(&serve->copy.moved, __ATOMIC_RELAXED) : 0;

            serve->told_ms = now_ms;
            local_link_send(link, &(struct local_frame){.type = LOCAL_PROGRESS, .id = serve->id, .len = moved});
        }
    }
}
