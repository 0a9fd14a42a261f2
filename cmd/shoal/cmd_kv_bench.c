/* SPDX-License-Identifier: Apache-2.0 */
/* shoal kv bench: how fast puts and gets of the running store are. Its keys have a prefix of their own and are removed
 * at the end. */
#include <inttypes.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "app.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/random.h"
#include "units.h"

#define THREADS_MAX 64
#define SAMPLES_MAX ((size_t)1 << 20) /* per thread; later ones are not noted */
#define CLEAN_TIMEOUT_MS 30000

struct bench {
    struct app *app;
    char prefix[64];
    atomic_bool is_over; /* a failure: all stop */
    pthread_mutex_t mutex;
    struct shoal_error error; /* the first failure; guarded by mutex */
};

struct worker {
    pthread_t thread;
    struct bench *bench;
    void *buffer; /* owned; of the store's arena */
    uint64_t first, count, keys;
    uint64_t random;
    bool is_get;
    uint32_t *samples_us10; /* owned; tenths of microseconds */
    size_t sample_count;
    uint64_t ops;
};

static uint64_t now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static void note(struct worker *worker, uint64_t ns)
{
    uint64_t us10 = ns / 100;
    worker->ops++;
    if (worker->sample_count < SAMPLES_MAX)
        worker->samples_us10[worker->sample_count++] = us10 > UINT32_MAX ? UINT32_MAX : (uint32_t)us10;
}

/* false: it failed, all are told to stop. */
static bool operate(struct worker *worker, uint64_t number)
{
    struct bench *bench = worker->bench;
    uint64_t len = bench->app->settings.value_bytes;
    struct shoal_call call = app_call(bench->app);
    struct shoal_error error;
    char key[96];
    enum shoal_status status;
    /* A request that may be canceled does not share a flight with others'. Those with a deadline need no token: between
     * two of them the workers look for a signal. */
    if (call.timeout_ms >= 0)
        call.cancel = NULL;
    snprintf(key, sizeof key, "%s%" PRIu64, bench->prefix, number);
    if (worker->is_get)
        status = shoal_kv_get_into(bench->app->kv, key, worker->buffer, len, &call, &len, &error);
    else
        status = shoal_kv_put(bench->app->kv, key, worker->buffer, len, NULL, &call, &error);
    if (status == SHOAL_OK)
        return true;
    pthread_mutex_lock(&bench->mutex);
    if (!atomic_exchange(&bench->is_over, true))
        bench->error = error;
    pthread_mutex_unlock(&bench->mutex);
    return false;
}

static void *put_share(void *arg)
{
    struct worker *worker = arg;
    for (uint64_t i = 0; i < worker->count && !atomic_load(&worker->bench->is_over) && !signals_received(); i++) {
        uint64_t from_ns = now_ns();
        if (!operate(worker, worker->first + i))
            break;
        note(worker, now_ns() - from_ns);
    }
    return NULL;
}

static void *get_for_a_time(void *arg)
{
    struct worker *worker = arg;
    int64_t duration_ms = worker->bench->app->settings.duration_ms;
    uint64_t begin_ns = now_ns(), now = begin_ns;
    while (!atomic_load(&worker->bench->is_over) && !signals_received() &&
           (now - begin_ns) / 1000000u < (uint64_t)duration_ms) {
        worker->random = worker->random * 6364136223846793005u + 1442695040888963407u;
        if (!operate(worker, (worker->random >> 33) % worker->keys))
            break;
        uint64_t after_ns = now_ns();
        note(worker, after_ns - now);
        now = after_ns;
    }
    return NULL;
}

static int compare(const void *a, const void *b)
{
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return (x > y) - (x < y);
}

/* samples are sorted; 0 if there are none. */
static double percentile_us(const uint32_t *samples, size_t count, unsigned percent)
{
    size_t index = count * percent / 100;
    return count ? samples[index < count ? index : count - 1] / 10.0 : 0;
}

