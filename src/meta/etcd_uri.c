/* SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "meta/etcd.h"

#define DEFAULT_PORT 2379

static enum shoal_status add_endpoint(struct etcd *etcd, const char *text, bool is_tls, struct shoal_error *error)
{
    struct hostport parsed;
    char name[HOSTPORT_TEXT_BYTES];
    if (etcd->endpoint_count == ETCD_ENDPOINTS_MAX)
        return error_set(error, SHOAL_INVALID_ARGUMENT, 0, "metadata URI: more than %d endpoints", ETCD_ENDPOINTS_MAX);
    enum shoal_status status = hostport_parse(&parsed, text, error);
    if (status != SHOAL_OK) {
        error_prefix(error, "metadata URI");
        return status;
    }
    if (parsed.has_port && parsed.port == 0)
        return error_set(error, SHOAL_INVALID_ARGUMENT, 0, "metadata URI: endpoint '%s' has port 0", text);
    struct etcd_endpoint *endpoint = &etcd->endpoints[etcd->endpoint_count++];
    const char *scheme = is_tls ? "https://" : "http://";
    hostport_format(parsed.host, parsed.has_port ? parsed.port : DEFAULT_PORT, name);
    snprintf(endpoint->url, sizeof endpoint->url, "%s%s", scheme, name);
    endpoint->name = endpoint->url + strlen(scheme);
    return SHOAL_OK;
}

static int hex_digit(char c)
{
    if (c >= '0' && c <= '9')
        return c - '0';
    if (c >= 'a' && c <= 'f')
        return c - 'a' + 10;
    return c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}

/* In place. false: a stray percent sign or an encoded NUL. */
static bool percent_decode(char *text)
{
    char *to = text;
    for (const char *from = text; *from; from++) {
        if (*from != '%') {
            *to++ = *from;
            continue;
        }
        int high = hex_digit(from[1]), low = high < 0 ? -1 : hex_digit(from[2]);
        if (low < 0 || (high == 0 && low == 0))
            return false;
        *to++ = (char)(high * 16 + low);
        from += 2;
    }
    *to = '\0';
    return true;
}

static char **parameter(struct etcd *etcd, const char *name)
{
    const struct {
        const char *name;
        char **value;
    } known[] = {
        {"user", &etcd->user},
        {"password", &etcd->password},
        {"cacert", &etcd->http_config.cacert},
        {"cert", &etcd->http_config.cert},
        {"key", &etcd->http_config.key},
    };
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (strcmp(known[i].name, name) == 0)
            return known[i].value;
    return NULL;
}

static enum shoal_status set_parameter(struct etcd *etcd, char *text, struct shoal_error *error)
{
    char *equals = strchr(text, '=');
    if (equals)
        *equals = '\0';
    char **value = parameter(etcd, text);
    if (!value)
        return error_set(error, SHOAL_INVALID_ARGUMENT, 0,
                         "metadata URI: unknown parameter '%s' (want user, password, cacert, cert or key)", text);
    if (!equals || !equals[1])
        return error_set(error, SHOAL_INVALID_ARGUMENT, 0, "metadata URI: parameter '%s' has no value", text);
    if (*value)
        return error_set(error, SHOAL_INVALID_ARGUMENT, 0, "metadata URI: parameter '%s' is given twice", text);
    if (!percent_decode(equals + 1))
        return error_set(error, SHOAL_INVALID_ARGUMENT, 0, "metadata URI: parameter '%s' has a bad percent code", text);
    *value = strdup(equals + 1);
    return *value ? SHOAL_OK : error_no_memory(error);
}

/* The URI wins over the environment. */
static enum shoal_status set_from_environment(struct etcd *etcd, struct shoal_error *error)
{
    static const char *const names[][2] = {{"SHOAL_ETCD_USER", "user"},
                                           {"SHOAL_ETCD_PASSWORD", "password"},
                                           {"SHOAL_ETCD_CACERT", "cacert"},
                                           {"SHOAL_ETCD_CERT", "cert"},
                                           {"SHOAL_ETCD_KEY", "key"}};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        const char *text = getenv(names[i][0]);
        char **value = parameter(etcd, names[i][1]);
        if (!text || !*text || *value)
            continue;
        *value = strdup(text);
        if (!*value)
            return error_no_memory(error);
    }
    return SHOAL_OK;
}

static enum shoal_status check(const struct etcd *etcd, bool is_tls, struct shoal_error *error)
{
    const struct etcd_http_config *config = &etcd->http_config;
    if (!etcd->user != !etcd->password)
        return error_set(error, SHOAL_INVALID_ARGUMENT, 0, "metadata URI: %s is given without %s",
                         etcd->user ? "user" : "password", etcd->user ? "password" : "user");
    if (!config->cert != !config->key)
        return error_set(error, SHOAL_INVALID_ARGUMENT, 0, "metadata URI: %s is given without %s",
                         config->cert ? "cert" : "key", config->cert ? "key" : "cert");
    if (!is_tls && (config->cacert || config->cert))
        return error_set(error, SHOAL_INVALID_ARGUMENT, 0,
                         "metadata URI: certificates are given for an unencrypted endpoint; use etcds://");
    return SHOAL_OK;
}

enum shoal_status etcd_parse_uri(struct etcd *etcd, const char *rest, bool is_tls, struct shoal_error *error)
{
    enum shoal_status status = SHOAL_OK;
    char *text = strdup(rest), *position = NULL;
    if (!text)
        return error_no_memory(error);
    char *query = strchr(text, '?');
    if (query)
        *query++ = '\0';
    size_t len = strlen(text);
    if (len && text[len - 1] == '/')
        text[--len] = '\0';
    if (len == 0 || text[0] == ',' || text[len - 1] == ',' || strstr(text, ",,")) {
        status = error_set(error, SHOAL_INVALID_ARGUMENT, 0, "metadata URI: '%.200s' has an empty endpoint", text);
        goto done;
    }
    etcd->uri = strdup(text);
    if (!etcd->uri) {
        status = error_no_memory(error);
        goto done;
    }
    for (char *part = strtok_r(text, ",", &position); part && status == SHOAL_OK; part = strtok_r(NULL, ",", &position))
        status = add_endpoint(etcd, part, is_tls, error);
    if (status == SHOAL_OK && query)
        for (char *part = strtok_r(query, "&", &position); part && status == SHOAL_OK;
             part = strtok_r(NULL, "&", &position))
            status = set_parameter(etcd, part, error);
    if (status == SHOAL_OK)
        status = set_from_environment(etcd, error);
    if (status == SHOAL_OK)
        status = check(etcd, is_tls, error);
done:
    explicit_bzero(text, strlen(rest));
    free(text);
    return status;
}
