/* SPDX-License-Identifier: Apache-2.0 */
/* Protobuf messages that strangers send. protobuf-c hands strings out as C strings, which would end at a NUL inside of
 * them: "a\0b" would be taken for "a". */
#ifndef SHOAL_WIRE_UNPACK_H
#define SHOAL_WIRE_UNPACK_H

#include <stddef.h>
#include <stdint.h>

#include <protobuf-c/protobuf-c.h>

/* As protobuf_c_message_unpack; NULL also if a string of the message has a NUL byte. */
void *wire_unpack(const ProtobufCMessageDescriptor *descriptor, ProtobufCAllocator *allocator, size_t len,
                  const uint8_t *data);

#endif
