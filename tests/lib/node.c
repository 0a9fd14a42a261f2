/* SPDX-License-Identifier: Apache-2.0 */
#include "node.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/clock.h"
#include "pace.h"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define IS_SANITIZED true
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define IS_SANITIZED true
#endif
#endif
#ifndef IS_SANITIZED
#define IS_SANITIZED false
#endif

#define STDERR_TAIL_BYTES 6000

struct node {
    char label[64];
    pid_t pid;         /* 0 when reaped */
    int to, from, err; /* owned; err is a memory file */
    unsigned last_id;
    json_t *answers, *reports; /* objects by command number; owned */
    char *partial;             /* owned: a line that is not complete yet */
    size_t partial_len, partial_size;
    bool is_at_end;
    struct node *next;
};

static struct node *nodes;

bool node_is_sanitized(void)
{
    return IS_SANITIZED;
}

int64_t node_patience_ms(void)
{
    return IS_SANITIZED ? 240000 : 120000;
}

static void show_stderr(const struct node *node)
{
    char tail[STDERR_TAIL_BYTES + 1];
    off_t size = lseek(node->err, 0, SEEK_END);
    off_t from = size > STDERR_TAIL_BYTES ? size - STDERR_TAIL_BYTES : 0;
    ssize_t n = pread(node->err, tail, STDERR_TAIL_BYTES, from);
    tail[n > 0 ? n : 0] = '\0';
    fprintf(stderr, "--- %s wrote:\n%s---\n", node->label, tail);
}

static void show_all_stderr(void)
{
    for (const struct node *node = nodes; node; node = node->next)
        show_stderr(node);
}

void node_save_logs(const char *directory)
{
    for (const struct node *node = nodes; node; node = node->next) {
        char path[4096], chunk[65536];
        ssize_t n;
        snprintf(path, sizeof path, "%s/%s.log", directory, node->label);
        FILE *file = fopen(path, "w");
        for (off_t at = 0; file && (n = pread(node->err, chunk, sizeof chunk, at)) > 0; at += n)
            fwrite(chunk, 1, (size_t)n, file);
        if (file)
            fclose(file);
    }
}

/* In the child, between fork and exec. */
static void become_node(const char *path, int in, int out, int err, int netns_fd, pid_t parent)
{
    char *const argv[] = {(char *)(uintptr_t)path, NULL};
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent)
        _exit(125);
    if (netns_fd >= 0 && setns(netns_fd, CLONE_NEWNET) != 0)
        _exit(126);
    if (dup2(in, 0) < 0 || dup2(out, 1) < 0 || dup2(err, 2) < 0)
        _exit(126);
    execv(path, argv);
    _exit(127);
}

/* All nodes inherit it. */
static void make_pace_file(void)
{
    char text[16];
    int fd;

    if (getenv(PACE_FD_VARIABLE))
        return;
    fd = memfd_create("node-pace", 0);
    assert_true(fd >= 0);
    assert_int_equal(ftruncate(fd, PACE_ENTRIES * sizeof(struct pace_entry)), 0);
    snprintf(text, sizeof text, "%d", fd);
    assert_int_equal(setenv(PACE_FD_VARIABLE, text, 1), 0);
}

static const char *node_path(void)
{
    static char path[4096];
    const char *given = getenv("SHOAL_TEST_NODE");
    if (given)
        return given;
    ssize_t n = readlink("/proc/self/exe", path, sizeof path - 32);
    assert_true(n > 0);
    path[n] = '\0';
    *strrchr(path, '/') = '\0';
    strcat(path, "/../lib/test_node");
    return path;
}

struct node *node_spawn(const char *label, int netns_fd)
{
    struct node *node = calloc(1, sizeof *node);
    const char *path = node_path();
    pid_t self = getpid();
    int in[2], out[2];

