/* SPDX-License-Identifier: Apache-2.0 */
/* Which master is asked: the configured ones in turn, or the leader that one of them names. */
#include <arpa/inet.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "kv/election_key.h"
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

static bool is_metadata_uri(const char *text)
{
    return strstr(text, "://") || strncmp(text, "sqlite:", 7) == 0;
}

static enum shoal_status open_metadata(struct session *session, const char *uri, struct shoal_error *error)
{
    enum shoal_status status = shoal_cancel_create(&session->cancel);

    session->election_key = election_key(session->cluster);
    if (status || !session->election_key)
        return error_no_memory(error);
    return meta_open(uri, &session->meta, error);
}

enum shoal_status session_masters_init(struct session *session, const char *text, struct shoal_error *error)
{
    if (strstr(text, "://") && strncmp(text, "etcd://", 7) != 0 && strncmp(text, "etcds://", 8) != 0 &&
        strncmp(text, "sqlite:", 7) != 0)
        return error_set(
            error, SHOAL_INVALID_ARGUMENT, 0,
            "master address '%.200s': want HOST:PORT[,HOST:PORT...], or etcd://HOST:PORT[,HOST:PORT...] where"
            " masters choose a leader",
            text);
    if (is_metadata_uri(text))
        return open_metadata(session, text, error);
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

void session_masters_release(struct session *session)
{
    meta_close(session->meta);
    shoal_cancel_destroy(session->cancel);
    free(session->election_key);
    free(session->masters);
}

bool session_master_current(struct session *session, char text_out[HOSTPORT_TEXT_BYTES])
{
    bool is_known = true;

    mutex_lock(&session->mutex);
    if (session->master_named[0])
        memcpy(text_out, session->master_named, HOSTPORT_TEXT_BYTES);
    else if (!session->meta)
        memcpy(text_out, session->masters[session->master_current], HOSTPORT_TEXT_BYTES);
    else
        is_known = false;
    mutex_unlock(&session->mutex);
    if (!is_known)
        snprintf(text_out, HOSTPORT_TEXT_BYTES, "of cluster '%s'", session->cluster);
    return is_known;
}

enum shoal_status session_master_find(struct session *session, const struct call *call,
                                      char text_out[HOSTPORT_TEXT_BYTES], struct shoal_error *error)
{
    struct meta_bytes key = {.data = session->election_key};
    struct hostport hostport;
    struct meta_entry entry;
    enum shoal_status status;
    bool is_found;

    if (session_master_current(session, text_out))
        return SHOAL_OK;
    key.len = strlen(session->election_key);
    status = meta_get(session->meta, key, call, &is_found, &entry, error);
    if (status)
        return status;
    if (!is_found)
        return error_set(error, SHOAL_UNREACHABLE, 0, "no master leads: there is no key %s", session->election_key);
    status = hostport_parse(&hostport, entry.value, error);
    if (!status && (!hostport.has_port || !hostport.port))
        status = error_set(error, SHOAL_INVALID_ARGUMENT, 0, "'%.60s' has no port", entry.value);
    if (status) {
        error_prefix(error, "value of key %s", session->election_key);
    } else {
        hostport_format(hostport.host, hostport.port, text_out);
        mutex_lock(&session->mutex);
        memcpy(session->master_named, text_out, HOSTPORT_TEXT_BYTES);
        mutex_unlock(&session->mutex);
    }
    meta_entry_release(&entry);
    return status;
}

void session_master_failed(struct session *session, const char *text)
{
    mutex_lock(&session->mutex);
    if (session->master_named[0]) {
        if (strcmp(session->master_named, text) == 0)
            session->master_named[0] = '\0';
    } else if (!session->meta && strcmp(session->masters[session->master_current], text) == 0) {
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
