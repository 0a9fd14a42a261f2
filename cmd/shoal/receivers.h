/* SPDX-License-Identifier: Apache-2.0 */
/* Who takes a payload from this node: told as it changes, and summed up at the end. */
#ifndef SHOAL_CMD_RECEIVERS_H
#define SHOAL_CMD_RECEIVERS_H

#include <jansson.h>
#include <stddef.h>
#include <stdint.h>

#include <shoal/store.h>

#include "base/map.h"

struct app;

/* {"name", "state", "bytes", "pieces_have", "silent_ms", "transport", "left_transports"}, as in stat and in the
 * summary. */
json_t *receiver_to_json(const struct shoal_receiver_info *info);
/* "127.0.0.1:4000: 12 MiB, takes, has 43 %" in words for people. Returns to. */
const char *receiver_to_text(const struct shoal_receiver_info *info, uint64_t piece_count, char *to, size_t size);
/* " over tcp (not local: ptrace)", " over local", or "" if none is known. Returns to. */
const char *transport_to_text(const char *transport, const char *left_transports, char *to, size_t size);
/* Largest giver or taker first, then by name: for qsort over struct shoal_receiver_info. */
int receiver_compare(const void *a, const void *b);

/* 0..100, 100 only for everything; also of nothing. */
unsigned share_percent(uint64_t have, uint64_t total);

/* --- changes --- */

struct receiver_watch {
    const struct app *app; /* borrowed */
    const char *name;      /* borrowed: of the payload */
    struct map told;       /* server name -> what was said of it last */
};

void receiver_watch_init(struct receiver_watch *watch, const struct app *app, const char *name);
/* Compares with what was told before and tells what is new: with --json as events, with -v as lines. At most some in
 * one call; the others are told by the next ones. */
void receiver_watch_tell(struct receiver_watch *watch, const struct shoal_receiver_info *infos, size_t count,
                         uint64_t piece_count);
void receiver_watch_release(struct receiver_watch *watch);

/* --- the account at the end --- */

struct receiver_account {
    uint64_t bytes_served, piece_count;
    struct shoal_receiver_info *infos; /* owned, largest first */
    size_t count;
};

/* Before the payload is withdrawn. Whatever cannot be found out is 0. */
void receiver_account_take(struct receiver_account *account, struct app *app, const char *name);
json_t *receiver_account_to_json(const struct receiver_account *account);
/* "withdrew NAME: ..." and one line for each of the largest. */
void receiver_account_print(const struct receiver_account *account, const char *name);
void receiver_account_release(struct receiver_account *account);

#endif
