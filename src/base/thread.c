/* SPDX-License-Identifier: Apache-2.0 */
#include "base/thread.h"

#include <signal.h>

int thread_start(pthread_t *thread_out, const char *name, void *(*fn)(void *arg), void *arg)
{
    sigset_t all, saved;
    int result;

    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &saved);
    result = pthread_create(thread_out, NULL, fn, arg);
    pthread_sigmask(SIG_SETMASK, &saved, NULL);
    if (!result)
        pthread_setname_np(*thread_out, name);
    return result;
}
