/* SPDX-License-Identifier: Apache-2.0 */
/* Frames of the data channel: a header of fixed size, behind some types a body. Pure codec; docs/wire-protocol.md has
 * the bytes and the order of frames.
 *
 * The requesting side sends READ, WRITE, CHUNK, NOTIFY, ABORT; the serving side sends DATA, GRANT, DONE, REFUSE. Every
 * READ, WRITE and NOTIFY gets exactly one final answer (DATA, DONE or REFUSE), in any order. */
#ifndef SHOAL_WIRE_DATA_H
#define SHOAL_WIRE_DATA_H

#include <stddef.h>
#include <stdint.h>

#include <shoal/status.h>

#define DATA_HEADER_BYTES 40
#define DATA_RANGE_MAX_BYTES (1ull << 40)
#define DATA_CHUNK_MAX_BYTES (1u << 20)
#define DATA_REASON_MAX_BYTES 255
#define DATA_NOTIFY_NAME_MAX_BYTES 255
#define DATA_NOTIFY_MAX_BYTES 4096 /* message without name */

enum data_type {
    DATA_READ = 1,    /* addr, key, len: send me that range */
    DATA_WRITE = 2,   /* addr, key, len: may I fill that range? */
    DATA_CHUNK = 3,   /* body of len bytes for a granted WRITE at offset addr */
    DATA_NOTIFY = 4,  /* body: name_len bytes of name, then the message; len: both */
    DATA_ABORT = 5,   /* no answer to this id is wanted any more; an answer that is on its way may still come */
    DATA_DATA = 16,   /* answer to READ: body of len bytes */
    DATA_GRANT = 17,  /* answer to WRITE: send it */
    DATA_DONE = 18,   /* WRITE: all bytes are in memory. NOTIFY: delivered */
    DATA_REFUSE = 19, /* final answer with a code; body: len bytes of text */
};

enum data_code {
    DATA_CODE_NONE = 0,
    DATA_CODE_INVALID = 1,     /* range, key or permission */
    DATA_CODE_CANCELED = 2,    /* answer to ABORT */
    DATA_CODE_UNREADABLE = 3,  /* memory is registered, but not accessible */
    DATA_CODE_UNSUPPORTED = 4, /* no receiver for notifications */
    DATA_CODE_LIMIT = 5,       /* more than the connection may have */
};

struct data_frame {
    uint8_t type;      /* enum data_type */
    uint8_t code;      /* enum data_code; REFUSE only */
    uint32_t name_len; /* NOTIFY only */
    uint64_t id;       /* chosen by the requesting side */
    uint64_t addr, key, len;
};

void data_encode(const struct data_frame *frame, uint8_t out[DATA_HEADER_BYTES]);
/* PROTOCOL: not a header, unknown type, or a length beyond the bounds above. */
enum shoal_status data_decode(const uint8_t in[DATA_HEADER_BYTES], struct data_frame *frame_out);
/* Bytes that follow the header. */
uint64_t data_body_len(const struct data_frame *frame);
/* What a refusal means for the request. */
enum shoal_status data_code_status(uint8_t code);

#endif
