/* SPDX-License-Identifier: Apache-2.0 */
#include "netns.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

static void run_shell(const char *script)
{
    char *const argv[] = {(char *)(uintptr_t) "sh", (char *)(uintptr_t) "-ec", (char *)(uintptr_t)script, NULL};
    execvp("sh", argv);
    _exit(127);
}

int netns_run(int netns_fd, const char *script)
{
    int status = 0;
    pid_t child = fork();
    if (child == 0) {
        if (setns(netns_fd, CLONE_NEWNET) != 0)
            _exit(126);
        run_shell(script);
    }
    if (child < 0 || waitpid(child, &status, 0) != child)
        return -1;
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

/* A child makes the namespace and lives until it has been opened. */
int netns_create(const char *script)
{
    int ready[2], fd = -1, status;
    char answer = 0, path[64];

    if (pipe2(ready, O_CLOEXEC) != 0)
        return -1;
    pid_t child = fork();
    if (child == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (unshare(CLONE_NEWNET) != 0) {
            fprintf(stderr, "no network namespace here: %s\n", strerror(errno));
            _exit(1);
        }
        if (write(ready[1], "y", 1) != 1)
            _exit(1);
        for (;;)
            pause();
    }
    close(ready[1]);
    if (child > 0 && read(ready[0], &answer, 1) == 1 && answer == 'y') {
        snprintf(path, sizeof path, "/proc/%d/ns/net", (int)child);
        fd = open(path, O_RDONLY | O_CLOEXEC);
    }
    close(ready[0]);
    if (child > 0) {
        kill(child, SIGKILL);
        waitpid(child, &status, 0);
    }
    if (fd >= 0 && (netns_run(fd, "ip link set lo up") != 0 || netns_run(fd, script) != 0)) {
        fprintf(stderr, "the network namespace cannot be set up (is iproute2 installed?)\n");
        close(fd);
        fd = -1;
    }
    return fd;
}

bool netns_enter_new(const char *script)
{
    int fd = netns_create(script);
    bool is_in = fd >= 0 && setns(fd, CLONE_NEWNET) == 0;
    if (fd >= 0)
        close(fd);
    return is_in;
}
