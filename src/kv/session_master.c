/* SPDX-License-Identifier: Apache-2.0 */
/* Which master is asked: the configured ones in turn, or the leader that one of them names. */
#include <arpa/inet.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "kv/session_internal.h"

#define MASTER_PORT 50051

static enum shoal_status add_master(struct session *session, const char *text, size_t len, struct shoal_error *error)
{
    struct hostport hostport;
    char one[HOSTPORT_TEXT_BYTES];
    enum shoal_status status;

    if (session->master_count == SESSION_MASTERS_MAX)
        return error_set(error, SHOAL_INVALID_ARGUMENT, 0, "more than %u master addresses", SESSION_MASTERS_MAX);
    if (len >= sizeof one)
        return error_set(error, SHOAL_INVALID_ARGUMENT, 0, "master address is longer than %zu bytes", sizeof one - 1);
    memcpy(one, text, len);
    one[len] = '\0';
    status = hostport_parse(&hostport, one, error);
    if (status) {
        error_prefix(error, "master address '%s' (want host:port[,host:port...])", one);
        return status;
    }
    if (hostport.has_port && !hostport.port)
        return error_set(error, SHOAL_INVALID_ARGUMENT, 0, "master address '%s': port 0", one);
    hostport_format(hostport.host, hostport.has_port ? hostport.port : MASTER_PORT,
                    session->masters[session->master_count++]);
    return SHOAL_OK;
}

enum shoal_status session_masters_init(struct session *session, const char *text, struct shoal_error *error)
{
    session->masters = calloc(SESSION_MASTERS_MAX, sizeof *session->masters);
    if (!session->masters)
        return error_no_memory(error);
    for (;;) {
        size_t len = strcspn(text, ",");
        enum shoal_status status = add_master(session, text, len, error);
        if (status)
            return status;
        if (!text[len])
            return SHOAL_OK;
        text += len + 1;
    }
}

void session_master_current(struct session *session, char text_out[HOSTPORT_TEXT_BYTES])
{
    mutex_lock(&session->mutex);
    memcpy(text_out, session->master_named[0] ? session->master_named : session->masters[session->master_current],
           HOSTPORT_TEXT_BYTES);
    mutex_unlock(&session->mutex);
}

void session_master_failed(struct session *session, const char *text)
{
    mutex_lock(&session->mutex);
    if (session->master_named[0]) {
        if (strcmp(session->master_named, text) == 0)
            session->master_named[0] = '\0';
    } else if (strcmp(session->masters[session->master_current], text) == 0) {
        session->master_current = (session->master_current + 1) % session->master_count;
    }
    mutex_unlock(&session->mutex);
}

bool session_master_follow(struct session *session, const char *text, const struct shoal_error *conflict)
{
    /* The message begins with the address of who answered; the leader's is its last word. */
    const char *word = strrchr(conflict->message, ' ');
    struct hostport hostport;
    char leader[HOSTPORT_TEXT_BYTES];

    if (!word || hostport_parse(&hostport, word + 1, NULL) || !hostport.has_port || !hostport.port)
        return false;
    hostport_format(hostport.host, hostport.port, leader);
    if (strcmp(leader, text) == 0)
        return false;
    mutex_lock(&session->mutex);
    memcpy(session->master_named, leader, sizeof leader);
    mutex_unlock(&session->mutex);
    return true;
}

bool session_master_is_numeric(const char *text)
{
    struct hostport hostport;
    struct in_addr v4;

    return !hostport_parse(&hostport, text, NULL) && (hostport.is_v6 || inet_pton(AF_INET, hostport.host, &v4) == 1);
}

enum shoal_status session_master_resolve(const char *text, char address_out[HOSTPORT_TEXT_BYTES],
                                         struct shoal_error *error)
{
    struct hostport hostport;
    struct sockaddr_storage address;
    socklen_t len;
    enum shoal_status status;

    if (session_master_is_numeric(text)) {
        snprintf(address_out, HOSTPORT_TEXT_BYTES, "%s", text);
        return SHOAL_OK;
    }
    status = hostport_parse(&hostport, text, error);
    if (!status)
        status = hostport_resolve(hostport.host, hostport.port, &address, &len, error);
    if (!status)
        sockaddr_format((const struct sockaddr *)&address, address_out);
    return status;
}

void session_master_explain(const char *text, const struct shoal_error *from, struct shoal_error *out)
{
    size_t len = strlen(text);

    if (strncmp(from->message, text, len) == 0 && from->message[len] == ':')
        error_set(out, from->status, from->sys_errno, "master %s", from->message);
    else
        error_set(out, from->status, from->sys_errno, "master %s: %s", text, from->message);
}
