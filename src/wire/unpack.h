/* SPDX-License-Identifier: Apache-2.0 */
/* Protobuf messages that strangers send. protobuf-c hands strings out as C strings, which would end at a NUL inside of
 * them: "a\0b" would be taken for "a". */
#ifndef SHOAL_WIRE_UNPACK_H
#define SHOAL_WIRE_UNPACK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <protobuf-c/protobuf-c.h>

/* As protobuf_c_message_unpack; NULL also if a string of the message has a NUL byte. */
void *wire_unpack(const ProtobufCMessageDescriptor *descriptor, ProtobufCAllocator *allocator, size_t len,
                  const uint8_t *data);

/* Allocator for unpacking small messages without malloc; lives on the stack. What does not fit is malloc'ed. */
struct wire_arena {
    ProtobufCAllocator allocator;
    size_t used;
    bool is_spilled;       /* some of it was malloc'ed */
    bool is_out_of_memory; /* it was too small, and malloc failed */
    _Alignas(16) uint8_t space[6144];
};
void wire_arena_init(struct wire_arena *arena);
/* Instead of free_unpacked: frees what was malloc'ed of a message that was unpacked there. NULL is allowed. */
void wire_arena_free(struct wire_arena *arena, ProtobufCMessage *message);

#endif
