/* SPDX-License-Identifier: Apache-2.0 */
#include "master_process.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"

#define START_MS 60000
#define WORDS_MAX 32

static void fail(const char *what, const char *text)
{
    fprintf(stderr, "mooncake_master: %s: %s\n", what, text);
    abort();
}

static void run_child(int err_fd, uint16_t port, const char *const *more)
{
    const char *words[WORDS_MAX] = {
        getenv("MOONCAKE_MASTER_EXE"), "--rpc_address", "127.0.0.1", "--metrics_port", "none", "--rpc_port"};
    char port_text[16];
    size_t count = 6;

    prctl(PR_SET_PDEATHSIG, SIGKILL);
    snprintf(port_text, sizeof port_text, "%u", port);
    words[count++] = port_text;
    for (; more && *more && count < WORDS_MAX - 1; more++)
        words[count++] = *more;
    if (!words[0] || dup2(err_fd, STDERR_FILENO) < 0)
        _exit(126);
    execv(words[0], (char *const *)(uintptr_t)words);
    _exit(127);
}

void master_process_start(struct master_process *process, uint16_t port, const char *const *more)
{
    char text[4096] = "";
    const char *found;
    size_t len = 0;
    int64_t deadline_ms = deadline_after_ms(START_MS);
    int fds[2];

    if (pipe2(fds, O_CLOEXEC) != 0)
        fail("pipe", strerror(errno));
    process->pid = fork();
    if (process->pid < 0)
        fail("fork", strerror(errno));
    if (process->pid == 0)
        run_child(fds[1], port, more);
    close(fds[1]);
    process->err_fd = fds[0];
    while (!(found = strstr(text, "listening at 127.0.0.1:")) || !strchr(found, '\n')) {
        struct pollfd ready = {.fd = fds[0], .events = POLLIN};
        ssize_t got;
        if (poll(&ready, 1, deadline_poll_ms(deadline_ms)) <= 0 && deadline_is_past(deadline_ms))
            fail("does not listen", text);
        got = read(fds[0], text + len, sizeof text - 1 - len);
        if (got <= 0)
            fail("does not start (is MOONCAKE_MASTER_EXE set?)", text);
        len += (size_t)got;
        text[len] = '\0';
    }
    process->port = (uint16_t)strtoul(found + strlen("listening at 127.0.0.1:"), NULL, 10);
    snprintf(process->address, sizeof process->address, "127.0.0.1:%u", process->port);
}

void master_process_signal(const struct master_process *process, int number)
{
    int status;

    if (kill(process->pid, number) != 0)
        fail("kill", strerror(errno));
    if (number == SIGSTOP && (waitpid(process->pid, &status, WUNTRACED) != process->pid || !WIFSTOPPED(status)))
        fail("kill", "it did not stop");
}

int master_process_end(struct master_process *process, int number)
{
    int status = 0;

    if (process->pid <= 0)
        return 0;
    kill(process->pid, number);
    while (waitpid(process->pid, &status, 0) < 0 && errno == EINTR)
        ;
    close(process->err_fd);
    process->pid = 0;
    return status;
}
