/* SPDX-License-Identifier: Apache-2.0 */
/* What bench_kv measures and with what: systems that keep values by number, and threads that get and put them. */
#ifndef SHOAL_BENCH_KV_LOAD_H
#define SHOAL_BENCH_KV_LOAD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define KV_THREADS_MAX 64u

/* A value of len bytes begins with its number (as many bytes of it as there is room for): who gets it looks. */
struct kv_system {
    const char *name;
    /* One connection per thread; buffer of the thread's own for values. Anything that fails ends the benchmark. */
    void *(*open)(void);
    void (*close)(void *connection);
    void *(*alloc)(uint64_t len_bytes);
    void (*free)(void *buffer, uint64_t len_bytes);
    void (*put)(void *connection, uint64_t number, const void *buffer, uint64_t len_bytes);
    void (*get)(void *connection, uint64_t number, void *buffer, uint64_t len_bytes);
    void (*clear)(void); /* everything that was put is gone */
};

enum kv_op { KV_GET, KV_PUT };

struct kv_cell {
    enum kv_op op;
    uint64_t len_bytes;
    unsigned threads;
};

struct kv_result {
    uint64_t ops;
    double seconds;
    double p50_us, p99_us;
};

struct kv_limits {
    double seconds;        /* of measured work per cell */
    uint64_t budget_bytes; /* of values that are there at a time */
};

/* How many values a cell has at a time: what the budget allows, at most 20,000, at least two for each thread. */
uint64_t kv_value_count(const struct kv_cell *cell, const struct kv_limits *limits);
/* Gets: puts the values first and clears afterwards. Puts: in rounds of new values, cleared between them; only the puts
 * are on the clock. */
struct kv_result kv_measure(const struct kv_system *system, const struct kv_cell *cell, const struct kv_limits *limits);

/* --- systems to compare with (kv_peers.c) --- */

/* Each thread of a process of its own answers one connection: a header of 24 bytes, then the value one way, or the
 * value and 8 bytes back. Values lie in one piece of memory by their number. */
const struct kv_system *kv_raw_start(uint64_t budget_bytes, const char *congestion_control);
/* redis-server with a configuration and a directory of its own; NULL: why not is on stderr. */
const struct kv_system *kv_redis_start(bool is_over_socket); /* its Unix socket, or loopback */
void kv_redis_stop(void);

/* A TCP port of loopback that is free now. */
uint16_t kv_free_port(void);
/* Starts a program with its output in a file of the benchmark's folder; it is killed when this process ends. Returns
 * its process id. */
int kv_spawn(const char *log_name, char *const *arguments);

#endif
