/* SPDX-License-Identifier: Apache-2.0 */
#include "base/thread.h"

#include <signal.h>

int thread_start(pthread_t *thread_out, const char *name, void *(*fn)(void *arg), void *arg)
{
    /* Raised by an access of the thread itself: blocked, they would end the process past the application's handler. */
    static const int synchronous[] = {SIGBUS, SIGSEGV, SIGFPE, SIGILL, SIGTRAP};
    sigset_t all, saved;
    int result;

    sigfillset(&all);
    for (size_t i = 0; i < sizeof synchronous / sizeof *synchronous; i++)
        sigdelset(&all, synchronous[i]);
    pthread_sigmask(SIG_SETMASK, &all, &saved);
    result = pthread_create(thread_out, NULL, fn, arg);
    pthread_sigmask(SIG_SETMASK, &saved, NULL);
    if (!result)
        pthread_setname_np(*thread_out, name);
    return result;
}
