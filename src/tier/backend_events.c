/* SPDX-License-Identifier: Apache-2.0 */
/* Events wait in a bounded queue and are delivered by the background thread. One is made before what it tells of is
 * done, so what cannot be told does not happen. */
#include <stdlib.h>
#include <string.h>

#include "tier/backend.h"

#define DELIVER_MAX 1024 /* per round */

struct event *event_create(struct tier_backend *backend, const struct tier_object *object)
{
    size_t key_bytes = strlen(object->key) + 1;
    struct event *event = NULL;
    bool is_full;

    mutex_lock(&backend->lock);
    is_full = backend->event_count >= EVENTS_MAX;
    mutex_unlock(&backend->lock);
    if (!is_full)
        event = malloc(sizeof *event + key_bytes);
    if (!event)
        return NULL;
    *event = (struct event){.tier = object->tier, .object_id = object->object_id};
    memcpy(event->key, object->key, key_bytes);
    return event;
}

void event_post(struct tier_backend *backend, struct event *event, bool is_eviction)
{
    event->is_eviction = is_eviction;
    mutex_lock(&backend->lock);
    list_push_back(&backend->events, &event->node);
    backend->event_count++;
    backend->is_woken = true;
    cond_signal(&backend->wake);
    mutex_unlock(&backend->lock);
}

bool events_deliver(struct tier_backend *backend)
{
    bool has_more = true;

    for (unsigned i = 0; i < DELIVER_MAX && has_more; i++) {
        struct tier_events handlers;
        struct list_node *node;
        struct event *event;

        mutex_lock(&backend->lock);
        node = list_pop_front(&backend->events);
        if (node) {
            backend->event_count--;
            handlers = backend->handlers;
            backend->is_in_handler = true;
            backend->handler_thread = pthread_self();
        }
        mutex_unlock(&backend->lock);
        if (!node)
            return false;
        event = container_of(node, struct event, node);
        if (event->is_eviction && handlers.evicted)
            handlers.evicted(handlers.arg, event->key, event->object_id);
        else if (!event->is_eviction && handlers.moved)
            handlers.moved(handlers.arg, event->key, event->object_id, event->tier);
        free(event);
        mutex_lock(&backend->lock);
        backend->is_in_handler = false;
        backend->handler_calls++;
        has_more = backend->event_count > 0;
        cond_broadcast(&backend->idle);
        mutex_unlock(&backend->lock);
    }
    return has_more;
}

void tier_backend_set_events(struct tier_backend *backend, const struct tier_events *events)
{
    uint64_t call;

    mutex_lock(&backend->lock);
    backend->handlers = events ? *events : (struct tier_events){0};
    call = backend->handler_calls;
    while (backend->is_in_handler && backend->handler_calls == call &&
           !pthread_equal(backend->handler_thread, pthread_self()))
        cond_wait(&backend->idle, &backend->lock);
    mutex_unlock(&backend->lock);
}

void events_release(struct tier_backend *backend)
{
    LIST_FOR_EACH_SAFE (event, &backend->events, struct event, node)
        free(event);
    list_init(&backend->events);
    backend->event_count = 0;
}