static void print_result(const struct app *app, const char *op, double seconds, uint64_t ops, const uint32_t *samples,
                         size_t count)
{
    double rate = seconds > 0 ? (double)ops / seconds : 0, bytes_per_s = rate * (double)app->settings.value_bytes;
    double p50_us = percentile_us(samples, count, 50), p99_us = percentile_us(samples, count, 99);
    char size[UNITS_TEXT_BYTES], throughput[UNITS_TEXT_BYTES];
    if (app->settings.is_json)
        json_print(json_pack("{s:s, s:s, s:I, s:I, s:I, s:f, s:f, s:f, s:f, s:f}", "event", "result", "op", op,
                             "value_bytes", (json_int_t)app->settings.value_bytes, "threads",
                             (json_int_t)app->settings.threads, "ops", (json_int_t)ops, "seconds", seconds, "ops_per_s",
                             rate, "bytes_per_s", bytes_per_s, "p50_us", p50_us, "p99_us", p99_us));
    else
        printf("%s  %8s x%-3" PRIu64 " %10.0f ops/s  %12s  p50 %10.1f us  p99 %10.1f us\n", op,
               units_format_size(app->settings.value_bytes, size), app->settings.threads, rate,
               units_format_rate(bytes_per_s, throughput), p50_us, p99_us);
}

/* All workers at once, then their result in one line. */
static enum shoal_status run_workers(struct bench *bench, struct worker *workers, unsigned count, bool is_get,
                                     struct shoal_error *error)
{
    uint64_t begin_ns = now_ns(), ops = 0;
    size_t total = 0, at = 0;
    unsigned started = 0;
    int failure = 0;
    for (; started < count && !failure; started++) {
        workers[started].is_get = is_get;
        workers[started].sample_count = 0;
        workers[started].ops = 0;
        failure =
            pthread_create(&workers[started].thread, NULL, is_get ? get_for_a_time : put_share, &workers[started]);
    }
    if (failure) {
        started--;
        atomic_store(&bench->is_over, true);
    }
    for (unsigned i = 0; i < started; i++)
        pthread_join(workers[i].thread, NULL);
    double seconds = (double)(now_ns() - begin_ns) / 1e9;
    if (failure)
        return error_set(error, SHOAL_NO_MEMORY, failure, "cannot start %u threads: %s", count, strerror(failure));
    if (atomic_load(&bench->is_over))
        return error_copy(error, &bench->error);
    if (signals_received())
        return error_set(error, SHOAL_CANCELED, 0, "interrupted");
    for (unsigned i = 0; i < count; i++) {
        total += workers[i].sample_count;
        ops += workers[i].ops;
    }
    uint32_t *all = malloc((total ? total : 1) * sizeof *all);
    if (!all)
        return error_no_memory(error);
    for (unsigned i = 0; i < count; i++) {
        memcpy(all + at, workers[i].samples_us10, workers[i].sample_count * sizeof *all);
        at += workers[i].sample_count;
    }
    qsort(all, total, sizeof *all, compare);
    print_result(bench->app, is_get ? "get" : "put", seconds, ops, all, total);
    free(all);
    return SHOAL_OK;
}

static enum shoal_status prepare(struct bench *bench, struct worker *workers, unsigned count, struct shoal_error *error)
{
    const struct settings *settings = &bench->app->settings;
    uint64_t first = 0;
    for (unsigned i = 0; i < count; i++) {
        struct worker *worker = &workers[i];
        worker->bench = bench;
        worker->random = random_id();
        worker->keys = settings->keys;
        worker->first = first;
        worker->count = settings->keys / count + (i < settings->keys % count);
        first += worker->count;
        worker->samples_us10 = malloc(SAMPLES_MAX * sizeof(uint32_t));
        if (!worker->samples_us10)
            return error_no_memory(error);
        struct shoal_error why;
        enum shoal_status status = shoal_kv_alloc(bench->app->kv, settings->value_bytes, &worker->buffer, &why);
        if (status == SHOAL_NO_MEMORY)
            return error_set(error, status, 0, "--threads %u times --size %" PRIu64 " bytes is too much: %s", count,
                             settings->value_bytes, why.message);
        if (status != SHOAL_OK)
            return error_copy(error, &why);
        memset(worker->buffer, 'a' + (int)(i % 26), (size_t)settings->value_bytes);
    }
    return SHOAL_OK;
}

