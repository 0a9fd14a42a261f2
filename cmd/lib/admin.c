/* SPDX-License-Identifier: Apache-2.0 */
#include "admin.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/error.h"
#include "base/hostport.h"
#include "base/list.h"
#include "loop/loop.h"

#define HEAD_MAX_BYTES 8192u
#define CLIENTS_MAX 32u         /* more wait in the backlog */
#define CLIENT_TIMEOUT_MS 10000 /* from accept to the last byte of the answer */
#define CLOSING_TIMEOUT_MS 1000 /* for the client to close after it */
#define ACCEPT_PAUSE_MS 1000    /* after the process ran out of descriptors */
#define BACKLOG 64
#define ANSWER_MAX_BYTES (4u << 20)
#define DRAIN_MAX_BYTES (64u << 10)

enum client_state {
    CLIENT_READING, /* the head of the request */
    CLIENT_WRITING, /* the answer */
    CLIENT_CLOSING, /* all is sent: what the client still sends is dropped, or its system would drop the answer */
};

struct client {
    struct list_node node;
    struct admin *admin;
    enum client_state state;
    int fd;
    struct loop_io io;
    struct loop_timer timer;
    char head[HEAD_MAX_BYTES];
    size_t head_len, dropped;
    struct buf answer;
    size_t sent;
};

struct admin {
    struct loop *loop; /* owned */
    int fd;
    char address[HOSTPORT_TEXT_BYTES];
    bool is_exposed;
    const char *not_ready; /* borrowed */
    /* the loop's */
    const struct admin_source *source; /* borrowed; NULL: not yet */
    void *source_arg;
    struct loop_io listen_io;
    struct loop_timer pause;
    struct list clients;
    unsigned client_count;
};

/* --- answers --- */

static bool answer(struct client *client, bool has_body, const char *status, const char *more, const char *type,
                   const char *body)
{
    return buf_append_format(&client->answer,
                             "HTTP/1.1 %s\r\nContent-Type: %s; charset=utf-8\r\nContent-Length: %zu\r\n"
                             "Cache-Control: no-store\r\nConnection: close\r\n%s\r\n",
                             status, type, strlen(body), more) &&
           (!has_body || buf_append_str(&client->answer, body));
}

static bool answer_path(struct client *client, const char *path, bool has_body)
{
    static const char text[] = "text/plain", metrics_text[] = "text/plain; version=0.0.4";
    static const char not_now[] = "503 Service Unavailable";
    const struct admin *admin = client->admin;
    const struct admin_source *source = admin->source;
    bool is_ready = false, is_ok;
    if (strcmp(path, "/metrics") == 0) {
        char *metrics = source ? source->metrics(admin->source_arg) : NULL;
        is_ok = metrics ? answer(client, has_body, "200 OK", "", metrics_text, metrics)
                        : answer(client, has_body, not_now, "", text, "no metrics yet\n");
        free(metrics);
        return is_ok;
    }
    if (strcmp(path, "/healthz") == 0) {
        /* before it joined, that this thread runs must do */
        bool is_alive = !source || source->look(admin->source_arg, &is_ready);
        return is_alive ? answer(client, has_body, "200 OK", "", text, "ok\n")
                        : answer(client, has_body, not_now, "", text, "out of memory\n");
    }
    if (strcmp(path, "/readyz") == 0) {
        bool is_seen = source && source->look(admin->source_arg, &is_ready) && is_ready;
        return is_seen ? answer(client, has_body, "200 OK", "", text, "ready\n")
                       : answer(client, has_body, not_now, "", text, admin->not_ready);
    }
    return answer(client, has_body, "404 Not Found", "", text, "there are /metrics, /healthz and /readyz\n");
}

/* "GET /path?query HTTP/1.1"; the rest of the head does not matter. */
static bool answer_request(struct client *client)
{
    static const char text[] = "text/plain", malformed[] = "malformed request\n";
    char *line = client->head, *target, *version;
    bool is_text = memchr(line, 0, client->head_len) == NULL;
    line[strcspn(line, "\r\n")] = '\0';
    target = strchr(line, ' ');
    version = target ? strchr(target + 1, ' ') : NULL;
    if (!is_text || !version || target[1] != '/' || strncmp(version, " HTTP/", 6) != 0)
        return answer(client, true, "400 Bad Request", "", text, malformed);
    *target++ = '\0';
    *version++ = '\0';
    if (strncmp(version, "HTTP/1.", 7) != 0)
        return answer(client, true, "505 HTTP Version Not Supported", "", text, "HTTP/1.1 is spoken here\n");
    if (strcmp(line, "GET") != 0 && strcmp(line, "HEAD") != 0)
        return answer(client, true, "405 Method Not Allowed", "Allow: GET, HEAD\r\n", text, "only GET and HEAD\n");
    target[strcspn(target, "?#")] = '\0';
    return answer_path(client, target, strcmp(line, "GET") == 0);
}

