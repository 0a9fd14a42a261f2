/* SPDX-License-Identifier: Apache-2.0 */
/* Adaptive polling: whether a thread that waits for a peer's answer should look again and again for some microseconds
 * before it sleeps. Sleeping and being woken costs more than the whole answer of a small call, so who is answered fast
 * looks; who is not sleeps at once. A thread that looks gives the CPU away between two looks (sched_yield), and a
 * process never has more such threads than CPUs but one.
 *
 * The idea is that of adaptive mutexes and of the kernel's busy polling of sockets. */
#ifndef SHOAL_BASE_SPIN_H
#define SHOAL_BASE_SPIN_H

#include <stdbool.h>
#include <stdint.h>

#define SPIN_DEFAULT_US 200
#define SPIN_MAX_US 1000

/* One for what is waited for (a connection, a loop); used by one thread at a time. All zero is a fresh one. */
struct spin {
    int64_t until_ns, looked_ns; /* of the looking that goes on: its end, its last look */
    unsigned credit;             /* short waits in a row */
    unsigned price;              /* how many of them the next looking needs; 0: the least */
};

/* How long a thread looks, from SHOAL_SPIN_US (0: never; unset or malformed: SPIN_DEFAULT_US), on machines with more
 * than one CPU. Any thread. */
unsigned spin_limit_us(void);

/* Before a wait: true: look with spin_again between looks, then spin_end. */
bool spin_begin(struct spin *spin);
/* Gives the CPU away once. false: it took too long, sleep. */
bool spin_again(struct spin *spin);
/* has_come: what was waited for. */
void spin_end(struct spin *spin, bool has_come);
/* After a wait that slept: for how long. Short ones make the next wait look. */
void spin_slept(struct spin *spin, int64_t slept_ns);

#endif
