/* SPDX-License-Identifier: Apache-2.0 */
#include "kv_load.h"

#include <pthread.h>
#include <string.h>

#include "lib/bench.h"

#define VALUES_MAX 20000u
#define SAMPLES_MAX (4u << 20) /* per thread; later ones are not noted */

struct worker {
    pthread_t thread;
    const struct kv_system *system;
    const struct kv_cell *cell;
    pthread_barrier_t *start;
    void *connection, *buffer;
    uint64_t first, count; /* puts: numbers of this round. gets: all there are */
    double seconds;        /* gets: how long */
    uint64_t random;
    uint32_t *samples_ns;
    size_t sample_count;
    uint64_t ops;
    double began_s, ended_s;
};

uint64_t kv_value_count(const struct kv_cell *cell, const struct kv_limits *limits)
{
    uint64_t count = limits->budget_bytes / cell->len_bytes, least = 2u * cell->threads;
    return count < least ? least : count > VALUES_MAX ? VALUES_MAX : count;
}

static uint64_t next_random(uint64_t *state)
{
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    return *state;
}

static void note(struct worker *worker, double from_s, double to_s)
{
    double ns = (to_s - from_s) * 1e9;
    worker->ops++;
    if (worker->sample_count < SAMPLES_MAX)
        worker->samples_ns[worker->sample_count++] = ns > (double)UINT32_MAX ? UINT32_MAX : (uint32_t)ns;
}

static size_t mark_len(uint64_t len_bytes)
{
    return len_bytes < sizeof(uint64_t) ? (size_t)len_bytes : sizeof(uint64_t);
}

static void put_one(struct worker *worker, uint64_t number)
{
    uint64_t len = worker->cell->len_bytes;
    memcpy(worker->buffer, &number, mark_len(len));
    worker->system->put(worker->connection, number, worker->buffer, len);
}

static void get_one(struct worker *worker, uint64_t number)
{
    uint64_t len = worker->cell->len_bytes;
    worker->system->get(worker->connection, number, worker->buffer, len);
    if (memcmp(worker->buffer, &number, mark_len(len)) != 0)
        bench_die("%s: value %llu has other bytes", worker->system->name, (unsigned long long)number);
}

static void *put_round(void *arg)
{
    struct worker *worker = arg;
    double now_s;
    pthread_barrier_wait(worker->start);
    now_s = worker->began_s = bench_now_s();
    for (uint64_t i = 0; i < worker->count; i++) {
        double from_s = now_s;
        put_one(worker, worker->first + i);
        now_s = bench_now_s();
        note(worker, from_s, now_s);
    }
    worker->ended_s = now_s;
    return NULL;
}

static void *get_for_a_time(void *arg)
{
    struct worker *worker = arg;
    double now_s;
    pthread_barrier_wait(worker->start);
    now_s = worker->began_s = bench_now_s();
    while (now_s - worker->began_s < worker->seconds) {
        double from_s = now_s;
        get_one(worker, worker->first + next_random(&worker->random) % worker->count);
        now_s = bench_now_s();
        note(worker, from_s, now_s);
    }
    worker->ended_s = now_s;
    return NULL;
}

/* All workers at once; returns the time from the first one's begin to the last one's end. */
static double run_workers(struct worker *workers, unsigned count, void *(*fn)(void *arg))
{
    pthread_barrier_t start;
    double began_s, ended_s;
    pthread_barrier_init(&start, NULL, count);
    for (unsigned i = 0; i < count; i++) {
        workers[i].start = &start;
        if (pthread_create(&workers[i].thread, NULL, fn, &workers[i]) != 0)
            bench_die("cannot start %u threads", count);
    }
    for (unsigned i = 0; i < count; i++)
        pthread_join(workers[i].thread, NULL);
    pthread_barrier_destroy(&start);
    began_s = workers[0].began_s;
    ended_s = workers[0].ended_s;
    for (unsigned i = 1; i < count; i++) {
        began_s = workers[i].began_s < began_s ? workers[i].began_s : began_s;
        ended_s = workers[i].ended_s > ended_s ? workers[i].ended_s : ended_s;
    }
    return ended_s - began_s;
}

static int compare_ns(const void *a, const void *b)
{
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return (x > y) - (x < y);
}