static int run_bench(struct app *app, int count, char **arguments)
{
    struct bench bench = {.app = app, .mutex = PTHREAD_MUTEX_INITIALIZER};
    unsigned threads = (unsigned)app->settings.threads;
    struct worker *workers = calloc(threads, sizeof *workers);
    struct shoal_error error, clean_error;
    char pattern[80];
    int code = EXIT_CODE_OK;
    (void)count;
    (void)arguments;
    snprintf(bench.prefix, sizeof bench.prefix, "shoal-bench/%016" PRIx64 "/", random_id());
    snprintf(pattern, sizeof pattern, "%s*", bench.prefix);
    if (!workers) {
        error_no_memory(&error);
        return report_failure(app, &error, "%u threads", threads);
    }
    if (app_open_kv(app, &error) != SHOAL_OK) {
        free(workers);
        return report_failure(app, &error, "cannot connect to %s", app_kv_peer(app));
    }
    enum shoal_status status = prepare(&bench, workers, threads, &error);
    if (status == SHOAL_OK)
        status = run_workers(&bench, workers, threads, false, &error);
    if (status == SHOAL_OK)
        status = run_workers(&bench, workers, threads, true, &error);
    if (status == SHOAL_NOT_FOUND) /* what was put is gone */
        status =
            error_set(&error, SHOAL_NO_SPACE, 0,
                      "--keys %" PRIu64 " times --size %" PRIu64 " bytes is more than the tiers hold: values that were "
                      "put had to go",
                      app->settings.keys, app->settings.value_bytes);
    if (status != SHOAL_OK)
        code = report_failure(app, &error, "the benchmark failed");
    /* Also after a signal: without its token. */
    struct shoal_call call = {.struct_size = sizeof call, .timeout_ms = CLEAN_TIMEOUT_MS};
    if (shoal_kv_remove_matching(app->kv, pattern, &call, NULL, &clean_error) != SHOAL_OK)
        report_warning(app, "keys are left, remove them with: shoal kv rm --pattern '%s' (%s)", pattern,
                       clean_error.message);
    for (unsigned i = 0; i < threads; i++) {
        shoal_kv_free(app->kv, workers[i].buffer);
        free(workers[i].samples_us10);
    }
    free(workers);
    return code;
}

static const struct option_spec bench_options[] = {
    {OPTION_SIZE, 's', "size", "SIZE", NULL, offsetof(struct settings, value_bytes),
     .help = "Of each value, as 4096, 64K or 1M; times --threads at most 64M. Default: 64K."},
    {OPTION_UINT, 'T', "threads", "N", NULL, offsetof(struct settings, threads), .min = 1, .max = THREADS_MAX,
     .help = "Requests at a time. Default: 1."},
    {OPTION_UINT, 'k', "keys", "N", NULL, offsetof(struct settings, keys), .min = 1, .max = 10000000,
     .help = "How many values are put, and got at random. Default: 1000."},
    {OPTION_DURATION, 'd', "duration", "DURATION", NULL, offsetof(struct settings, duration_ms),
     .help = "How long gets are made. Default: 3s."},
    {OPTION_END},
};

const struct command command_kv_bench = {
    .name = "kv bench",
    .arguments = "",
    .summary = "measure puts and gets of the KV store",
    .text =
        "Puts values under keys that begin with shoal-bench/, gets them at random for a while, removes them, and says "
        "how many operations a second there were and how long one took (p50, p99).",
    .options = bench_options,
    .has_kv_options = true,
    .min_arguments = 0,
    .max_arguments = 0,
    .run = run_bench,
};
