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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(strings_with_a_nul_are_refused),
        cmocka_unit_test(whatever_comes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
