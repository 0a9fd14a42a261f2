/* SPDX-License-Identifier: Apache-2.0 */
/* The largest that an item of a batch can become on the wire: memory for requests is taken by it. */
#include "unit.h"

#include "kv/peer_internal.h"

#define VARINT_BYTES 10
#define VARINT_32_BYTES 5
#define LEN_BYTES 5 /* of what is counted, in front of it */

/* With every field set; keys, values and names empty; nested messages as in memory_bytes. */
static size_t largest(const ProtobufCMessageDescriptor *descriptor, size_t memory_bytes)
{
    size_t bytes = 0;

    for (unsigned i = 0; i < descriptor->n_fields; i++) {
        const ProtobufCFieldDescriptor *field = &descriptor->fields[i];

        assert_true(field->id < 16); /* one byte of tag */
        assert_int_not_equal(field->label, PROTOBUF_C_LABEL_REPEATED);
        switch (field->type) {
        case PROTOBUF_C_TYPE_FIXED64:
            bytes += 1 + 8;
            break;
        case PROTOBUF_C_TYPE_UINT64:
            bytes += 1 + VARINT_BYTES;
            break;
        case PROTOBUF_C_TYPE_UINT32:
            bytes += 1 + VARINT_32_BYTES;
            break;
        case PROTOBUF_C_TYPE_BOOL:
            bytes += 1 + 1;
            break;
        case PROTOBUF_C_TYPE_STRING:
        case PROTOBUF_C_TYPE_BYTES:
            bytes += 1 + LEN_BYTES;
            break;
        case PROTOBUF_C_TYPE_MESSAGE:
            assert_ptr_equal(field->descriptor, &shoal__wire__kv_memory__descriptor);
            bytes += memory_bytes;
            break;
        default:
            fail_msg("%s.%s is of a type that this test does not know", descriptor->name, field->name);
        }
    }
    return bytes;
}

static void items_are_no_longer_than_their_bound(void **state)
{
    const size_t head = 1 + LEN_BYTES; /* of a message in another one */

    (void)state;
    assert_true(head + largest(&shoal__wire__kv_memory__descriptor, 0) <= PEER_MEMORY_OVERHEAD_BYTES);
    assert_true(head + largest(&shoal__wire__kv_read_request__descriptor, 0) <= PEER_ITEM_OVERHEAD_BYTES);
    assert_true(head + largest(&shoal__wire__kv_write_request__descriptor, 0) <= PEER_ITEM_OVERHEAD_BYTES);
}

static void a_batch_is_its_items(void **state)
{
    const ProtobufCMessageDescriptor *batches[] = {&shoal__wire__kv_batch_read_request__descriptor,
                                                   &shoal__wire__kv_batch_write_request__descriptor};

    (void)state;
    for (size_t i = 0; i < 2; i++) {
        assert_int_equal(batches[i]->n_fields, 1);
        assert_true(batches[i]->fields[0].id < 16);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(items_are_no_longer_than_their_bound),
        cmocka_unit_test(a_batch_is_its_items),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
