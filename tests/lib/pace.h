/* SPDX-License-Identifier: Apache-2.0 */
/* Slows down what this process sends over connections that it accepted, so that a test can act in the middle of a pull
 * without sleeping. Linking it replaces accept and accept4. Linux paces TCP sockets itself (SO_MAX_PACING_RATE). */
#ifndef SHOAL_TESTS_LIB_PACE_H
#define SHOAL_TESTS_LIB_PACE_H

#include <stdint.h>

/* Bytes per second of each accepted connection, those that exist and those to come. 0: unlimited. */
void pace_set(uint64_t rate_bps);

#endif
