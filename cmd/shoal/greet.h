/* SPDX-License-Identifier: Apache-2.0 */
/* Asks who answers at an address, without a node of one's own. Bounded in time, ended by a signal. */
#ifndef SHOAL_CMD_GREET_H
#define SHOAL_CMD_GREET_H

#include <stdbool.h>
#include <sys/socket.h>

#include <shoal/status.h>

#include "wire/hello.h"

/* Connects, waits at most timeout_ms. A descriptor to be closed, or -1 with error set. */
int greet_connect(const struct sockaddr_storage *addr, socklen_t len, int timeout_ms, struct shoal_error *error);
/* The same with a text "host:port". */
int greet_connect_to(const char *address, int timeout_ms, struct shoal_error *error);
/* Shakes hands over a connection that wants to know only who answers. false: nobody does who speaks as a node does. */
bool greet_ask(int fd, const char *cluster, int timeout_ms, struct hello *answer_out);

#endif
