/* SPDX-License-Identifier: Apache-2.0 */
/* Slows down what this process gives to others, so that a test can act in the middle of a pull without sleeping.
 * Linking it replaces accept, accept4, connect and process_vm_readv. Linux paces TCP sockets itself
 * (SO_MAX_PACING_RATE). Other processes that read this one's memory slow themselves down, if they are test nodes of the
 * same program: they find the rate in a file that all of them inherit. */
#ifndef SHOAL_TESTS_LIB_PACE_H
#define SHOAL_TESTS_LIB_PACE_H

#include <stdint.h>

#define PACE_ENTRIES 256u
#define PACE_FD_VARIABLE "SHOAL_TEST_PACE_FD" /* number of the inherited descriptor */

/* The file: who gives at which rate. */
struct pace_entry {
    int64_t pid;       /* atomic; 0: free */
    uint64_t rate_bps; /* atomic */
};

/* Bytes per second of each accepted connection, those that exist and those to come, and of each process that reads
 * memory. 0: unlimited. */
void pace_set(uint64_t rate_bps);

#endif
