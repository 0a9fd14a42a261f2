/* SPDX-License-Identifier: Apache-2.0 */
#include "peer_probe.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "base/call.h"
#include "base/clock.h"
#include "base/error.h"
#include "rpc/probe.h"
#include "signals.h"

#define CALLS 20
#define READS 64
#define SMALL_BYTES ((uint64_t)4096)
#define CHUNK_BYTES ((uint64_t)1 << 20)
#define SLOTS 16 /* chunks on the way at a time */
#define CONNECT_TIMEOUT_MS 3000
#define CALL_TIMEOUT_MS 3000
#define POLL_MS 20
#define PROGRESS_MS 200

/* One chunk of memory and the request that fills it. */
struct slot {
    struct probe_run *run;
    struct engine_op op;
    uint64_t offset_bytes; /* in the peer's memory; of the last request */
    bool has_content;
};

struct probe_run {
    const struct peer_probe_config *config;
    struct peer_probe_result *result;
    uint8_t *memory; /* SLOTS chunks */
    struct rpc *rpc;
    struct shoal_segment *segment;

    /* loop 0, until is_over */
    struct rpc_client *client;
    struct probe_answer answer;
    struct slot slots[SLOTS];
    int64_t times_ns[READS], started_ns; /* started_ns: of the call, of the READ or of the transfer */
    unsigned time_count, running;
    bool is_stopping;
    uint64_t next_bytes; /* asked for so far */
    int64_t transfer_end_ms;
    enum shoal_status status;
    struct shoal_error error;
    const struct shoal_error *stop_error; /* why it is stopped; borrowed while stop_on_loop runs */

    atomic_uint_fast64_t done_bytes, elapsed_ns; /* of the transfer, for the display */
    atomic_bool is_over;                         /* release; what loop 0 wrote is the caller's when it is seen */
};

static int by_time(const void *a, const void *b)
{
    int64_t left = *(const int64_t *)a, right = *(const int64_t *)b;
    return left < right ? -1 : left > right;
}

static int64_t median_us(int64_t *times_ns, unsigned count)
{
    qsort(times_ns, count, sizeof *times_ns, by_time);
    return times_ns[count / 2] / 1000;
}

/* Ends when nothing runs any more; the first failure counts. */
static void settle(struct probe_run *run, enum shoal_status status, const struct shoal_error *error)
{
    if (status != SHOAL_OK && run->status == SHOAL_OK) {
        run->status = status;
        if (error)
            run->error = *error;
        else
            error_set(&run->error, status, 0, "%s", shoal_status_text(status));
    }
    if (run->running > 0)
        return;
    struct rpc_client *client = run->client;
    run->client = NULL;
    rpc_client_close(client);
    atomic_store_explicit(&run->is_over, true, memory_order_release);
}

/* --- READs --- */

static void submit(struct slot *slot, uint64_t offset_bytes, uint64_t len_bytes,
                   void (*done)(struct engine_op *op, enum shoal_status status, const struct shoal_error *error))
{
    struct probe_run *run = slot->run;
    slot->offset_bytes = offset_bytes;
    slot->op = (struct engine_op){.op = SHOAL_OP_READ,
                                  .segment = run->segment,
                                  .local = run->memory + (size_t)(slot - run->slots) * CHUNK_BYTES,
                                  .remote_addr = run->answer.addr + offset_bytes,
                                  .remote_key = run->answer.key,
                                  .len_bytes = len_bytes,
                                  .done = done,
                                  .arg = slot};
    run->running++;
    engine_submit(run->config->engine, &slot->op);
}

static void on_chunk(struct engine_op *op, enum shoal_status status, const struct shoal_error *error);

static bool wants_more(const struct probe_run *run)
{
    return !run->is_stopping && run->status == SHOAL_OK && run->next_bytes < run->config->bytes &&
           !deadline_is_past(run->transfer_end_ms);
}

static void next_chunk(struct slot *slot)
{
    struct probe_run *run = slot->run;
    uint64_t offset = run->next_bytes % PROBE_BYTES;
    run->next_bytes += CHUNK_BYTES;
    submit(slot, offset, CHUNK_BYTES, on_chunk);
}

static void on_chunk(struct engine_op *op, enum shoal_status status, const struct shoal_error *error)
{
    struct slot *slot = op->arg;
    struct probe_run *run = slot->run;
    run->running--;
    slot->has_content = status == SHOAL_OK;
    if (status == SHOAL_OK) {
        atomic_fetch_add_explicit(&run->done_bytes, CHUNK_BYTES, memory_order_relaxed);
        atomic_store_explicit(&run->elapsed_ns, (uint64_t)(clock_now_ns() - run->started_ns), memory_order_relaxed);
        if (wants_more(run)) {
            next_chunk(slot);
            return;
        }
    }
    settle(run, status, error);
}

