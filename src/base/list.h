/* SPDX-License-Identifier: Apache-2.0 */
/* Intrusive doubly linked list with a sentinel. */
#ifndef SHOAL_BASE_LIST_H
#define SHOAL_BASE_LIST_H

#include <stdbool.h>
#include <stddef.h>

struct list_node {
    struct list_node *prev, *next;
};

struct list {
    struct list_node head;
};

#define container_of(pointer, type, member) ((type *)(void *)((char *)(pointer)-offsetof(type, member)))

static inline void list_init(struct list *list)
{
    list->head.prev = list->head.next = &list->head;
}

static inline bool list_is_empty(const struct list *list)
{
    return list->head.next == &list->head;
}

/* at: a node of a list, or the head of one: then node becomes the last. */
static inline void list_insert_before(struct list_node *at, struct list_node *node)
{
    node->prev = at->prev;
    node->next = at;
    at->prev->next = node;
    at->prev = node;
}

static inline void list_push_back(struct list *list, struct list_node *node)
{
    list_insert_before(&list->head, node);
}

static inline void list_push_front(struct list *list, struct list_node *node)
{
    list_insert_before(list->head.next, node);
}

/* Removes a node that is in a list; afterwards it points at itself, so a second removal is harmless. */
static inline void list_remove(struct list_node *node)
{
    node->prev->next = node->next;
    node->next->prev = node->prev;
    node->prev = node->next = node;
}

static inline void list_node_init(struct list_node *node)
{
    node->prev = node->next = node;
}

static inline bool list_node_is_linked(const struct list_node *node)
{
    return node->next != node;
}

static inline struct list_node *list_first(const struct list *list)
{
    return list_is_empty(list) ? NULL : list->head.next;
}

static inline struct list_node *list_pop_front(struct list *list)
{
    struct list_node *node = list_first(list);
    if (node)
        list_remove(node);
    return node;
}

#define LIST_FOR_EACH(item, list, type, member)                                                                        \
    for (type *item = container_of((list)->head.next, type, member); &item->member != &(list)->head;                   \
         item = container_of(item->member.next, type, member))

/* The loop body may remove and free item. */
#define LIST_FOR_EACH_SAFE(item, list, type, member)                                                                   \
    for (type *item = container_of((list)->head.next, type, member),                                                   \
              *item##_next = container_of(item->member.next, type, member);                                            \
         &item->member != &(list)->head;                                                                               \
         item = item##_next, item##_next = container_of(item##_next->member.next, type, member))

#endif
