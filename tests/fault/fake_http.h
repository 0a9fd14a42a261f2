/* SPDX-License-Identifier: Apache-2.0 */
/* A server that speaks HTTP as badly as it is told to. */
#ifndef SHOAL_TESTS_FAKE_HTTP_H
#define SHOAL_TESTS_FAKE_HTTP_H

#include <stdbool.h>
#include <stddef.h>

enum fake_behaviour {
    FAKE_ANSWER,         /* status and body as given */
    FAKE_CLOSE,          /* closes as soon as a connection is accepted */
    FAKE_CLOSE_REQUEST,  /* reads the whole request, then closes */
    FAKE_SILENT,         /* reads whatever comes and never writes a byte */
    FAKE_SILENT_REQUEST, /* reads the whole request, asking for its body, and never answers */
    FAKE_TRUNCATED,      /* announces more than it sends, then closes */
    FAKE_STALLED,        /* the same, but stays open */
    FAKE_ENDLESS_BODY,
    FAKE_ENDLESS_HEADERS,
    FAKE_HUGE_LENGTH, /* announces 1 TB */
    FAKE_GARBAGE,     /* bytes that are no HTTP */
};

struct fake_step {
    enum fake_behaviour behaviour;
    int status;
    const char *body; /* NULL: empty */
};

struct fake_server;

/* Listens on a free loopback port. Requests take the steps in order; the last one is repeated for ever. The steps must
 * outlive the server. */
struct fake_server *fake_server_start(const struct fake_step *steps, size_t count);
void fake_server_stop(struct fake_server *server);
const char *fake_server_address(const struct fake_server *server); /* "127.0.0.1:port" */
/* Requests whose body came as a whole, and bytes of bodies that came at all. */
unsigned fake_server_requests(struct fake_server *server);
size_t fake_server_body_bytes(struct fake_server *server);

#endif
