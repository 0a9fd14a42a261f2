/* SPDX-License-Identifier: Apache-2.0 */
#include "kv_world.h"

#include <stdio.h>
#include <stdlib.h>

#include "base/random.h"
#include "tmpdir.h"

#define TIERS "{\"tiers\":[{\"type\":\"DRAM\",\"capacity\":\"32MiB\"}]}"

bool is_thin;
const struct shoal_call patient = {.struct_size = sizeof patient, .timeout_ms = PATIENCE_MS};

void expect_at(enum shoal_status got, enum shoal_status wanted, const struct shoal_error *error, const char *file,
               int line)
{
    if (got == wanted)
        return;
    print_error("wanted %s, got %s: %s\n", shoal_status_name(wanted), shoal_status_name(got),
                got ? error->message : "");
    _fail(file, line);
}
/* Content that tells where it is cut or mixed. */
void fill(void *to, size_t len, uint64_t seed)
{
    struct random random;
    unsigned char *bytes = to;

    random_init(&random, seed);
    for (size_t i = 0; i < len; i += sizeof(uint64_t)) {
        uint64_t word = random_next(&random);

        memcpy(bytes + i, &word, len - i < sizeof word ? len - i : sizeof word);
    }
}

void *content(size_t len, uint64_t seed)
{
    void *data = malloc(len + 1);

    fill(data, len, seed);
    return data;
}

void put(struct shoal_kv *kv, const char *key, size_t len, uint64_t seed)
{
    void *data = content(len, seed);

    EXPECT(OK, shoal_kv_put(kv, key, data, len, NULL, &patient, &error));
    free(data);
}

void check_value(struct shoal_kv *kv, const char *key, size_t len, uint64_t seed)
{
    void *wanted = content(len, seed), *got = NULL, *into = malloc(len + 1);
    uint64_t got_len = 77, size = 77;
    int exists = 7;

    EXPECT(OK, shoal_kv_get(kv, key, &patient, &got, &got_len, &error));
    assert_int_equal(got_len, len);
    assert_true(len ? memcmp(got, wanted, len) == 0 : got == NULL);
    memset(into, 0xee, len + 1);
    EXPECT(OK, shoal_kv_get_into(kv, key, into, len, &patient, &got_len, &error));
    assert_int_equal(got_len, len);
    assert_memory_equal(into, wanted, len);
    assert_int_equal(((unsigned char *)into)[len], 0xee);
    EXPECT(OK, shoal_kv_size(kv, key, &patient, &size, &error));
    assert_int_equal(size, len);
    EXPECT(OK, shoal_kv_exist(kv, key, &patient, &exists, &error));
    assert_int_equal(exists, 1);
    free(wanted);
    free(got);
    free(into);
}

void check_absent(struct shoal_kv *kv, const char *key)
{
    void *data = NULL;
    uint64_t len = 0;
    int exists = 7;

    EXPECT_SAYING(NOT_FOUND, key, shoal_kv_get(kv, key, &patient, &data, &len, &error));
    assert_null(data);
    EXPECT(NOT_FOUND, shoal_kv_size(kv, key, &patient, &len, &error));
    EXPECT(OK, shoal_kv_exist(kv, key, &patient, &exists, &error));
    assert_int_equal(exists, 0);
}

/* --- world --- */

struct shoal_kv *open_kv(struct fixture *fixture, const char *tiers)
{
    const struct shoal_kv_config config = {.struct_size = sizeof config,
                                           .master = fixture->master.address,
                                           .metadata_uri = fixture->uri,
                                           .tiers = tiers,
                                           .arena_bytes = 8 * MIB};
    struct shoal_kv *kv = NULL;

    EXPECT(OK, shoal_kv_open(&config, &patient, &kv, &error));
    return kv;
}

struct shoal_kv *open_thin(struct fixture *fixture, uint64_t arena_bytes)
{
    char address[64];
    const struct shoal_kv_config config = {.struct_size = sizeof config, .client = address, .arena_bytes = arena_bytes};
    struct shoal_kv *kv = NULL;

    snprintf(address, sizeof address, "127.0.0.1:%u", local_service_port(fixture->local));
    EXPECT(OK, shoal_kv_open(&config, &patient, &kv, &error));
    return kv;
}

void serve_local(struct fixture *fixture, uint16_t port, uint64_t max_bytes)
{
    const struct local_service_config config = {
        .kv = fixture->b, .port = port, .max_clients = 8, .max_bytes = max_bytes};

    EXPECT(OK, local_service_create(&config, &fixture->local, &error));
}

int kv_world_setup(void **state)
{
    struct fixture *fixture = calloc(1, sizeof *fixture);

    fixture->dir = tmpdir_make();
    snprintf(fixture->uri, sizeof fixture->uri, "sqlite:%s/meta.db", fixture->dir);
    kv_master_start(&fixture->master, 0, 3000, 50);
    fixture->a = open_kv(fixture, TIERS);
    fixture->b = open_kv(fixture, TIERS);
    serve_local(fixture, 0, 0);
    fixture->third = is_thin ? open_thin(fixture, 8 * MIB) : open_kv(fixture, NULL);
    *state = fixture;
    return 0;
}

int kv_world_teardown(void **state)
{
    struct fixture *fixture = *state;

    shoal_kv_close(fixture->third);
    local_service_destroy(fixture->local);
    shoal_kv_close(fixture->b);
    shoal_kv_close(fixture->a);
    kv_master_stop(&fixture->master);
    tmpdir_remove(fixture->dir);
    free(fixture);
    return 0;
}

void close_a(struct fixture *fixture)
{
    shoal_kv_close(fixture->a);
    fixture->a = NULL;
}
