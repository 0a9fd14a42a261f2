/* SPDX-License-Identifier: Apache-2.0 */
/* Plain sockets for swarm-lab: a source that sends a file to everyone who connects, and a node that receives into a
 * file and, if asked to, sends on at once what it has (a chain of relays). A plain copy is a source and one node.
 *
 * Both print "ready" when they listen. A node then waits for the end of its standard input, the common start of all
 * nodes, before it connects, and prints "done" when it has everything. */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "lib/bench.h"

#define CHUNK_BYTES ((size_t)256 << 10)
#define STALL_TIMEOUT_MS 60000

static void say(const char *word)
{
    if (printf("%s\n", word) < 0 || fflush(stdout) != 0)
        bench_die("standard output: %s", strerror(errno));
}

static struct sockaddr_in parse_address(const char *text)
{
    struct sockaddr_in addr = {.sin_family = AF_INET};
    char host[INET_ADDRSTRLEN] = "", *end;
    const char *colon = strrchr(text, ':');
    unsigned long port;

    if (!colon || (size_t)(colon - text) >= sizeof host)
        bench_die("'%s' is not IPV4:PORT", text);
    memcpy(host, text, (size_t)(colon - text));
    port = strtoul(colon + 1, &end, 10);
    if (*end || port == 0 || port > UINT16_MAX || inet_pton(AF_INET, host, &addr.sin_addr) != 1)
        bench_die("'%s' is not IPV4:PORT", text);
    addr.sin_port = htons((uint16_t)port);
    return addr;
}

static uint64_t parse_number(const char *text, uint64_t max)
{
    char *end;
    unsigned long long number;

    errno = 0;
    number = strtoull(text, &end, 10);
    if (errno || *text < '0' || *text > '9' || *end || number == 0 || number > max)
        bench_die("'%s' is not a number in 1..%llu", text, (unsigned long long)max);
    return number;
}

static int listen_at(const char *address)
{
    struct sockaddr_in addr = parse_address(address);
    int fd = bench_tcp_socket(NULL), one = 1;

    if (setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one) != 0 ||
        bind(fd, (struct sockaddr *)&addr, sizeof addr) != 0 || listen(fd, SOMAXCONN) != 0)
        bench_die("listen at %s: %s", address, strerror(errno));
    return fd;
}

/* --- source --- */

static int run_source(const char *address, const char *path, const char *count_text)
{
    uint64_t count = parse_number(count_text, 1000);
    int listener = listen_at(address), file = open(path, O_RDONLY | O_CLOEXEC), status, worst = 0;
    pid_t parent = getpid();
    struct stat info;
    uint8_t *memory;

    if (file < 0 || fstat(file, &info) != 0 || info.st_size <= 0)
        bench_die("%s: %s", path, file < 0 ? strerror(errno) : "empty or unreadable");
    memory = mmap(NULL, (size_t)info.st_size, PROT_READ, MAP_SHARED | MAP_POPULATE, file, 0);
    if (memory == MAP_FAILED)
        bench_die("map %s: %s", path, strerror(errno));
    close(file);
    say("ready");
    for (uint64_t i = 0; i < count; i++) {
        int fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
        pid_t pid = fd < 0 ? -1 : fork();
        if (pid < 0)
            bench_die("accept: %s", strerror(errno));
        if (pid == 0) {
            prctl(PR_SET_PDEATHSIG, SIGKILL);
            if (getppid() != parent)
                _exit(1);
            bench_raw_send(fd, memory, (uint64_t)info.st_size);
            _exit(0);
        }
        close(fd);
    }
    while (wait(&status) > 0)
        if (status != 0)
            worst = 1;
    return worst;
}

/* --- node --- */

struct node {
    uint8_t *memory;
    uint64_t size_bytes, have_bytes, sent_bytes;
    int upstream, listener, downstream; /* -1: none */
};

