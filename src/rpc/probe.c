/* SPDX-License-Identifier: Apache-2.0 */
#include "rpc/probe.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "base/error.h"
#include "engine/engine.h"
#include "wire/control.pb-c.h"

struct probe {
    struct shoal_engine *engine; /* borrowed */
    /* loop 0 */
    uint64_t *memory; /* owned, registered; NULL until somebody asks */
    uint64_t key;
};

uint64_t probe_word(uint64_t offset_bytes)
{
    uint64_t x = (offset_bytes + 1) * UINT64_C(0x9e3779b97f4a7c15);
    return x ^ (x >> 29);
}

/* Once; after a failure the next one who asks tries again. */
static enum shoal_status make_memory(struct probe *probe, struct shoal_error *error)
{
    enum shoal_status status;
    uint64_t *memory;

    if (probe->memory)
        return SHOAL_OK;
    memory = mmap(NULL, PROBE_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED)
        return error_set(error, SHOAL_NO_MEMORY, errno, "memory to be read for measuring: %s", strerror(errno));
    for (size_t i = 0; i < PROBE_BYTES / sizeof *memory; i++)
        memory[i] = probe_word(i * sizeof *memory);
    status = shoal_engine_register_memory(probe->engine, memory, PROBE_BYTES, NULL, SHOAL_ACCESS_REMOTE_READ,
                                          &probe->key, error);
    if (status) {
        munmap(memory, PROBE_BYTES);
        return status;
    }
    probe->memory = memory;
    return SHOAL_OK;
}

static void on_probe(void *arg, struct rpc_request *request)
{
    struct probe *probe = arg;
    Shoal__Wire__ProbeResponse response = SHOAL__WIRE__PROBE_RESPONSE__INIT;
    Shoal__Wire__MemoryRange range = SHOAL__WIRE__MEMORY_RANGE__INIT;
    struct shoal_error error;
    uint8_t body[128];
    enum shoal_status status = make_memory(probe, &error);

    if (status) {
        rpc_reply(request, status, error.message, NULL, 0);
        return;
    }
    range.addr = (uintptr_t)probe->memory;
    range.len_bytes = PROBE_BYTES;
    range.key = probe->key;
    response.memory = &range;
    response.version = (char *)SHOAL_VERSION;
    if (shoal__wire__probe_response__get_packed_size(&response) > sizeof body)
        rpc_reply(request, SHOAL_INTERNAL, "the version is too long", NULL, 0);
    else
        rpc_reply(request, SHOAL_OK, NULL, body, shoal__wire__probe_response__pack(&response, body));
}

enum shoal_status probe_create(struct shoal_engine *engine, struct rpc *rpc, struct probe **probe_out,
                               struct shoal_error *error)
{
    struct probe *probe = calloc(1, sizeof *probe);

    if (!probe)
        return error_no_memory(error);
    probe->engine = engine;
    rpc_set_handler(rpc, PROBE_METHOD, on_probe, probe);
    *probe_out = probe;
    return SHOAL_OK;
}

void probe_destroy(struct probe *probe)
{
    if (!probe)
        return;
    if (probe->memory) {
        (void)shoal_engine_unregister_memory(probe->engine, probe->memory, PROBE_BYTES, NULL);
        munmap(probe->memory, PROBE_BYTES);
    }
    free(probe);
}

enum shoal_status probe_decode(struct probe_answer *answer_out, const uint8_t *body, size_t body_len,
                               struct shoal_error *error)
{
    Shoal__Wire__ProbeResponse *message = shoal__wire__probe_response__unpack(NULL, body_len, body);
    enum shoal_status status = SHOAL_OK;

    if (!message || !message->memory || message->memory->len_bytes < PROBE_BYTES ||
        message->memory->addr > UINT64_MAX - message->memory->len_bytes) {
        status = error_set(error, SHOAL_PROTOCOL, 0, "malformed answer to a probe");
    } else {
        *answer_out = (struct probe_answer){
            .addr = message->memory->addr, .len_bytes = message->memory->len_bytes, .key = message->memory->key};
        snprintf(answer_out->version, sizeof answer_out->version, "%.*s", (int)sizeof answer_out->version - 1,
                 message->version);
    }
    if (message)
        shoal__wire__probe_response__free_unpacked(message, NULL);
    return status;
}
