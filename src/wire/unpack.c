/* SPDX-License-Identifier: Apache-2.0 */
#include "wire/unpack.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#define VARINT_MAX_BYTES 10

enum wire_type { WIRE_VARINT = 0, WIRE_64 = 1, WIRE_LEN = 2, WIRE_32 = 5 };

struct reader {
    const uint8_t *at, *end;
};

static bool read_varint(struct reader *reader, uint64_t *value_out)
{
    uint64_t value = 0;

    for (unsigned i = 0; i < VARINT_MAX_BYTES && reader->at < reader->end; i++) {
        uint8_t byte = *reader->at++;
        value |= (uint64_t)(byte & 0x7f) << 7 * i;
        if (!(byte & 0x80)) {
            *value_out = value;
            return true;
        }
    }
    return false;
}

static bool skip(struct reader *reader, uint64_t len)
{
    if (len > (size_t)(reader->end - reader->at))
        return false;
    reader->at += len;
    return true;
}

/* false: a string has a NUL, or the message is malformed. Nested no deeper than the schema. */
static bool is_clean(const ProtobufCMessageDescriptor *descriptor, const uint8_t *data, size_t len)
{
    struct reader reader = {data, data + len};

    while (reader.at < reader.end) {
        const ProtobufCFieldDescriptor *field;
        uint64_t tag, value;

        if (!read_varint(&reader, &tag))
            return false;
        switch (tag & 7) {
        case WIRE_VARINT:
            if (!read_varint(&reader, &value))
                return false;
            break;
        case WIRE_64:
            if (!skip(&reader, 8))
                return false;
            break;
        case WIRE_32:
            if (!skip(&reader, 4))
                return false;
            break;
        case WIRE_LEN: {
            const uint8_t *body;
            if (!read_varint(&reader, &value))
                return false;
            body = reader.at;
            if (!skip(&reader, value))
                return false;
            field = protobuf_c_message_descriptor_get_field(descriptor, (unsigned)(tag >> 3));
            if (field && field->type == PROTOBUF_C_TYPE_STRING && memchr(body, 0, (size_t)value))
                return false;
            if (field && field->type == PROTOBUF_C_TYPE_MESSAGE && !is_clean(field->descriptor, body, (size_t)value))
                return false;
            break;
        }
        default: /* groups, which protobuf-c does not know either */
            return false;
        }
    }
    return true;
}

void *wire_unpack(const ProtobufCMessageDescriptor *descriptor, ProtobufCAllocator *allocator, size_t len,
                  const uint8_t *data)
{
    return len == 0 || is_clean(descriptor, data, len) ? protobuf_c_message_unpack(descriptor, allocator, len, data)
                                                       : NULL;
}

static void *arena_alloc(void *arg, size_t size)
{
    struct wire_arena *arena = arg;
    size_t rounded = (size + 15) & ~(size_t)15;
    void *memory;

    if (rounded < size || rounded > sizeof arena->space - arena->used) {
        memory = malloc(size);
        arena->is_spilled = true;
        arena->is_out_of_memory |= !memory;
        return memory;
    }
    memory = arena->space + arena->used;
    arena->used += rounded;
    return memory;
}

static void arena_free(void *arg, void *memory)
{
    struct wire_arena *arena = arg;
    uint8_t *at = memory;

    if (at < arena->space || at >= arena->space + sizeof arena->space)
        free(memory);
}

void wire_arena_init(struct wire_arena *arena)
{
    arena->allocator = (ProtobufCAllocator){.alloc = arena_alloc, .free = arena_free, .allocator_data = arena};
    arena->used = 0;
    arena->is_spilled = arena->is_out_of_memory = false;
}

void wire_arena_free(struct wire_arena *arena, ProtobufCMessage *message)
{
    if (message && arena->is_spilled)
        protobuf_c_message_free_unpacked(message, &arena->allocator);
}
