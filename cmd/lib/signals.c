/* SPDX-License-Identifier: Apache-2.0 */
#include "signals.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/error.h"

/* Ends the waiting thread. */
#define SIGNAL_STOP SIGRTMIN

static struct {
    pthread_t thread;
    bool is_running;
    sigset_t set;
    struct shoal_cancel *cancel; /* borrowed */
    int wake_fd;                 /* readable for good once a signal has come */
    atomic_int received;
} signals = {.wake_fd = -1};

static void *wait_for_signals(void *arg)
{
    (void)arg;
    for (;;) {
        int number;
        if (sigwait(&signals.set, &number) != 0)
            continue;
        if (number == SIGNAL_STOP)
            return NULL;
        if (atomic_exchange(&signals.received, number) != 0)
            _exit(128 + number); /* asked twice: the leases and the next get clear up */
        uint64_t one = 1;
        ssize_t ignored = write(signals.wake_fd, &one, sizeof one);
        (void)ignored;
        shoal_cancel_trigger(signals.cancel);
    }
}

enum shoal_status signals_start(struct shoal_cancel *cancel, struct shoal_error *error)
{
    static const int numbers[] = {SIGINT, SIGTERM, SIGHUP};
    signals.cancel = cancel;
    sigemptyset(&signals.set);
    sigaddset(&signals.set, SIGNAL_STOP);
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
        struct sigaction action;
        /* What was ignored when we were started (nohup, a shell's background job) stays ignored. */
        if (sigaction(numbers[i], NULL, &action) == 0 && action.sa_handler != SIG_IGN)
            sigaddset(&signals.set, numbers[i]);
    }
    signal(SIGPIPE, SIG_IGN);
    signals.wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (signals.wake_fd < 0)
        return error_set(error, SHOAL_IO, errno, "eventfd: %s", strerror(errno));
    pthread_sigmask(SIG_BLOCK, &signals.set, NULL);
    int failure = pthread_create(&signals.thread, NULL, wait_for_signals, NULL);
    if (failure)
        return error_set(error, SHOAL_IO, failure, "cannot start a thread: %s", strerror(failure));
    signals.is_running = true;
    return SHOAL_OK;
}

void signals_stop(void)
{
    if (signals.is_running) {
        pthread_kill(signals.thread, SIGNAL_STOP);
        pthread_join(signals.thread, NULL);
        signals.is_running = false;
    }
    if (signals.wake_fd >= 0)
        close(signals.wake_fd);
    signals.wake_fd = -1;
}

int signals_received(void)
{
    return atomic_load(&signals.received);
}

bool signals_wait_ms(int timeout_ms)
{
    struct pollfd fd = {.fd = signals.wake_fd, .events = POLLIN};
    int64_t deadline_ms = deadline_after_ms(timeout_ms);
    while (poll(&fd, 1, deadline_poll_ms(deadline_ms)) < 0 && errno == EINTR)
        ;
    return signals_received() != 0;
}