/* --- connections --- */

static void client_destroy(struct client *client)
{
    struct admin *admin = client->admin;
    loop_timer_release(&client->timer);
    loop_io_release(&client->io);
    close(client->fd);
    buf_release(&client->answer);
    list_remove(&client->node);
    free(client);
    if (admin->client_count-- == CLIENTS_MAX && !loop_timer_is_running(&admin->pause))
        loop_io_set(&admin->listen_io, LOOP_READ);
}

static void on_client_timeout(void *arg)
{
    client_destroy(arg);
}

static void send_answer(struct client *client)
{
    while (client->sent < client->answer.len) {
        ssize_t count =
            send(client->fd, client->answer.data + client->sent, client->answer.len - client->sent, MSG_NOSIGNAL);
        if (count < 0 && errno == EINTR)
            continue;
        if (count < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) {
            loop_io_set(&client->io, LOOP_WRITE);
            return;
        }
        if (count <= 0) {
            client_destroy(client);
            return;
        }
        client->sent += (size_t)count;
    }
    client->state = CLIENT_CLOSING;
    shutdown(client->fd, SHUT_WR);
    loop_timer_start(&client->timer, CLOSING_TIMEOUT_MS);
    loop_io_set(&client->io, LOOP_READ);
}

static void begin_answer(struct client *client, bool is_made)
{
    if (!is_made) { /* out of memory */
        client_destroy(client);
        return;
    }
    client->state = CLIENT_WRITING;
    send_answer(client);
}

/* false: the connection has ended, client is gone. */
static bool receive(struct client *client, char *to, size_t size, size_t *count_out)
{
    ssize_t count = recv(client->fd, to, size, 0);
    *count_out = count > 0 ? (size_t)count : 0;
    if (count > 0 || (count < 0 && (errno == EINTR || errno == EAGAIN || errno == EWOULDBLOCK)))
        return true;
    client_destroy(client);
    return false;
}

static void read_head(struct client *client)
{
    size_t count;
    if (!receive(client, client->head + client->head_len, sizeof client->head - 1 - client->head_len, &count))
        return;
    client->head_len += count;
    client->head[client->head_len] = '\0';
    if (memmem(client->head, client->head_len, "\n\r\n", 3) || memmem(client->head, client->head_len, "\n\n", 2))
        begin_answer(client, answer_request(client));
    else if (client->head_len == sizeof client->head - 1)
        begin_answer(client, answer(client, true, "431 Request Header Fields Too Large", "", "text/plain",
                                    "the request is too long\n"));
}

static void on_client(void *arg, unsigned events)
{
    struct client *client = arg;
    char dropped[4096];
    size_t count;
    (void)events;
    switch (client->state) {
    case CLIENT_READING:
        read_head(client);
        break;
    case CLIENT_WRITING:
        send_answer(client);
        break;
    case CLIENT_CLOSING:
        if (receive(client, dropped, sizeof dropped, &count) && (client->dropped += count) > DRAIN_MAX_BYTES)
            client_destroy(client);
        break;
    }
}

/* Takes fd. */
static void client_create(struct admin *admin, int fd)
{
    struct client *client = calloc(1, sizeof *client);
    if (!client) {
        close(fd);
        return;
    }
    client->admin = admin;
    client->fd = fd;
    buf_init(&client->answer, ANSWER_MAX_BYTES);
    list_push_back(&admin->clients, &client->node);
    admin->client_count++;
    if (loop_io_init(&client->io, admin->loop, fd, on_client, client, NULL) != SHOAL_OK ||
        loop_timer_init(&client->timer, admin->loop, on_client_timeout, client, NULL) != SHOAL_OK) {
        client_destroy(client);
        return;
    }
    loop_timer_start(&client->timer, CLIENT_TIMEOUT_MS);
    loop_io_set(&client->io, LOOP_READ);
}

static void on_pause_over(void *arg)
{
    struct admin *admin = arg;
    if (admin->client_count < CLIENTS_MAX)
        loop_io_set(&admin->listen_io, LOOP_READ);
}

static void on_listen(void *arg, unsigned events)
{
    struct admin *admin = arg;
    (void)events;
    while (admin->client_count < CLIENTS_MAX) {
        int fd = accept4(admin->fd, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
        if (fd >= 0) {
            client_create(admin, fd);
        } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
            return;
        } else if (errno != EINTR && errno != ECONNABORTED) {
            /* No descriptors, no memory: asking again at once would only burn the processor. */
            loop_io_set(&admin->listen_io, 0);
            loop_timer_start(&admin->pause, ACCEPT_PAUSE_MS);
            return;
        }
    }
    loop_io_set(&admin->listen_io, 0);
}

/* --- life --- */

