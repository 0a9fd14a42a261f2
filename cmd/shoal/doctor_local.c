/* SPDX-License-Identifier: Apache-2.0 */
/* The path between two processes of this host: may one read the other's memory, is there shared memory to pass? Tried
 * with two processes that are no relatives of each other, as two nodes are none. */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "doctor.h"

#define AREA_BYTES ((size_t)64 << 10)
#define ANSWER_TIMEOUT_MS 5000
#define MARK_HOLDER 0x5a
#define WRONG_BYTES (-1) /* beside errno numbers */
#define NO_ANSWER (-2)

/* --- two processes: only calls that are safe after a fork in a process with threads --- */

/* Ends with its parent, also with one that has ended already. */
static void end_with(pid_t parent)
{
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent)
        _exit(1);
}

__attribute__((noreturn)) static void hold(pid_t parent, unsigned char *area, int ready_fd)
{
    end_with(parent);
    memset(area, MARK_HOLDER, AREA_BYTES);
    if (write(ready_fd, "", 1) != 1)
        _exit(1);
    for (;;)
        pause();
}

__attribute__((noreturn)) static void read_other(pid_t parent, pid_t holder, unsigned char *area, int answer_fd)
{
    const struct iovec from = {area, AREA_BYTES};
    static unsigned char copy[AREA_BYTES];
    const struct iovec to = {copy, sizeof copy};
    int answer = 0;
    end_with(parent);
    ssize_t count = process_vm_readv(holder, &to, 1, &from, 1, 0);
    if (count < 0)
        answer = errno;
    else if (count != (ssize_t)sizeof copy || copy[0] != MARK_HOLDER || memcmp(copy, copy + 1, sizeof copy - 1) != 0)
        answer = WRONG_BYTES;
    _exit(write(answer_fd, &answer, sizeof answer) == (ssize_t)sizeof answer ? 0 : 1);
}

static bool receive(int fd, void *to, size_t len)
{
    struct pollfd ready = {.fd = fd, .events = POLLIN};
    int count;
    do
        count = poll(&ready, 1, ANSWER_TIMEOUT_MS);
    while (count < 0 && errno == EINTR);
    return count > 0 && read(fd, to, len) == (ssize_t)len;
}

static void end(pid_t pid)
{
    if (pid <= 0)
        return;
    kill(pid, SIGKILL);
    while (waitpid(pid, NULL, 0) < 0 && errno == EINTR)
        ;
}

/* 0: it works; else an errno, WRONG_BYTES or NO_ANSWER. */
static int try_reading(void)
{
    int ready[2] = {-1, -1}, answer[2] = {-1, -1}, result = NO_ANSWER;
    pid_t parent = getpid(), holder = -1, reader = -1;
    char byte;
    unsigned char *area = mmap(NULL, AREA_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (area == MAP_FAILED)
        return errno;
    if (pipe2(ready, O_CLOEXEC) != 0 || pipe2(answer, O_CLOEXEC) != 0) {
        result = errno;
        goto out;
    }
    holder = fork();
    if (holder == 0)
        hold(parent, area, ready[1]);
    if (holder < 0)
        result = errno;
    if (holder < 0 || !receive(ready[0], &byte, 1))
        goto out;
    reader = fork();
    if (reader == 0)
        read_other(parent, holder, area, answer[1]);
    if (reader < 0)
        result = errno;
    else
        (void)receive(answer[0], &result, sizeof result);
out:
    end(reader);
    end(holder);
    for (int i = 0; i < 2; i++) {
        if (ready[i] >= 0)
            close(ready[i]);
        if (answer[i] >= 0)
            close(answer[i]);
    }
    munmap(area, AREA_BYTES);
    return result;
}

/* --- what it is tried for --- */

/* 0, or the errno of what fails. */
static int try_shared_memory(void)
{
    int number = 0, fd = memfd_create("shoal-doctor", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    void *memory = MAP_FAILED;
    if (fd < 0)
        return errno;
    if (ftruncate(fd, (off_t)AREA_BYTES) != 0 || fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW) != 0)
        number = errno;
    else if ((memory = mmap(NULL, AREA_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0)) == MAP_FAILED)
        number = errno;
    if (memory != MAP_FAILED)
        munmap(memory, AREA_BYTES);
    close(fd);
    return number;
}

/* Processes find each other by sockets whose names are those of the network namespace. 0, or an errno. */
static int try_socket(void)
{
    struct sockaddr_un addr = {.sun_family = AF_UNIX};
    int number = 0, server = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0),
        client = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    int name_len = snprintf(addr.sun_path + 1, sizeof addr.sun_path - 1, "shoal-doctor-%d", (int)getpid());
    socklen_t len = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)name_len);
    if (server < 0 || client < 0 || bind(server, (const struct sockaddr *)&addr, len) != 0 || listen(server, 1) != 0 ||
        connect(client, (const struct sockaddr *)&addr, len) != 0)
        number = errno;
    if (server >= 0)
        close(server);
    if (client >= 0)
        close(client);
    return number;
}

/* What a container or the kernel's settings say about a refusal. */
static const char *explain(char *text, size_t size)
{
    long long scope = doctor_read_number("/proc/sys/kernel/yama/ptrace_scope", 0);
    char line[128];
    bool has_filter = false;
    FILE *status = fopen("/proc/self/status", "re");
    while (status && fgets(line, sizeof line, status))
        has_filter |= strncmp(line, "Seccomp:\t2", 10) == 0;
    if (status)
        fclose(status);
    size_t used = 0;
    text[0] = '\0';
    if (scope > 0)
        used += (size_t)snprintf(text, size, "; kernel.yama.ptrace_scope is %lld", scope);
    if (has_filter && used < size)
        used += (size_t)snprintf(text + used, size - used, "; a seccomp filter is active");
    if ((access("/.dockerenv", F_OK) == 0 || access("/run/.containerenv", F_OK) == 0) && used < size)
        snprintf(text + used, size - used, "; this is a container");
    return text;
}

void doctor_check_local(struct doctor *doctor)
{
    char why[160];
    int memfd = try_shared_memory(), found = try_socket(), result;
    if (found) {
        doctor_tell(
            doctor, DOCTOR_WARN, "same host", "allow Unix sockets (seccomp or AppArmor profile of the container)",
            "processes of this host cannot find each other by a Unix socket: %s; they use TCP", strerror(found));
        return;
    }
    fflush(stdout); /* what a fork would double */
    result = try_reading();
    if (result == 0)
        doctor_tell(doctor, DOCTOR_OK, "same host", NULL,
                    "one process reads another's memory directly (process_vm_readv)");
    else
        doctor_tell(doctor, DOCTOR_WARN, "same host",
                    "sysctl -w kernel.yama.ptrace_scope=0; in a container --cap-add SYS_PTRACE; same user, one PID "
                    "namespace (--pid host or a shared one)",
                    "one process cannot read another's memory: %s%s; %s",
                    result == NO_ANSWER     ? "no answer"
                    : result == WRONG_BYTES ? "the bytes are wrong"
                                            : strerror(result),
                    explain(why, sizeof why),
                    memfd ? "TCP is used" : "memory that Shoal allocates is shared, for other memory TCP is used");
    if (memfd)
        doctor_tell(doctor, DOCTOR_WARN, "shared memory", "allow memfd_create (seccomp profile of the container)",
                    "memory cannot be shared by memfd: %s", strerror(memfd));
    else
        doctor_tell(doctor, DOCTOR_OK, "shared memory", NULL, "memory can be shared by memfd");
}
