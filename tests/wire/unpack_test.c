/* SPDX-License-Identifier: Apache-2.0 */
/* Messages of strangers: strings with a NUL, at every depth, and everything that is cut off or changed. */
#include <stdlib.h>
#include <string.h>

#include "base/random.h"
#include "wire.h"
#include "wire/master.pb-c.h"
#include "wire/unpack.h"

static size_t pack(uint8_t *out, size_t max)
{
    Shoal__Wire__MasterAnnounceRequest request = SHOAL__WIRE__MASTER_ANNOUNCE_REQUEST__INIT;
    Shoal__Wire__MasterAnnounceRequest__Entry entry = SHOAL__WIRE__MASTER_ANNOUNCE_REQUEST__ENTRY__INIT;
    Shoal__Wire__MasterAnnounceRequest__Entry *entries[] = {&entry, &entry};
    size_t len;

    entry.key = (char *)(uintptr_t) "key-of-an-object";
    entry.object_id = 0x0100;
    entry.len_bytes = UINT64_MAX;
    entry.tier = 3;
    request.instance = 7;
    request.entries = entries;
    request.n_entries = 2;
    request.is_last_held = 1;
    len = shoal__wire__master_announce_request__get_packed_size(&request);
    assert_true(len <= max);
    shoal__wire__master_announce_request__pack(&request, out);
    return len;
}

static void *unpack(const uint8_t *data, size_t len)
{
    return wire_unpack(&shoal__wire__master_announce_request__descriptor, NULL, len, data);
}

static void strings_with_a_nul_are_refused(void **state)
{
    uint8_t data[256], lookup[] = {0x0a, 3, 'a', 'b', 'c'};
    size_t len = pack(data, sizeof data);
    Shoal__Wire__MasterAnnounceRequest *message = unpack(data, len);

    (void)state;
    assert_non_null(message); /* the other fields are full of zero bytes */
    assert_int_equal(message->n_entries, 2);
    assert_string_equal(message->entries[1]->key, "key-of-an-object");
    protobuf_c_message_free_unpacked(&message->base, NULL);
    message = unpack(data, 0);
    assert_non_null(message);
    protobuf_c_message_free_unpacked(&message->base, NULL);
    memset((uint8_t *)memmem(data, len, "key-of", 6) + 3, 0, 1);
    assert_null(unpack(data, len));

    Shoal__Wire__MasterLookupRequest *keys =
        wire_unpack(&shoal__wire__master_lookup_request__descriptor, NULL, sizeof lookup, lookup);
    assert_non_null(keys);
    assert_string_equal(keys->keys[0], "abc");
    protobuf_c_message_free_unpacked(&keys->base, NULL);
    lookup[4] = 0;
    assert_null(wire_unpack(&shoal__wire__master_lookup_request__descriptor, NULL, sizeof lookup, lookup));
}

/* It takes what protobuf-c takes, but for such strings, and never reads beyond the end (the sanitizers look). */
static void whatever_comes(void **state)
{
    uint8_t whole[256];
    size_t len = pack(whole, sizeof whole);
    struct random random;

    (void)state;
    random_init(&random, 1);
    for (unsigned i = 0; i < 20000; i++) {
        size_t cut = (size_t)random_below(&random, len + 1);
        uint8_t *data = malloc(cut + 1);
        ProtobufCMessage *ours, *theirs;

        memcpy(data, whole, cut);
        for (unsigned n = 0; cut && n < i % 4; n++)
            data[random_below(&random, cut)] = (uint8_t)random_below(&random, 256);
        ours = unpack(data, cut);
        theirs = protobuf_c_message_unpack(&shoal__wire__master_announce_request__descriptor, NULL, cut, data);
        if (ours) {
            assert_non_null(theirs);
            protobuf_c_message_free_unpacked(ours, NULL);
        } else if (theirs) {
            assert_non_null(memchr(data, 0, cut));
        }
        if (theirs)
            protobuf_c_message_free_unpacked(theirs, NULL);
        free(data);
    }
}

/* --- the arena --- */

/* count entries with keys of key_len bytes, at most 1024; malloc'ed. */
static uint8_t *pack_many(size_t count, size_t key_len, size_t *len_out)
{
    Shoal__Wire__MasterLookupRequest request = SHOAL__WIRE__MASTER_LOOKUP_REQUEST__INIT;
    char key[1025], **keys = calloc(count, sizeof *keys);
    uint8_t *packed;

    memset(key, 'k', key_len);
    key[key_len] = '\0';
    for (size_t i = 0; i < count; i++)
        keys[i] = key;
    request.n_keys = count;
    request.keys = keys;
    packed = malloc(shoal__wire__master_lookup_request__get_packed_size(&request));
    *len_out = shoal__wire__master_lookup_request__pack(&request, packed);
    free(keys);
    return packed;
}

static void what_does_not_fit_into_the_arena_is_allocated(void **state)
{
    static const struct {
        size_t count, key_len;
        bool is_spilled;
    } cases[] = {{1, 3, false}, {32, 30, false}, {6, 1024, true}, {1000, 20, true}, {1, 1024, false}};

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct wire_arena arena;
        size_t len;
        uint8_t *packed = pack_many(cases[i].count, cases[i].key_len, &len);
        Shoal__Wire__MasterLookupRequest *message;

        wire_arena_init(&arena);
        message = wire_unpack(&shoal__wire__master_lookup_request__descriptor, &arena.allocator, len, packed);
        assert_non_null(message);
        assert_int_equal(message->n_keys, cases[i].count);
        for (size_t n = 0; n < cases[i].count; n++)
            assert_int_equal(strspn(message->keys[n], "k"), cases[i].key_len);
        assert_int_equal(arena.is_spilled, cases[i].is_spilled);
        assert_false(arena.is_out_of_memory);
        wire_arena_free(&arena, &message->base); /* the sanitizers count */
        free(packed);
    }
}

static void a_message_that_ends_early_leaves_nothing_behind(void **state)
{
    size_t len;
    uint8_t *packed = pack_many(12, 1024, &len);

    (void)state;
    for (size_t cut = 1; cut < len; cut += 61) {
        struct wire_arena arena;
        ProtobufCMessage *message;

        wire_arena_init(&arena);
        message =
            protobuf_c_message_unpack(&shoal__wire__master_lookup_request__descriptor, &arena.allocator, cut, packed);
        wire_arena_free(&arena, message);
    }
    free(packed);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(strings_with_a_nul_are_refused),
        cmocka_unit_test(whatever_comes),
        cmocka_unit_test(what_does_not_fit_into_the_arena_is_allocated),
        cmocka_unit_test(a_message_that_ends_early_leaves_nothing_behind),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
