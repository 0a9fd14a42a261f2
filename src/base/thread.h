/* SPDX-License-Identifier: Apache-2.0 */
#ifndef SHOAL_BASE_THREAD_H
#define SHOAL_BASE_THREAD_H

#include <pthread.h>

/* Starts a joinable thread with all signals blocked (they belong to the application's threads) and a name of at most 15
 * bytes. Returns 0 or an errno. */
int thread_start(pthread_t *thread_out, const char *name, void *(*fn)(void *arg), void *arg);

#endif
