/* SPDX-License-Identifier: Apache-2.0 */
/* What the benchmarks share. A benchmark that cannot run says why on stderr and exits; its last line on stdout is one
 * JSON object. */
#ifndef SHOAL_BENCH_H
#define SHOAL_BENCH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include <shoal/status.h>

#include "base/digest.h"

/* Prints "bench: TEXT" and exits with 1. */
_Noreturn void bench_die(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* Dies unless status is OK. */
void bench_check(enum shoal_status status, const struct shoal_error *error, const char *what);

/* --- options --- */

enum bench_option_kind { BENCH_SIZE, BENCH_COUNT, BENCH_TEXT, BENCH_FLAG };
struct bench_option {
    const char *name; /* without "--"; NULL ends the table */
    enum bench_option_kind kind;
    void *value;       /* uint64_t, unsigned, const char *, bool; holds the default */
    uint64_t min, max; /* of sizes and counts */
    const char *help;
};
/* Parses all arguments; --help prints the table and exits with 0, anything wrong exits with 2. */
void bench_options(int argc, char **argv, const char *name, const char *purpose, const struct bench_option *options);

/* --- measuring --- */

double bench_now_s(void);
/* User and system time of this process so far. */
double bench_cpu_s(void);
double bench_median(const double *values, size_t count); /* count >= 1 */
/* VmHWM of this process in bytes; reset makes it the current size. */
uint64_t bench_peak_rss(void);
bool bench_reset_peak_rss(void);
/* Dies if the machine has less memory available than needed. */
void bench_require_memory(uint64_t bytes);
unsigned bench_cpu_count(void);

/* --- memory --- */

/* Anonymous pages, all of them touched. */
void *bench_alloc(uint64_t bytes);
void bench_free(void *memory, uint64_t bytes);
/* Distinct, reproducible contents. */
void bench_fill(void *memory, uint64_t bytes, uint64_t seed);

/* Of a digest per block, which is faster than one stream. */
struct digest bench_digest(const void *memory, uint64_t bytes);

/* --- places --- */

/* A new temporary folder, removed at exit of this process. Static storage. */
const char *bench_temp_dir(void);

/* --- child processes, and pipes to them --- */

struct bench_side {
    int pid;
    int control; /* a stream to and from the process */
};
/* Starts a process that runs with the other end of control; it is killed when this one ends. It closes the controls of
 * others, the sides that were started before it. */
struct bench_side bench_side_start(void (*run)(int control), const struct bench_side *others, size_t other_count);

void bench_send(int fd, const void *data, size_t len);
/* Dies when the other side is gone. */
void bench_receive(int fd, void *data, size_t len);

/* --- raw sockets --- */

/* TCP; congestion_control may be NULL: the system's. */
int bench_tcp_socket(const char *congestion_control);
void bench_raw_send(int fd, const void *memory, uint64_t bytes);
void bench_raw_receive(int fd, void *memory, uint64_t bytes);

#endif
