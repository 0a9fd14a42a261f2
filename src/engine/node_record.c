/* SPDX-License-Identifier: Apache-2.0 */
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/error.h"
#include "engine/engine_internal.h"

static void read_line(const char *path, char *out, size_t size)
{
    FILE *file = fopen(path, "re");

    out[0] = '\0';
    if (!file)
        return;
    if (fgets(out, (int)size, file))
        out[strcspn(out, "\n")] = '\0';
    fclose(file);
}

void node_record_own(struct node_record *record, const struct shoal_engine *engine)
{
    ssize_t len;

    memset(record, 0, sizeof *record);
    snprintf(record->name, sizeof record->name, "%s", engine->server_name);
    snprintf(record->address, sizeof record->address, "%s", engine->address);
    record->instance = endpoint_instance(engine->endpoint);
    read_line("/proc/sys/kernel/random/boot_id", record->boot_id, sizeof record->boot_id);
    len = readlink("/proc/self/ns/net", record->netns, sizeof record->netns - 1);
    record->netns[len > 0 ? len : 0] = '\0';
}

char *node_record_encode(const struct node_record *record)
{
    char instance[17];
    char *text = NULL;
    json_t *json;

    snprintf(instance, sizeof instance, "%016llx", (unsigned long long)record->instance);
    json = json_pack("{s:i, s:s, s:s, s:s, s:[s], s:s, s:s}", "v", 1, "name", record->name, "addr", record->address,
                     "instance", instance, "transports", "tcp", "boot_id", record->boot_id, "netns", record->netns);
    if (json)
        text = json_dumps(json, JSON_COMPACT);
    json_decref(json);
    return text;
}

static bool copy_text(json_t *json, const char *key, char *out, size_t size)
{
    const char *text = json_string_value(json_object_get(json, key));
    size_t len = text ? strlen(text) : 0;

    if (!text || len >= size)
        return false;
    memcpy(out, text, len + 1);
    return true;
}

enum shoal_status node_record_decode(struct node_record *record, const char *text, size_t len,
                                     struct shoal_error *error)
{
    json_error_t why;
    json_t *json = json_loadb(text, len, 0, &why);
    const char *instance;
    enum shoal_status status = SHOAL_OK;
    struct node_record decoded;
    char *end = NULL;

    if (!json)
        return error_set(error, SHOAL_PROTOCOL, 0, "node entry is not JSON: %s", why.text);
    memset(&decoded, 0, sizeof decoded);
    instance = json_string_value(json_object_get(json, "instance"));
    if (instance)
        decoded.instance = strtoull(instance, &end, 16);
    if (json_integer_value(json_object_get(json, "v")) != 1 || !instance || *end || !decoded.instance ||
        !copy_text(json, "name", decoded.name, sizeof decoded.name) ||
        !copy_text(json, "addr", decoded.address, sizeof decoded.address))
        status = error_set(error, SHOAL_PROTOCOL, 0, "node entry lacks a valid version, name, addr or instance");
    (void)copy_text(json, "boot_id", decoded.boot_id, sizeof decoded.boot_id);
    (void)copy_text(json, "netns", decoded.netns, sizeof decoded.netns);
    json_decref(json);
    if (status == SHOAL_OK)
        *record = decoded;
    return status;
}
