/* SPDX-License-Identifier: Apache-2.0 */
/* Many threads that wait at one word, and are woken all at once with one system call: futex(2) with bit sets. */
#ifndef SHOAL_BASE_FUTEX_H
#define SHOAL_BASE_FUTEX_H

#include <stdint.h>

/* Sleeps while *word is value, until someone wakes one of bits (not 0) or deadline_ms (clock.h) is past. May return for
 * no reason, too: look again. Word and what it stands for are read and written atomically. */
void futex_wait(uint32_t *word, uint32_t value, uint32_t bits, int64_t deadline_ms);

/* Wakes all that wait for one of bits. Change *word first. */
void futex_wake(uint32_t *word, uint32_t bits);

#endif
