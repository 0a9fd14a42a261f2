/* SPDX-License-Identifier: Apache-2.0 */
/* What monitoring asks a node for, over HTTP on an address of its own: /metrics (Prometheus text), /healthz (the node's
 * loop answers), /readyz (the payload is published). Read only, one request per connection.
 *
 * Not libevent's evhttp: it cannot bound the number of connections, and each is a file descriptor that a transfer would
 * lack. */
#ifndef SHOAL_CMD_ADMIN_H
#define SHOAL_CMD_ADMIN_H

#include <stdbool.h>

#include <shoal/store.h>

struct admin;

/* Listens at "host:port" (port 0: any free one) and answers on a thread of its own, until there is a store with 503.
 * INVALID_ARGUMENT: malformed, no port. ADDRESS: does not resolve or is not of this machine. NAME_IN_USE, PERMISSION
 * (port below 1024), IO, NO_MEMORY. */
enum shoal_status admin_open(const char *address, struct admin **admin_out, struct shoal_error *error);
/* With the real port; lives as long as admin. */
const char *admin_address(const struct admin *admin);
/* Others than this machine can ask. */
bool admin_is_exposed(const struct admin *admin);
/* store and name are borrowed until admin_close, which must come before shoal_store_close. */
void admin_set_store(struct admin *admin, struct shoal_store *store, const char *name);
/* NULL is allowed. */
void admin_close(struct admin *admin);

#endif
