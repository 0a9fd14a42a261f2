/* SPDX-License-Identifier: Apache-2.0 */
#include "fake_http.h"

#include <errno.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#define CONNECTIONS_MAX 64

struct connection {
    struct fake_server *server;
    pthread_t thread;
    int fd;
};

struct fake_server {
    const struct fake_step *steps;
    size_t step_count;
    int listener, stopping; /* stopping: an eventfd that becomes readable */
    char address[32];
    pthread_t thread;
    struct connection connections[CONNECTIONS_MAX];
    size_t connection_count; /* of the accepting thread, then of stop */
    pthread_mutex_t mutex;
    size_t next_step;
    unsigned requests;
    size_t body_bytes;
};

/* false: closed, or the server stops. */
static bool wait_for(struct fake_server *server, int fd, short events)
{
    struct pollfd fds[] = {{.fd = fd, .events = events}, {.fd = server->stopping, .events = POLLIN}};
    while (poll(fds, 2, -1) < 0)
        if (errno != EINTR)
            return false;
    return !fds[1].revents && (fds[0].revents & events);
}

static bool send_all(struct connection *connection, const char *data, size_t len)
{
    while (len) {
        if (!wait_for(connection->server, connection->fd, POLLOUT))
            return false;
        ssize_t sent = send(connection->fd, data, len, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (sent < 0 && errno != EAGAIN)
            return false;
        if (sent > 0) {
            data += sent;
            len -= (size_t)sent;
        }
    }
    return true;
}

static bool send_text(struct connection *connection, const char *text)
{
    return send_all(connection, text, strlen(text));
}

static ssize_t receive(struct connection *connection, char *data, size_t len)
{
    if (!wait_for(connection->server, connection->fd, POLLIN))
        return 0;
    return recv(connection->fd, data, len, 0);
}

/* Reads one request; its body is counted. With asks_for_body false the body of "Expect: 100-continue" stays unsent. */
static bool read_request(struct connection *connection)
{
    struct fake_server *server = connection->server;
    char head[16384], *end = NULL;
    size_t len = 0;
    while (!end) {
        ssize_t got = receive(connection, head + len, sizeof head - 1 - len);
        if (got <= 0)
            return false;
        len += (size_t)got;
        head[len] = '\0';
        end = strstr(head, "\r\n\r\n");
    }
    const char *length = strcasestr(head, "content-length:");
    size_t body_len = length ? strtoul(length + 15, NULL, 10) : 0;
    size_t have = len - (size_t)(end + 4 - head);
    if (strcasestr(head, "100-continue") && !send_text(connection, "HTTP/1.1 100 Continue\r\n\r\n"))
        return false;
    for (;;) {
        pthread_mutex_lock(&server->mutex);
        server->body_bytes += have;
        pthread_mutex_unlock(&server->mutex);
        body_len -= have < body_len ? have : body_len;
        if (body_len == 0)
            break;
        ssize_t got = receive(connection, head, body_len < sizeof head ? body_len : sizeof head);
        if (got <= 0)
            return false;
        have = (size_t)got;
    }
    pthread_mutex_lock(&server->mutex);
    server->requests++;
    pthread_mutex_unlock(&server->mutex);
    return true;
}

static void wait_for_end(struct connection *connection)
{
    char data[4096];
    while (receive(connection, data, sizeof data) > 0)
        ;
}

static void send_endless(struct connection *connection, const char *head, const char *text)
{
    if (send_text(connection, head))
        while (send_text(connection, text))
            ;
}

/* false: the connection has ended. */
static bool answer(struct connection *connection, const struct fake_step *step)
{
    const char *body = step->body ? step->body : "";
    char head[256];
    char filler[8192];
    memset(filler, ' ', sizeof filler - 1);
    filler[sizeof filler - 1] = '\0';
    switch (step->behaviour) {
    case FAKE_ANSWER:
        snprintf(head, sizeof head, "HTTP/1.1 %d Fake\r\nLocation: /elsewhere\r\nContent-Length: %zu\r\n\r\n",
                 step->status, strlen(body));
        return send_text(connection, head) && send_text(connection, body);
    case FAKE_SILENT_REQUEST:
        wait_for_end(connection);
        return false;
    case FAKE_TRUNCATED:
    case FAKE_STALLED:
        snprintf(head, sizeof head, "HTTP/1.1 200 OK\r\nContent-Length: %zu\r\n\r\n", strlen(body) + 100);
        if (send_text(connection, head) && send_text(connection, body) && step->behaviour == FAKE_STALLED)
            wait_for_end(connection);
        return false;
    case FAKE_ENDLESS_BODY:
        send_endless(connection, "HTTP/1.1 200 OK\r\n\r\n{", filler);
        return false;
    case FAKE_ENDLESS_HEADERS:
        send_endless(connection, "HTTP/1.1 200 OK\r\n", "X-More: and more and more and more\r\n");
        return false;
    case FAKE_HUGE_LENGTH:
        send_endless(connection, "HTTP/1.1 200 OK\r\nContent-Length: 1099511627776\r\n\r\n{", filler);
        return false;
    case FAKE_GARBAGE:
        send_text(connection, "SSH-2.0-OpenSSH_9.2\r\n\x01\x02\x03\xff\xfe");
        return false;
    case FAKE_CLOSE:
    case FAKE_CLOSE_REQUEST:
    case FAKE_SILENT:
        return false;
    }
    return false;
}

static const struct fake_step *take_step(struct fake_server *server)
{
    pthread_mutex_lock(&server->mutex);
    const struct fake_step *step = &server->steps[server->next_step];
    if (server->next_step + 1 < server->step_count)
        server->next_step++;
    pthread_mutex_unlock(&server->mutex);
    return step;
}

static void *serve(void *arg)
{
    struct connection *connection = arg;
    struct fake_server *server = connection->server;
    pthread_mutex_lock(&server->mutex);
    enum fake_behaviour first = server->steps[server->next_step].behaviour;
    pthread_mutex_unlock(&server->mutex);
    if (first == FAKE_CLOSE || first == FAKE_SILENT) {
        take_step(server);
        if (first == FAKE_SILENT)
            wait_for_end(connection);
    } else {
        while (read_request(connection) && answer(connection, take_step(server)))
            ;
    }
    shutdown(connection->fd, SHUT_RDWR);
    return NULL;
}

static void *accept_all(void *arg)
{
    struct fake_server *server = arg;
    while (wait_for(server, server->listener, POLLIN) && server->connection_count < CONNECTIONS_MAX) {
        struct connection *connection = &server->connections[server->connection_count];
        connection->server = server;
        connection->fd = accept4(server->listener, NULL, NULL, SOCK_CLOEXEC);
        if (connection->fd < 0)
            continue;
        if (pthread_create(&connection->thread, NULL, serve, connection) != 0)
            abort();
        server->connection_count++;
    }
    return NULL;
}

struct fake_server *fake_server_start(const struct fake_step *steps, size_t count)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof address;
    struct fake_server *server = calloc(1, sizeof *server);
    if (!server)
        abort();
    server->steps = steps;
    server->step_count = count;
    pthread_mutex_init(&server->mutex, NULL);
    server->stopping = eventfd(0, EFD_CLOEXEC);
    server->listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (server->stopping < 0 || server->listener < 0 || bind(server->listener, (struct sockaddr *)&address, len) != 0 ||
        listen(server->listener, 64) != 0 || getsockname(server->listener, (struct sockaddr *)&address, &len) != 0)
        abort();
    snprintf(server->address, sizeof server->address, "127.0.0.1:%u", ntohs(address.sin_port));
    if (pthread_create(&server->thread, NULL, accept_all, server) != 0)
        abort();
    return server;
}

void fake_server_stop(struct fake_server *server)
{
    if (!server)
        return;
    eventfd_write(server->stopping, 1);
    pthread_join(server->thread, NULL);
    for (size_t i = 0; i < server->connection_count; i++) {
        pthread_join(server->connections[i].thread, NULL);
        close(server->connections[i].fd);
    }
    close(server->listener);
    close(server->stopping);
    pthread_mutex_destroy(&server->mutex);
    free(server);
}

const char *fake_server_address(const struct fake_server *server)
{
    return server->address;
}

unsigned fake_server_requests(struct fake_server *server)
{
    pthread_mutex_lock(&server->mutex);
    unsigned requests = server->requests;
    pthread_mutex_unlock(&server->mutex);
    return requests;
}

size_t fake_server_body_bytes(struct fake_server *server)
{
    pthread_mutex_lock(&server->mutex);
    size_t bytes = server->body_bytes;
    pthread_mutex_unlock(&server->mutex);
    return bytes;
}