    assert_non_null(node);
    assert_int_equal(access(path, X_OK), 0);
    snprintf(node->label, sizeof node->label, "%s", label);
    node->answers = json_object();
    node->reports = json_object();
    assert_int_equal(pipe2(in, O_CLOEXEC), 0);
    assert_int_equal(pipe2(out, O_CLOEXEC), 0);
    node->err = memfd_create("node-stderr", MFD_CLOEXEC);
    assert_true(node->err >= 0);
    assert_int_equal(fcntl(out[0], F_SETFL, O_NONBLOCK), 0);
    signal(SIGPIPE, SIG_IGN);
    make_pace_file();
    node->pid = fork();
    assert_true(node->pid >= 0);
    if (node->pid == 0)
        become_node(path, in[0], out[1], node->err, netns_fd, self);
    close(in[0]);
    close(out[1]);
    node->to = in[1];
    node->from = out[0];
    node->next = nodes;
    nodes = node;
    return node;
}

static void take_line(struct node *node, const char *line)
{
    json_error_t error;
    char key[16];
    json_t *json = json_loads(line, 0, &error);
    if (!json) {
        show_stderr(node);
        fail_msg("%s: not JSON: %s", node->label, line);
    }
    json_t *progress = json_object_get(json, "progress");
    json_t *id = progress ? progress : json_object_get(json, "id");
    snprintf(key, sizeof key, "%lld", (long long)json_integer_value(id));
    json_object_set_new(progress ? node->reports : node->answers, key, json);
}

static void read_lines(struct node *node)
{
    for (;;) {
        if (node->partial_size - node->partial_len < 65536) {
            node->partial_size += 131072;
            node->partial = realloc(node->partial, node->partial_size);
            assert_non_null(node->partial);
        }
        ssize_t n = read(node->from, node->partial + node->partial_len, 65536);
        if (n < 0 && (errno == EAGAIN || errno == EINTR))
            return;
        if (n <= 0) {
            node->is_at_end = true;
            return;
        }
        node->partial_len += (size_t)n;
        char *start = node->partial, *end;
        while ((end = memchr(start, '\n', node->partial_len - (size_t)(start - node->partial)))) {
            *end = '\0';
            take_line(node, start);
            start = end + 1;
        }
        node->partial_len -= (size_t)(start - node->partial);
        memmove(node->partial, start, node->partial_len);
    }
}

/* Reads from every node, so that none blocks on a full pipe. */
static void pump(int timeout_ms)
{
    struct pollfd fds[256];
    struct node *of[256];
    nfds_t count = 0;
    for (struct node *node = nodes; node && count < 256; node = node->next)
        if (!node->is_at_end) {
            of[count] = node;
            fds[count++] = (struct pollfd){.fd = node->from, .events = POLLIN};
        }
    if (poll(fds, count, timeout_ms) <= 0)
        return;
    for (nfds_t i = 0; i < count; i++)
        if (fds[i].revents)
            read_lines(of[i]);
}

static void fail_unless_alive(struct node *node, const char *what)
{
    int status = 0;
    if (!node->is_at_end)
        return;
    show_stderr(node);
    if (node->pid)
        waitpid(node->pid, &status, 0);
    node->pid = 0;
    fail_msg("%s died (%s %d) %s", node->label, WIFSIGNALED(status) ? "signal" : "exit status",
             WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status), what);
}

__attribute__((format(printf, 2, 0))) static unsigned send_command(struct node *node, const char *format, va_list args)
{
    char line[65536];
    unsigned id = ++node->last_id;
    int head = snprintf(line, sizeof line, "%u ", id);
    int body = vsnprintf(line + head, sizeof line - (size_t)head - 1, format, args);
    assert_in_range(body, 1, sizeof line - 64);
    line[head + body] = '\n';
    size_t len = (size_t)(head + body) + 1;
    if (write(node->to, line, len) != (ssize_t)len) {
        pump(1000);
        fail_unless_alive(node, "before a command");
        fail_msg("%s takes no command", node->label);
    }
    return id;
}

unsigned node_send(struct node *node, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    unsigned id = send_command(node, format, args);
    va_end(args);
    return id;
}

static json_t *lookup(json_t *object, unsigned id)
{
    char key[16];
    snprintf(key, sizeof key, "%u", id);
    return json_object_get(object, key);
}

/* As reported so far. */
static uint64_t reported_bytes(struct node *node, unsigned id)
{
    return (uint64_t)json_integer_value(json_object_get(lookup(node->reports, id), "done"));
}