static void receive_some(struct node *node)
{
    uint64_t left = node->size_bytes - node->have_bytes;
    ssize_t got = recv(node->upstream, node->memory + node->have_bytes, left < CHUNK_BYTES ? (size_t)left : CHUNK_BYTES,
                       MSG_DONTWAIT);
    if (got < 0 && (errno == EAGAIN || errno == EINTR))
        return;
    if (got <= 0)
        bench_die("receive: %s", got ? strerror(errno) : "the other side closed early");
    node->have_bytes += (uint64_t)got;
    if (node->have_bytes == node->size_bytes)
        say("done");
}

static void send_some(struct node *node)
{
    uint64_t left = node->have_bytes - node->sent_bytes;
    ssize_t sent = send(node->downstream, node->memory + node->sent_bytes, (size_t)left, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent < 0 && (errno == EAGAIN || errno == EINTR))
        return;
    if (sent <= 0)
        bench_die("send: %s", strerror(errno));
    node->sent_bytes += (uint64_t)sent;
}

/* Own memory is the buffer between both links, so a slow downstream does not slow the upstream. */
static void pass(struct node *node)
{
    while (node->have_bytes < node->size_bytes || (node->listener >= 0 && node->sent_bytes < node->size_bytes)) {
        struct pollfd fds[] = {
            {.fd = node->have_bytes < node->size_bytes ? node->upstream : -1, .events = POLLIN},
            {.fd = node->downstream < 0 ? node->listener : -1, .events = POLLIN},
            {.fd = node->sent_bytes < node->have_bytes ? node->downstream : -1, .events = POLLOUT},
        };
        int count = poll(fds, sizeof fds / sizeof *fds, STALL_TIMEOUT_MS);
        if (count < 0 && errno == EINTR)
            continue;
        if (count <= 0)
            bench_die("%s", count ? strerror(errno) : "nothing moved for a minute");
        if (fds[0].revents)
            receive_some(node);
        if (fds[1].revents) {
            node->downstream = accept4(node->listener, NULL, NULL, SOCK_CLOEXEC);
            if (node->downstream < 0)
                bench_die("accept: %s", strerror(errno));
        }
        if (fds[2].revents)
            send_some(node);
    }
}

static int run_node(const char *address, const char *path, const char *size_text, const char *listen_address)
{
    struct sockaddr_in addr = parse_address(address);
    struct node node = {.size_bytes = parse_number(size_text, (uint64_t)1 << 40), .downstream = -1};
    int file = open(path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    char ignored[64];
    ssize_t got;

    if (file < 0 || ftruncate(file, (off_t)node.size_bytes) != 0)
        bench_die("%s: %s", path, strerror(errno));
    node.memory = mmap(NULL, (size_t)node.size_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (node.memory == MAP_FAILED)
        bench_die("map %s: %s", path, strerror(errno));
    close(file);
    node.listener = listen_address ? listen_at(listen_address) : -1;
    node.upstream = bench_tcp_socket(NULL);
    say("ready");
    do
        got = read(STDIN_FILENO, ignored, sizeof ignored);
    while (got > 0 || (got < 0 && errno == EINTR));
    if (connect(node.upstream, (struct sockaddr *)&addr, sizeof addr) != 0)
        bench_die("connect to %s: %s", address, strerror(errno));
    pass(&node);
    return 0;
}

int main(int argc, char **argv)
{
    signal(SIGPIPE, SIG_IGN);
    if (argc == 5 && strcmp(argv[1], "source") == 0)
        return run_source(argv[2], argv[3], argv[4]);
    if ((argc == 5 || argc == 6) && strcmp(argv[1], "node") == 0)
        return run_node(argv[2], argv[3], argv[4], argc == 6 ? argv[5] : NULL);
    fputs("usage: bench_relay source IPV4:PORT FILE RECEIVERS\n"
          "       bench_relay node UPSTREAM-IPV4:PORT FILE SIZE [LISTEN-IPV4:PORT]\n",
          stderr);
    return 2;
}
