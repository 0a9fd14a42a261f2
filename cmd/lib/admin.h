/* SPDX-License-Identifier: Apache-2.0 */
/* What monitoring asks a process for, over HTTP on an address of its own: /metrics (Prometheus text), /healthz (it
 * answers), /readyz (it does what it is for). Read only, one request per connection.
 *
 * Not libevent's evhttp: it cannot bound the number of connections, and each is a file descriptor that a transfer would
 * lack. */
#ifndef SHOAL_CMD_ADMIN_H
#define SHOAL_CMD_ADMIN_H

#include <stdbool.h>

#include <shoal/status.h>

struct admin;

/* Where the answers come from; called on the admin's thread. */
struct admin_source {
    char *(*metrics)(void *arg);                 /* freed by the caller; NULL: there are none */
    bool (*look)(void *arg, bool *is_ready_out); /* false: it does not answer */
};

/* Listens at "host:port" (port 0: any free one) and answers on a thread of its own, until there is a source with 503.
 * INVALID_ARGUMENT: malformed, no port. ADDRESS: does not resolve or is not of this machine. NAME_IN_USE, PERMISSION
 * (port below 1024), IO, NO_MEMORY. */
enum shoal_status admin_open(const char *address, const char *not_ready, struct admin **admin_out,
                             struct shoal_error *error);
/* With the real port; lives as long as admin. */
const char *admin_address(const struct admin *admin);
/* Others than this machine can ask. */
bool admin_is_exposed(const struct admin *admin);
/* Both are borrowed until admin_close. NULL source: none any more. */
void admin_set_source(struct admin *admin, const struct admin_source *source, void *arg);
/* NULL is allowed. */
void admin_close(struct admin *admin);

#endif
