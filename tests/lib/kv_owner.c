/* SPDX-License-Identifier: Apache-2.0 */
#include "kv_owner.h"

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "tier/backend.h"
#include "tier_fake.h"

#define WAIT_MS 60000

void kv_owner_start(struct kv_owner *owner, const char *name, uint64_t instance, const char *master,
                    uint64_t capacity_bytes, const char *storage_path)
{
    struct endpoint_config endpoint_config = {
        .bind_host = "127.0.0.1", .cluster = "test", .max_connections = 64, .max_handshakes = 16};
    struct rpc_channels_config channels_config = {.cluster = "test", .server_name = name, .instance = instance};
    struct tier_config tier = {.type = storage_path ? TIER_STORAGE : TIER_DRAM,
                               .capacity_bytes = capacity_bytes,
                               .priority = 1,
                               .storage_filepath = (char *)(uintptr_t)storage_path,
                               .numa_node = -1};
    struct tier_backend_config backend_config = {.tiers = &tier, .tier_count = 1};
    struct backend_options options = {.ops_of = NULL};
    struct session_config session_config = {.master = master, .cluster = "test", .server_name = name};
    struct shoal_error error = {.message = ""};

    *owner = (struct kv_owner){.loop = NULL};
    assert_int_equal(loop_create("owner", &owner->loop, NULL), SHOAL_OK);
    endpoint_config.loop = owner->loop;
    assert_int_equal(endpoint_create(&endpoint_config, &owner->endpoint, NULL), SHOAL_OK);
    assert_int_equal(rpc_create(owner->loop, owner->endpoint, &owner->rpc, NULL), SHOAL_OK);
    assert_int_equal(endpoint_start(owner->endpoint, name, NULL), SHOAL_OK);
    assert_int_equal(rpc_channels_create(&channels_config, &owner->channels, NULL), SHOAL_OK);
    if (storage_path && !*storage_path)
        options.ops_of = tier_fake_ops;
    if (backend_create(&backend_config, &options, &owner->backend, &error))
        fail_msg("%s", error.message);
    session_config.loop = owner->loop;
    session_config.rpc = owner->rpc;
    session_config.channels = owner->channels;
    session_config.address = endpoint_address(owner->endpoint);
    session_config.instance = instance;
    session_config.backend = owner->backend;
    session_config.call_timeout_ms = WAIT_MS;
    if (session_create(&session_config, &owner->session, &error))
        fail_msg("%s", error.message);
    if (data_manager_create(owner->backend, owner->session, &owner->manager, &error))
        fail_msg("%s", error.message);
}

void kv_owner_wait_ready(struct kv_owner *owner)
{
    struct call call = {.deadline_ms = deadline_after_ms(WAIT_MS)};
    struct shoal_error error = {.message = ""};

    if (session_wait_ready(owner->session, &call, &error))
        fail_msg("%s", error.message);
}

void kv_owner_stop(struct kv_owner *owner)
{
    data_manager_destroy(owner->manager);
    session_destroy(owner->session);
    tier_backend_destroy(owner->backend);
    rpc_channels_destroy(owner->channels);
    rpc_destroy(owner->rpc);
    endpoint_destroy(owner->endpoint);
    loop_destroy(owner->loop);
    *owner = (struct kv_owner){.loop = NULL};
}

enum shoal_status kv_owner_put(struct kv_owner *owner, const char *key, const char *value)
{
    struct call call = {.deadline_ms = deadline_after_ms(WAIT_MS)};

    return data_manager_put(owner->manager, key, value, strlen(value), 0, &call, NULL, NULL);
}

bool kv_owner_has(struct kv_owner *owner, const char *key, const char *value)
{
    struct tier_object *object;
    size_t len = strlen(value);
    char *copy = malloc(len + 1);
    bool is_right;

    assert_non_null(copy);
    is_right = tier_get(owner->backend, key, &object) == SHOAL_OK;
    if (is_right) {
        is_right = tier_object_len(object) == len && tier_read(object, 0, copy, len, NULL) == SHOAL_OK &&
                   memcmp(copy, value, len) == 0;
        tier_object_unref(object);
    }
    free(copy);
    return is_right;
}

unsigned kv_owner_routes(struct kv_owner *owner, const char *key, uint64_t *object_id_out)
{
    struct call call = {.deadline_ms = deadline_after_ms(WAIT_MS)};
    struct session_route *route;
    struct shoal_error error = {.message = ""};
    unsigned count;

    if (session_lookup(owner->session, &key, 1, &call, &route, &error))
        fail_msg("%s", error.message);
    count = (unsigned)route->replica_count;
    assert_true((count > 0) == (route->status == SHOAL_OK));
    if (object_id_out)
        *object_id_out = route->object_id;
    free(route);
    return count;
}

uint64_t kv_owner_used_bytes(struct kv_owner *owner)
{
    struct tier_usage usage;

    tier_usage(owner->backend, 0, &usage);
    return usage.used_bytes;
}