static void start_transfer(struct probe_run *run)
{
    run->started_ns = clock_now_ns();
    run->transfer_end_ms = deadline_after_ms(run->config->transfer_ms);
    for (unsigned i = 0; i < SLOTS && (i == 0 || wants_more(run)); i++)
        next_chunk(&run->slots[i]);
}

static void on_small_read(struct engine_op *op, enum shoal_status status, const struct shoal_error *error)
{
    struct slot *slot = op->arg;
    struct probe_run *run = slot->run;
    int64_t now_ns = clock_now_ns();
    run->running--;
    run->result->has_path = true;
    if (status != SHOAL_OK || run->is_stopping) {
        settle(run, status, error);
        return;
    }
    if (run->time_count == READS) { /* the one before them made the connection */
        run->result->read_us = median_us(run->times_ns, READS);
        start_transfer(run);
        return;
    }
    if (run->started_ns)
        run->times_ns[run->time_count++] = now_ns - run->started_ns;
    run->started_ns = clock_now_ns();
    submit(slot, 0, SMALL_BYTES, on_small_read);
}

/* --- control calls --- */

static void call_peer(struct probe_run *run);

static void on_answer(void *arg, enum shoal_status status, const uint8_t *body, size_t body_len,
                      const struct shoal_error *error)
{
    struct probe_run *run = arg;
    struct shoal_error why;
    int64_t now_ns = clock_now_ns();
    run->running--;
    if (status == SHOAL_OK && (status = probe_decode(&run->answer, body, body_len, &why)) != SHOAL_OK)
        error = &why;
    if (status != SHOAL_OK || run->is_stopping) {
        settle(run, status, error);
        return;
    }
    memcpy(run->result->version, run->answer.version, sizeof run->result->version);
    if (run->started_ns) /* the first one made the connection */
        run->times_ns[run->time_count++] = now_ns - run->started_ns;
    if (run->time_count < CALLS) {
        run->started_ns = clock_now_ns();
        call_peer(run);
        return;
    }
    run->result->call_us = median_us(run->times_ns, CALLS);
    run->time_count = 0;
    run->started_ns = 0;
    submit(&run->slots[0], 0, SMALL_BYTES, on_small_read);
}

static void call_peer(struct probe_run *run)
{
    struct shoal_error error;
    run->running++;
    if (rpc_call(run->client, PROBE_METHOD, NULL, 0, CALL_TIMEOUT_MS, on_answer, run) == SHOAL_OK)
        return;
    run->running--;
    settle(run, error_no_memory(&error), &error);
}

static void start_on_loop(void *arg)
{
    struct probe_run *run = arg;
    struct shoal_error error;
    enum shoal_status status = rpc_client_open(run->rpc, run->config->address, run->config->instance,
                                               CONNECT_TIMEOUT_MS, &run->client, &error);
    if (status != SHOAL_OK)
        settle(run, status, &error);
    else
        call_peer(run);
}

static void stop_on_loop(void *arg)
{
    struct probe_run *run = arg;
    if (run->is_stopping || atomic_load_explicit(&run->is_over, memory_order_relaxed))
        return;
    run->is_stopping = true;
    if (run->status == SHOAL_OK) {
        run->status = run->stop_error->status;
        run->error = *run->stop_error;
    }
    engine_segment_abort(run->segment);
    /* Ends the call that runs, if one does: that closes nothing yet, see settle. */
    struct rpc_client *client = run->client;
    run->client = NULL;
    rpc_client_close(client);
}

/* --- the caller's side --- */