json_t *node_wait(struct node *node, unsigned id)
{
    int64_t deadline = deadline_after_ms(node_patience_ms());
    uint64_t bytes = 0;
    json_t *answer;
    while (!(answer = lookup(node->answers, id))) {
        fail_unless_alive(node, "instead of answering");
        if (deadline_is_past(deadline)) {
            show_all_stderr();
            fail_msg("%s: no answer to command %u and no progress in %lld ms", node->label, id,
                     (long long)node_patience_ms());
        }
        pump(deadline_poll_ms(deadline));
        if (reported_bytes(node, id) != bytes) {
            bytes = reported_bytes(node, id);
            deadline = deadline_after_ms(node_patience_ms());
        }
    }
    if (!json_is_true(json_object_get(answer, "is_consistent")))
        fail_msg("%s: command %u: status %s, but the error detail has another, or no message in UTF-8: %s", node->label,
                 id, json_string_value(json_object_get(answer, "status")),
                 json_string_value(json_object_get(answer, "message")));
    return answer;
}

json_t *node_call(struct node *node, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    unsigned id = send_command(node, format, args);
    va_end(args);
    return node_wait(node, id);
}

bool node_is_done(struct node *node, unsigned id)
{
    pump(0);
    if (lookup(node->answers, id))
        return true;
    fail_unless_alive(node, "during a command");
    return false;
}

uint64_t node_progress(struct node *node, unsigned id)
{
    pump(0);
    return reported_bytes(node, id);
}

uint64_t node_progress_from(struct node *node, unsigned id, const char *name)
{
    json_t *source;
    size_t i;
    pump(0);
    json_array_foreach(json_object_get(lookup(node->reports, id), "sources"), i,
                       source) if (strcmp(json_string_value(json_object_get(source, "name")), name) ==
                                   0) return (uint64_t)json_integer_value(json_object_get(source, "bytes"));
    return 0;
}

bool node_wait_progress(struct node *node, unsigned id, uint64_t min_bytes)
{
    int64_t deadline = deadline_after_ms(node_patience_ms());
    while (node_progress(node, id) < min_bytes) {
        if (lookup(node->answers, id))
            return false;
        fail_unless_alive(node, "during a command");
        if (deadline_is_past(deadline)) {
            show_all_stderr();
            fail_msg("%s: command %u does not get to %llu bytes, is at %llu", node->label, id,
                     (unsigned long long)min_bytes, (unsigned long long)node_progress(node, id));
        }
        pump(deadline_poll_ms(deadline));
    }
    return lookup(node->answers, id) == NULL;
}

pid_t node_pid(const struct node *node)
{
    return node->pid;
}

void node_signal(struct node *node, int signal_number)
{
    assert_int_not_equal(node->pid, 0);
    assert_int_equal(kill(node->pid, signal_number), 0);
}

void node_kill(struct node *node)
{
    if (!node->pid)
        return;
    kill(node->pid, SIGKILL);
    waitpid(node->pid, NULL, 0);
    node->pid = 0;
}

void node_stop(struct node *node)
{
    int status = 0;
    int64_t deadline = deadline_after_ms(node_patience_ms());
    if (!node->pid)
        return;
    if (write(node->to, "exit\n", 5) != 5)
        fail_unless_alive(node, "before it was stopped");
    while (!node->is_at_end) {
        if (deadline_is_past(deadline)) {
            show_stderr(node);
            fail_msg("%s does not end", node->label);
        }
        pump(deadline_poll_ms(deadline));
    }
    waitpid(node->pid, &status, 0);
    node->pid = 0;
    if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) {
        show_stderr(node);
        fail_msg("%s ended with %s %d", node->label, WIFSIGNALED(status) ? "signal" : "exit status",
                 WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status));
    }
}

void node_stop_all(void)
{
    for (struct node *node = nodes; node; node = node->next)
        node_stop(node);
}

void node_kill_all(void)
{
    for (struct node *node; (node = nodes);) {
        nodes = node->next;
        node_kill(node);
        close(node->to);
        close(node->from);
        close(node->err);
        json_decref(node->answers);
        json_decref(node->reports);
        free(node->partial);
        free(node);
    }
}
