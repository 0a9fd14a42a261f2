/* SPDX-License-Identifier: Apache-2.0 */
/* A real mooncake_master (environment MOONCAKE_MASTER_EXE) that tests signal. */
#ifndef SHOAL_TESTS_MASTER_PROCESS_H
#define SHOAL_TESTS_MASTER_PROCESS_H

#include <stdint.h>
#include <sys/types.h>

struct master_process {
    pid_t pid;
    int err_fd; /* the read end of its standard error; what comes after the first line is not read */
    uint16_t port;
    char address[64]; /* "127.0.0.1:port" */
};

/* port 0: any free one. more: further words of the command line, ends with NULL (may be NULL). Returns when it listens;
 * aborts the test if it does not. */
void master_process_start(struct master_process *process, uint16_t port, const char *const *more);
/* SIGSTOP: returns when it has stopped. */
void master_process_signal(const struct master_process *process, int number);
/* Ends it with the signal and waits. Returns the wait status. Not running: 0. */
int master_process_end(struct master_process *process, int number);

#endif