static void wait_until_over(struct probe_run *run)
{
    const struct peer_probe_config *config = run->config;
    int64_t deadline_ms = deadline_after_ms(config->timeout_ms), shown_ms = clock_now_ms();
    struct shoal_error why;
    bool is_stopped = false;
    while (!atomic_load_explicit(&run->is_over, memory_order_acquire)) {
        if (is_stopped) { /* soon; signals_wait_ms would not sleep any more */
            const struct timespec pause = {.tv_nsec = POLL_MS * 1000000L};
            nanosleep(&pause, NULL);
            continue;
        }
        bool is_canceled = signals_wait_ms(POLL_MS) || cancel_is_triggered(config->cancel);
        if (is_canceled || deadline_is_past(deadline_ms)) {
            is_stopped = true;
            error_set(&why, is_canceled ? SHOAL_CANCELED : SHOAL_TIMED_OUT, 0, "%s",
                      is_canceled ? "interrupted" : "not done in time");
            run->stop_error = &why;
            loop_call(engine_loop(config->engine), stop_on_loop, run);
            run->stop_error = NULL;
            continue;
        }
        uint64_t done = atomic_load_explicit(&run->done_bytes, memory_order_relaxed),
                 elapsed_ns = atomic_load_explicit(&run->elapsed_ns, memory_order_relaxed);
        if (config->progress && done && elapsed_ns && clock_now_ms() - shown_ms >= PROGRESS_MS) {
            config->progress(config->progress_arg, done, config->bytes, (double)done * 1e9 / (double)elapsed_ns);
            shown_ms = clock_now_ms();
        }
    }
}

static bool is_content_right(const struct probe_run *run)
{
    for (size_t i = 0; i < SLOTS; i++) {
        const uint8_t *chunk = run->memory + i * CHUNK_BYTES;
        for (uint64_t at = 0; run->slots[i].has_content && at < CHUNK_BYTES; at += sizeof(uint64_t)) {
            uint64_t word;
            memcpy(&word, chunk + at, sizeof word);
            if (word != probe_word(run->slots[i].offset_bytes + at))
                return false;
        }
    }
    return true;
}

struct path_search {
    const struct peer_probe_config *config;
    struct peer_probe_result *result;
};

/* The ones before the one in use were preferred. */
static void take_path(void *arg, const struct engine_peer_view *view)
{
    const struct path_search *search = arg;
    struct peer_probe_result *result = search->result;
    if (view->instance != search->config->instance || strcmp(view->address, search->config->address) != 0)
        return;
    result->path.transport = view->transport;
    result->path.count = 0;
    for (unsigned i = 0; i < view->path_count && !view->paths[i].is_in_use; i++) {
        result->path.others[result->path.count].transport = view->paths[i].transport;
        result->path.others[result->path.count].refusal = view->paths[i].refusal;
        memcpy(result->path.others[result->path.count++].text, view->paths[i].text, ENGINE_PATH_TEXT_BYTES);
    }
}

static enum shoal_status measure(struct probe_run *run, struct shoal_error *error)
{
    const struct peer_probe_config *config = run->config;
    struct path_search search = {config, run->result};
    enum shoal_status status =
        rpc_create(engine_loop(config->engine), engine_endpoint(config->engine), &run->rpc, error);
    if (status != SHOAL_OK)
        return status;
    status =
        engine_segment_create(config->engine, config->name, config->address, config->instance, &run->segment, error);
    if (status == SHOAL_OK) {
        loop_call(engine_loop(config->engine), start_on_loop, run);
        wait_until_over(run);
        status = run->status;
        if (status != SHOAL_OK)
            error_copy(error, &run->error);
        if (run->result->has_path)
            (void)engine_peers_visit(config->engine, take_path, &search);
        run->result->bytes = atomic_load(&run->done_bytes);
        run->result->elapsed_us = atomic_load(&run->elapsed_ns) / 1000;
        if (status == SHOAL_OK && !is_content_right(run))
            status = error_set(error, SHOAL_CORRUPTED, 0, "bytes that arrived are not those that were read");
        shoal_segment_close(run->segment);
    }
    rpc_destroy(run->rpc);
    return status;
}

enum shoal_status peer_probe_run(const struct peer_probe_config *config, struct peer_probe_result *result_out,
                                 struct shoal_error *error)
{
    struct probe_run *run = calloc(1, sizeof *run);
    size_t len = SLOTS * CHUNK_BYTES;
    enum shoal_status status;
    *result_out = (struct peer_probe_result){.call_us = 0};
    if (!run)
        return error_no_memory(error);
    run->config = config;
    run->result = result_out;
    for (size_t i = 0; i < SLOTS; i++)
        run->slots[i].run = run;
    /* Filled before: its pages shall be there. */
    run->memory = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
    if (run->memory == MAP_FAILED) {
        free(run);
        return error_set(error, SHOAL_NO_MEMORY, errno, "memory for the transfer: %s", strerror(errno));
    }
    status = shoal_engine_register_memory(config->engine, run->memory, len, NULL, SHOAL_ACCESS_LOCAL, NULL, error);
    if (status == SHOAL_OK) {
        status = measure(run, error);
        (void)shoal_engine_unregister_memory(config->engine, run->memory, len, NULL);
    }
    munmap(run->memory, len);
    free(run);
    return status;
}