static bool is_loopback(const struct sockaddr_storage *addr)
{
    const struct sockaddr_in *v4 = (const struct sockaddr_in *)addr;
    const struct sockaddr_in6 *v6 = (const struct sockaddr_in6 *)addr;
    if (addr->ss_family == AF_INET)
        return ntohl(v4->sin_addr.s_addr) >> 24 == 127;
    if (IN6_IS_ADDR_V4MAPPED(&v6->sin6_addr))
        return v6->sin6_addr.s6_addr[12] == 127;
    return IN6_IS_ADDR_LOOPBACK(&v6->sin6_addr);
}

static enum shoal_status bind_status(int number)
{
    return number == EADDRINUSE      ? SHOAL_NAME_IN_USE
           : number == EADDRNOTAVAIL ? SHOAL_ADDRESS
           : number == EACCES        ? SHOAL_PERMISSION
                                     : SHOAL_IO;
}

static enum shoal_status listen_at(struct admin *admin, const char *text, struct shoal_error *error)
{
    struct hostport address;
    struct sockaddr_storage addr;
    socklen_t len;
    int on = 1;
    enum shoal_status status = hostport_parse(&address, text, error);
    if (status == SHOAL_OK && !address.has_port)
        status = error_set(error, SHOAL_INVALID_ARGUMENT, 0, "\"%s\" has no port: give HOST:PORT", text);
    if (status == SHOAL_OK)
        status = hostport_resolve(address.host, address.port, &addr, &len, error);
    if (status != SHOAL_OK)
        return status;
    admin->fd = socket(addr.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (admin->fd < 0)
        return error_set(error, SHOAL_IO, errno, "socket: %s", strerror(errno));
    setsockopt(admin->fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on); /* a restart must not wait for old connections */
    if (addr.ss_family == AF_INET6)
        setsockopt(admin->fd, IPPROTO_IPV6, IPV6_V6ONLY, &on, sizeof on); /* the given address only */
    if (bind(admin->fd, (const struct sockaddr *)&addr, len) != 0 || listen(admin->fd, BACKLOG) != 0)
        return error_set(error, bind_status(errno), errno, "%s: %s", text, strerror(errno));
    len = sizeof addr;
    if (getsockname(admin->fd, (struct sockaddr *)&addr, &len) != 0)
        return error_set(error, SHOAL_IO, errno, "getsockname: %s", strerror(errno));
    sockaddr_format((const struct sockaddr *)&addr, admin->address);
    admin->is_exposed = !is_loopback(&addr);
    return SHOAL_OK;
}

struct start_args {
    struct admin *admin;
    struct shoal_error *error;
    enum shoal_status status;
};

static void start_on_loop(void *arg)
{
    struct start_args *args = arg;
    struct admin *admin = args->admin;
    args->status = loop_io_init(&admin->listen_io, admin->loop, admin->fd, on_listen, admin, args->error);
    if (args->status == SHOAL_OK)
        args->status = loop_timer_init(&admin->pause, admin->loop, on_pause_over, admin, args->error);
    if (args->status == SHOAL_OK)
        loop_io_set(&admin->listen_io, LOOP_READ);
}

enum shoal_status admin_open(const char *address, const char *not_ready, struct admin **admin_out,
                             struct shoal_error *error)
{
    struct admin *admin = calloc(1, sizeof *admin);
    struct start_args args = {.admin = admin, .error = error};
    enum shoal_status status;
    if (!admin)
        return error_no_memory(error);
    admin->fd = -1;
    admin->not_ready = not_ready;
    list_init(&admin->clients);
    status = listen_at(admin, address, error);
    if (status == SHOAL_OK)
        status = loop_create("admin", &admin->loop, error);
    if (status == SHOAL_OK) {
        loop_call(admin->loop, start_on_loop, &args);
        status = args.status;
    }
    if (status != SHOAL_OK) {
        admin_close(admin);
        return status;
    }
    *admin_out = admin;
    return SHOAL_OK;
}

const char *admin_address(const struct admin *admin)
{
    return admin->address;
}

bool admin_is_exposed(const struct admin *admin)
{
    return admin->is_exposed;
}

struct source_args {
    struct admin *admin;
    const struct admin_source *source;
    void *arg;
};

static void set_source_on_loop(void *arg)
{
    const struct source_args *args = arg;
    args->admin->source = args->source;
    args->admin->source_arg = args->arg;
}

void admin_set_source(struct admin *admin, const struct admin_source *source, void *arg)
{
    struct source_args args = {.admin = admin, .source = source, .arg = arg};
    loop_call(admin->loop, set_source_on_loop, &args);
}

static void stop_on_loop(void *arg)
{
    struct admin *admin = arg;
    LIST_FOR_EACH_SAFE (client, &admin->clients, struct client, node)
        client_destroy(client);
    loop_timer_release(&admin->pause);
    loop_io_release(&admin->listen_io);
}

void admin_close(struct admin *admin)
{
    if (!admin)
        return;
    if (admin->loop)
        loop_call(admin->loop, stop_on_loop, admin);
    loop_destroy(admin->loop);
    if (admin->fd >= 0)
        close(admin->fd);
    free(admin);
}
