/* SPDX-License-Identifier: Apache-2.0 */
#include "store/receivers.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct receiver {
    struct list_node node; /* in taking or gone, as its state says */
    char name[320];
    enum shoal_receiver_state state;
    uint64_t bytes_before; /* taken in pulls before the current one */
    uint64_t bytes;        /* in the current one, as reported last */
    uint32_t pieces_have;
    char transport[SHOAL_TRANSPORT_NAME_BYTES], left_transports[SHOAL_TRANSPORT_REASONS_BYTES];
    int64_t heard_ms;
};

void receivers_init(struct receivers *receivers)
{
    *receivers = (struct receivers){.taking_count = 0};
    map_init(&receivers->by_name);
    list_init(&receivers->taking);
    list_init(&receivers->gone);
}

void receivers_set_payload(struct receivers *receivers, uint32_t piece_count, uint64_t total_bytes)
{
    receivers->piece_count = piece_count;
    receivers->total_bytes = total_bytes;
}

static void forget(struct receivers *receivers, struct receiver *receiver)
{
    if (receiver->state == SHOAL_RECEIVER_TAKING)
        receivers->taking_count--;
    list_remove(&receiver->node);
    map_remove_str(&receivers->by_name, receiver->name);
    free(receiver);
}

static void forget_all(struct receivers *receivers, struct list *list)
{
    LIST_FOR_EACH_SAFE (receiver, list, struct receiver, node)
        forget(receivers, receiver);
}

void receivers_release(struct receivers *receivers)
{
    forget_all(receivers, &receivers->taking);
    forget_all(receivers, &receivers->gone);
    map_release(&receivers->by_name);
    map_init(&receivers->by_name);
}

static void set_state(struct receivers *receivers, struct receiver *receiver, enum shoal_receiver_state state)
{
    bool was_taking = receiver->state == SHOAL_RECEIVER_TAKING, is_taking = state == SHOAL_RECEIVER_TAKING;

    receiver->state = state;
    list_remove(&receiver->node);
    list_push_back(is_taking ? &receivers->taking : &receivers->gone, &receiver->node);
    receivers->taking_count += (unsigned)is_taking;
    receivers->taking_count -= (unsigned)was_taking;
}

/* What it is once it takes no more. */
static enum shoal_receiver_state state_after(const struct receivers *receivers, const struct receiver *receiver)
{
    return receiver->pieces_have == receivers->piece_count ? SHOAL_RECEIVER_DONE : SHOAL_RECEIVER_LEFT;
}

static struct receiver *add(struct receivers *receivers, const char *name)
{
    struct list_node *oldest = list_first(&receivers->gone);
    struct receiver *receiver;

    if (receivers->by_name.count >= RECEIVERS_MAX) {
        if (!oldest)
            return NULL; /* only the display suffers */
        forget(receivers, container_of(oldest, struct receiver, node));
    }
    receiver = calloc(1, sizeof *receiver);
    if (!receiver)
        return NULL;
    if (snprintf(receiver->name, sizeof receiver->name, "%s", name) >= (int)sizeof receiver->name ||
        !map_put_str(&receivers->by_name, receiver->name, receiver)) {
        free(receiver);
        return NULL;
    }
    receiver->state = SHOAL_RECEIVER_TAKING;
    list_push_back(&receivers->taking, &receiver->node);
    receivers->taking_count++;
    return receiver;
}

static void copy_text(char *to, size_t size, const char *text)
{
    snprintf(to, size, "%.*s", (int)size - 1, text ? text : "");
}

uint64_t receivers_report(struct receivers *receivers, const struct receiver_report *report, int64_t now_ms)
{
    struct receiver *receiver = map_get_str(&receivers->by_name, report->name);
    uint64_t bytes = report->taken_bytes < receivers->total_bytes ? report->taken_bytes : receivers->total_bytes;
    uint64_t more;

    receivers_age(receivers, now_ms);
    if (!receiver && !(receiver = add(receivers, report->name)))
        return 0;
    if (bytes < receiver->bytes) { /* it pulls again */
        receiver->bytes_before += receiver->bytes;
        receiver->bytes = 0;
    }
    more = bytes - receiver->bytes;
    receiver->bytes = bytes;
    receivers->bytes_served += more;
    receiver->pieces_have = report->pieces_have < receivers->piece_count ? report->pieces_have : receivers->piece_count;
    receiver->heard_ms = now_ms;
    copy_text(receiver->transport, sizeof receiver->transport, report->transport);
    copy_text(receiver->left_transports, sizeof receiver->left_transports, report->left_transports);
    set_state(receivers, receiver, report->is_last ? state_after(receivers, receiver) : SHOAL_RECEIVER_TAKING);
    return more;
}

void receivers_lost(struct receivers *receivers, const char *name)
{
    struct receiver *receiver = map_get_str(&receivers->by_name, name);

    if (receiver && receiver->state == SHOAL_RECEIVER_TAKING)
        set_state(receivers, receiver, state_after(receivers, receiver));
}

void receivers_age(struct receivers *receivers, int64_t now_ms)
{
    struct list_node *oldest;

    while ((oldest = list_first(&receivers->taking))) {
        struct receiver *receiver = container_of(oldest, struct receiver, node);
        if (now_ms - receiver->heard_ms <= RECEIVER_SILENCE_MS)
            break;
        set_state(receivers, receiver, state_after(receivers, receiver));
    }
}

static void describe(const struct receiver *receiver, int64_t now_ms, struct shoal_receiver_info *info)
{
    *info = (struct shoal_receiver_info){
        .state = receiver->state,
        .pieces_have = receiver->pieces_have,
        .bytes = receiver->bytes_before + receiver->bytes,
        .silent_ms = now_ms > receiver->heard_ms ? (uint64_t)(now_ms - receiver->heard_ms) : 0,
    };
    memcpy(info->name, receiver->name, sizeof info->name);
    memcpy(info->transport, receiver->transport, sizeof info->transport);
    memcpy(info->left_transports, receiver->left_transports, sizeof info->left_transports);
}

size_t receivers_list(const struct receivers *receivers, int64_t now_ms, struct shoal_receiver_info *infos, size_t max)
{
    const struct list *const lists[] = {&receivers->taking, &receivers->gone};
    size_t count = 0;

    for (size_t i = 0; i < sizeof lists / sizeof *lists; i++) {
        const struct list_node *end = &lists[i]->head;
        for (const struct list_node *node = end->prev; node != end && count < max; node = node->prev)
            describe(container_of(node, struct receiver, node), now_ms, &infos[count++]);
    }
    return count;
}
