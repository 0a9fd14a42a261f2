/* SPDX-License-Identifier: Apache-2.0 */
/* Measures the way to another node: control calls, small READs, and a bounded transfer. */
#ifndef SHOAL_CMD_PEER_PROBE_H
#define SHOAL_CMD_PEER_PROBE_H

#include <stdbool.h>
#include <stdint.h>

#include <shoal/engine.h>

#include "engine/engine.h"

struct peer_probe_config {
    struct shoal_engine *engine;     /* borrowed */
    const char *name, *address;      /* borrowed */
    uint64_t instance;               /* as the peer says it; not 0 */
    uint64_t bytes;                  /* at most, of the transfer; at least 1 MiB are read */
    int64_t transfer_ms, timeout_ms; /* of the transfer; of everything */
    struct shoal_cancel *cancel;     /* borrowed, may be NULL */
    void (*progress)(void *arg, uint64_t done_bytes, uint64_t total_bytes, double bytes_per_s); /* may be NULL */
    void *progress_arg;
};

struct peer_probe_result {
    char version[32];
    int64_t call_us, read_us;   /* medians; 0: not measured */
    uint64_t bytes, elapsed_us; /* of the transfer; 0: not measured */
    bool has_path;              /* path is set: a READ was tried */
    struct {
        const char *transport; /* static; NULL: none */
        unsigned count;
        struct {
            const char *transport, *refusal; /* static; refusal NULL: usable */
            char text[ENGINE_PATH_TEXT_BYTES];
        } others[ENGINE_PATHS_MAX]; /* that were preferred and are not used */
    } path;
};

/* Blocks. result_out has what was measured, also after an error. UNSUPPORTED: the peer is of a version that has nothing
 * to measure with. CORRUPTED: bytes that arrived are not those that were read. And the errors of a call and of READs.
 */
enum shoal_status peer_probe_run(const struct peer_probe_config *config, struct peer_probe_result *result_out,
                                 struct shoal_error *error);

#endif