static void summarise(struct worker *workers, unsigned count, struct kv_result *result)
{
    size_t total = 0, at = 0;
    uint32_t *all;
    for (unsigned i = 0; i < count; i++) {
        total += workers[i].sample_count;
        result->ops += workers[i].ops;
    }
    all = malloc((total ? total : 1) * sizeof *all);
    if (!all || !total)
        bench_die("%s", all ? "nothing was measured" : "out of memory");
    for (unsigned i = 0; i < count; i++) {
        memcpy(all + at, workers[i].samples_ns, workers[i].sample_count * sizeof *all);
        at += workers[i].sample_count;
    }
    qsort(all, total, sizeof *all, compare_ns);
    size_t half = total / 2, most = total - 1 - total / 100;
    result->p50_us = all[half] / 1e3;
    result->p99_us = all[most] / 1e3;
    free(all);
}

static void forget(struct worker *workers, unsigned count)
{
    for (unsigned i = 0; i < count; i++)
        workers[i].sample_count = workers[i].ops = 0;
}

/* Numbers are never used twice: no system may know a value from before. */
static double put_all(struct worker *workers, const struct kv_cell *cell, uint64_t value_count, uint64_t *next_number)
{
    uint64_t each = value_count / cell->threads;
    for (unsigned i = 0; i < cell->threads; i++) {
        workers[i].first = *next_number;
        workers[i].count = each;
        *next_number += each;
    }
    return run_workers(workers, cell->threads, put_round);
}

static void measure_puts(struct worker *workers, const struct kv_cell *cell, const struct kv_limits *limits,
                         uint64_t value_count, uint64_t *next_number, struct kv_result *result)
{
    /* The first round is for pages, caches and connections. */
    (void)put_all(workers, cell, value_count, next_number);
    workers[0].system->clear();
    forget(workers, cell->threads);
    while (result->seconds < limits->seconds) {
        result->seconds += put_all(workers, cell, value_count, next_number);
        workers[0].system->clear();
    }
}

static void measure_gets(struct worker *workers, const struct kv_cell *cell, const struct kv_limits *limits,
                         uint64_t value_count, uint64_t *next_number, struct kv_result *result)
{
    uint64_t first = *next_number;
    (void)put_all(workers, cell, value_count, next_number);
    for (unsigned i = 0; i < cell->threads; i++) {
        workers[i].first = first;
        workers[i].count = *next_number - first;
        workers[i].seconds = limits->seconds / 4;
    }
    (void)run_workers(workers, cell->threads, get_for_a_time);
    forget(workers, cell->threads);
    for (unsigned i = 0; i < cell->threads; i++)
        workers[i].seconds = limits->seconds;
    result->seconds = run_workers(workers, cell->threads, get_for_a_time);
    workers[0].system->clear();
}

struct kv_result kv_measure(const struct kv_system *system, const struct kv_cell *cell, const struct kv_limits *limits)
{
    static uint64_t next_number = 1;
    struct worker *workers = calloc(cell->threads, sizeof *workers);
    struct kv_result result = {0};
    uint64_t value_count = kv_value_count(cell, limits);
    if (!workers)
        bench_die("out of memory");
    for (unsigned i = 0; i < cell->threads; i++) {
        workers[i] = (struct worker){.system = system,
                                     .cell = cell,
                                     .connection = system->open(),
                                     .buffer = system->alloc(cell->len_bytes),
                                     .random = 0x9e3779b97f4a7c15u * (i + 1),
                                     .samples_ns = malloc(SAMPLES_MAX * sizeof(uint32_t))};
        if (!workers[i].samples_ns)
            bench_die("out of memory");
        bench_fill(workers[i].buffer, cell->len_bytes, i);
    }
    if (cell->op == KV_PUT)
        measure_puts(workers, cell, limits, value_count, &next_number, &result);
    else
        measure_gets(workers, cell, limits, value_count, &next_number, &result);
    summarise(workers, cell->threads, &result);
    for (unsigned i = 0; i < cell->threads; i++) {
        system->close(workers[i].connection);
        system->free(workers[i].buffer, cell->len_bytes);
        free(workers[i].samples_ns);
    }
    free(workers);
    return result;
}
