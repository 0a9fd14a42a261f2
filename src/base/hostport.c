/* SPDX-License-Identifier: Apache-2.0 */
#include "base/hostport.h"

#include <arpa/inet.h>
#include <errno.h>
#include <net/if.h>
#include <netdb.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"

static bool is_host_char(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' || c == '.' ||
           c == '_';
}

static bool is_v6_text(const char *host)
{
    char address[HOST_MAX_BYTES + 1];
    struct in6_addr ignored;
    const char *zone = strchr(host, '%'); /* fe80::1%eth0 */
    size_t len = zone ? (size_t)(zone - host) : strlen(host);

    if (zone) {
        size_t zone_len = strlen(++zone);
        if (zone_len == 0 || zone_len >= IFNAMSIZ)
            return false;
        for (; *zone; zone++) {
            if (!is_host_char(*zone))
                return false;
        }
    }
    memcpy(address, host, len);
    address[len] = '\0';
    return inet_pton(AF_INET6, address, &ignored) == 1;
}

static enum shoal_status parse_port(const char *text, const char *whole, uint16_t *port_out, struct shoal_error *error)
{
    unsigned long port = 0;

    if (!*text || strlen(text) > 5)
        goto bad;
    for (const char *c = text; *c; c++) {
        if (*c < '0' || *c > '9')
            goto bad;
        port = port * 10 + (unsigned long)(*c - '0');
    }
    if (port > 65535)
        goto bad;
    *port_out = (uint16_t)port;
    return SHOAL_OK;
bad:
    return error_set(error, SHOAL_INVALID_ARGUMENT, 0, "'%s': bad port '%s' (want 0..65535)", whole, text);
}

enum shoal_status hostport_parse(struct hostport *out, const char *text, struct shoal_error *error)
{
    struct hostport parsed = {0};
    const char *host = text, *end, *port = NULL;
    size_t len;
    enum shoal_status status;

    if (!text || !*text)
        return error_set(error, SHOAL_INVALID_ARGUMENT, 0, "empty address (want host, host:port or [v6]:port)");
    if (*text == '[') {
        host = text + 1;
        end = strchr(host, ']');
        if (!end || (end[1] && end[1] != ':'))
            return error_set(error, SHOAL_INVALID_ARGUMENT, 0, "'%s': want [address]:port", text);
        if (end[1])
            port = end + 2;
        parsed.is_v6 = true;
    } else {
        const char *colon = strchr(text, ':');
        if (colon && strchr(colon + 1, ':')) { /* two colons: a bare IPv6 address */
            end = text + strlen(text);
            parsed.is_v6 = true;
        } else if (colon) {
            end = colon;
            port = colon + 1;
        } else {
            end = text + strlen(text);
        }
    }
    len = (size_t)(end - host);
    if (len == 0 || len > HOST_MAX_BYTES)
        return error_set(error, SHOAL_INVALID_ARGUMENT, 0, "'%s': host is %s", text, len ? "too long" : "empty");
    memcpy(parsed.host, host, len);
    if (parsed.is_v6) {
        if (!is_v6_text(parsed.host))
            return error_set(error, SHOAL_INVALID_ARGUMENT, 0, "'%s': '%s' is not an IPv6 address", text, parsed.host);
    } else {
        for (size_t i = 0; i < len; i++) {
            if (!is_host_char(parsed.host[i]))
                return error_set(error, SHOAL_INVALID_ARGUMENT, 0, "'%s': '%s' is not a host name", text, parsed.host);
        }
    }
    if (port) {
        status = parse_port(port, text, &parsed.port, error);
        if (status)
            return status;
        parsed.has_port = true;
    }
    *out = parsed;
    return SHOAL_OK;
}

void hostport_format(const char *host, uint16_t port, char text_out[HOSTPORT_TEXT_BYTES])
{
    snprintf(text_out, HOSTPORT_TEXT_BYTES, strchr(host, ':') ? "[%s]:%u" : "%s:%u", host, port);
}

void sockaddr_format(const struct sockaddr *addr, char text_out[HOSTPORT_TEXT_BYTES])
{
    char host[INET6_ADDRSTRLEN + 32];
    char port[8];
    socklen_t len = addr->sa_family == AF_INET6 ? sizeof(struct sockaddr_in6) : sizeof(struct sockaddr_in);

    if (getnameinfo(addr, len, host, sizeof host, port, sizeof port, NI_NUMERICHOST | NI_NUMERICSERV)) {
        snprintf(text_out, HOSTPORT_TEXT_BYTES, "?");
        return;
    }
    hostport_format(host, (uint16_t)strtoul(port, NULL, 10), text_out);
}

static bool is_loopback(const struct sockaddr *addr)
{
    if (addr->sa_family == AF_INET6)
        return IN6_IS_ADDR_LOOPBACK(&((const struct sockaddr_in6 *)(const void *)addr)->sin6_addr);
    return ntohl(((const struct sockaddr_in *)(const void *)addr)->sin_addr.s_addr) >> 24 == IN_LOOPBACKNET;
}

enum shoal_status socket_bind_source(int fd, const struct sockaddr *source, const struct sockaddr *peer,
                                     struct shoal_error *error)
{
    struct sockaddr_storage host = {.ss_family = source->sa_family};
    socklen_t len = source->sa_family == AF_INET6 ? sizeof(struct sockaddr_in6) : sizeof(struct sockaddr_in);
    char text[HOSTPORT_TEXT_BYTES];
    int one = 1, saved;

    if (source->sa_family != peer->sa_family || (is_loopback(source) && !is_loopback(peer)))
        return SHOAL_OK;
    memcpy(&host, source, len);
    if (source->sa_family == AF_INET6)
        ((struct sockaddr_in6 *)(void *)&host)->sin6_port = 0;
    else
        ((struct sockaddr_in *)(void *)&host)->sin_port = 0;
    /* The port is chosen by connect: one port then serves many peers. */
    setsockopt(fd, IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, &one, sizeof one);
    if (bind(fd, (const struct sockaddr *)&host, len) == 0)
        return SHOAL_OK;
    saved = errno;
    sockaddr_format((const struct sockaddr *)&host, text);
    return error_set(error, SHOAL_UNREACHABLE, saved, "cannot send from %s: %s%s", text, strerror(saved),
                     saved == EADDRNOTAVAIL ? " (not an address of this machine any more)" : "");
}

enum shoal_status hostport_resolve(const char *host, uint16_t port, struct sockaddr_storage *addr_out,
                                   socklen_t *len_out, struct shoal_error *error)
{
    struct addrinfo hints = {.ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM, .ai_flags = AI_NUMERICHOST};
    struct addrinfo *found = NULL;
    char service[8];
    int result;

    snprintf(service, sizeof service, "%u", port);
    result = getaddrinfo(host, service, &hints, &found);
    if (result == EAI_NONAME) {
        hints.ai_flags = 0;
        result = getaddrinfo(host, service, &hints, &found);
    }
    if (result || !found)
        return error_set(error, SHOAL_ADDRESS, 0, "host '%s' does not resolve: %s", host,
                         result ? gai_strerror(result) : "no address");
    memcpy(addr_out, found->ai_addr, found->ai_addrlen);
    *len_out = found->ai_addrlen;
    freeaddrinfo(found);
    return SHOAL_OK;
}
