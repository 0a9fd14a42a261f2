/* SPDX-License-Identifier: Apache-2.0 */
/* "host", "host:port", "[v6]", "[v6]:port". A bare IPv6 address with colons ("::1") is accepted as a host. */
#ifndef SHOAL_BASE_HOSTPORT_H
#define SHOAL_BASE_HOSTPORT_H

#include <netinet/in.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/socket.h>

#include <shoal/status.h>

#define HOST_MAX_BYTES 255
#define HOSTPORT_TEXT_BYTES 272 /* "[" host "]:" port NUL */

struct hostport {
    char host[HOST_MAX_BYTES + 1]; /* without brackets */
    bool has_port;
    bool is_v6; /* a literal IPv6 address */
    uint16_t port;
};

/* INVALID_ARGUMENT: empty, too long, bad port, stray brackets, characters that no host name has. */
enum shoal_status hostport_parse(struct hostport *out, const char *text, struct shoal_error *error);
/* Canonical text: brackets around IPv6, always with port. */
void hostport_format(const char *host, uint16_t port, char text_out[HOSTPORT_TEXT_BYTES]);
/* Numeric text of a socket address. */
void sockaddr_format(const struct sockaddr *addr, char text_out[HOSTPORT_TEXT_BYTES]);
/* Before connect: the connection of fd to peer will begin at the host of source (an address of this machine; its port
 * is not used), so that rules of the routing table choose the device by it and the peer sees the address it knows. Does
 * nothing where that cannot work: another address family, a loopback source for a peer that is none. UNREACHABLE:
 * source is no address of this machine any more. */
enum shoal_status socket_bind_source(int fd, const struct sockaddr *source, const struct sockaddr *peer,
                                     struct shoal_error *error);
/* First usable address of host (numeric hosts never ask a resolver). May block as long as getaddrinfo does: not on a
 * loop thread. ADDRESS: does not resolve. */
enum shoal_status hostport_resolve(const char *host, uint16_t port, struct sockaddr_storage *addr_out,
                                   socklen_t *len_out, struct shoal_error *error);

#endif
