/* SPDX-License-Identifier: Apache-2.0 */
/* Frames of the UCX channel: what two nodes agree on before bytes pass by UCX: where a worker is reached, and which
 * memory may be accessed by which remote key. Pure codec; docs/wire-protocol.md has the bytes and the order of frames.
 *
 * The requesting side sends ASK, LINK, RELEASE, REVOKED, PING, PULL; the serving side sends GRANT, REFUSE, LINKED,
 * REVOKE, STORED. Every ASK gets one GRANT or REFUSE, every LINK one LINKED or REFUSE.
 *
 * Where one-sided operations are not used, bytes travel as messages: active messages of UCX with a header of their own.
 * A chunk is cut into messages of UCX_MESSAGE_BYTES (the last one has the rest). PULL asks for one and is answered by
 * its messages; the messages of a chunk that is written are answered by STORED. REFUSE may be the answer to both. */
#ifndef SHOAL_WIRE_UCX_FRAME_H
#define SHOAL_WIRE_UCX_FRAME_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <shoal/status.h>

#define UCX_FRAME_HEADER_BYTES 48
#define UCX_FRAME_BODY_MAX_BYTES 65536u
#define UCX_FRAME_REASON_MAX_BYTES 255
#define UCX_FRAME_PULL_BYTES 8u /* PULL's body */
#define UCX_MESSAGE_HEADER_BYTES 40u
#define UCX_MESSAGE_BYTES (64u << 10)
#define UCX_CHUNK_MAX_BYTES (1u << 20)

enum ucx_frame_type {
    UCX_FRAME_ASK = 1,     /* addr, len, key: may I access that? code: enum ucx_frame_access */
    UCX_FRAME_LINK = 2,    /* id: of the link; set: devices of the serving side: where is a worker for
                            * it? key: token that messages to ours carry; body: its address */
    UCX_FRAME_RELEASE = 3, /* id: of a grant that is not used any more */
    UCX_FRAME_REVOKED = 4, /* id: answer to REVOKE: nothing uses the grant any more */
    UCX_FRAME_PING = 5,    /* the requesting side lives */
    UCX_FRAME_PULL = 6,    /* id: of the chunk; addr, len: of the serving side's memory; key: id of its grant; body:
                            * the link's id: send it as messages */
    UCX_FRAME_GRANT = 16,  /* answer to ASK: addr, len, key, set; body: remote key of UCX */
    UCX_FRAME_REFUSE = 17, /* answer to ASK, LINK, PULL or messages; code: enum ucx_frame_code; body: text */
    UCX_FRAME_LINKED = 18, /* answer to LINK; key: token that messages to the worker carry; body: its address */
    UCX_FRAME_REVOKE = 19, /* id: this grant ends: answer REVOKED once nothing uses it */
    UCX_FRAME_STORED = 20, /* id: of a chunk that came as messages: all bytes are in their place */
};

enum ucx_frame_access {
    UCX_FRAME_READ = 1,
    UCX_FRAME_WRITE = 2,
    UCX_FRAME_FALLBACK = 4, /* over the fallback devices of that memory */
};

enum ucx_frame_code {
    UCX_FRAME_INVALID = 1,     /* range, key or permission */
    UCX_FRAME_UNREADABLE = 2,  /* memory is registered, but not accessible */
    UCX_FRAME_LIMIT = 3,       /* more than the serving side takes on */
    UCX_FRAME_UNSUPPORTED = 4, /* not with these devices, or not this memory */
};

struct ucx_frame {
    uint8_t type, code;
    uint16_t set; /* index of a set of devices of the serving side */
    uint32_t body_len;
    uint64_t id; /* of the request, grant or link; chosen by the requesting side */
    uint64_t addr, key, len;
};

void ucx_frame_encode(const struct ucx_frame *frame, uint8_t out[UCX_FRAME_HEADER_BYTES]);
/* PROTOCOL: not a header, unknown type, a code that its type does not have, a body beyond its bound, an empty range. */
enum shoal_status ucx_frame_decode(const uint8_t in[UCX_FRAME_HEADER_BYTES], struct ucx_frame *frame_out);
/* Whether the serving side sends it. */
bool ucx_frame_is_answer(uint8_t type);

/* What a message says about its bytes. */
struct ucx_message {
    uint64_t token;       /* of the link, chosen by the receiving side */
    uint64_t id;          /* of the chunk, chosen by the requesting side */
    uint64_t grant, addr; /* where a chunk that is written goes; 0 in one that is read */
    uint32_t len;         /* of the chunk */
    uint32_t offset;      /* in it, of these bytes */
};

void ucx_message_encode(const struct ucx_message *message, uint8_t out[UCX_MESSAGE_HEADER_BYTES]);
/* data_len: of what came with the header. PROTOCOL: not a header of that, not a part that a chunk is cut into. */
enum shoal_status ucx_message_decode(const void *header, size_t header_len, size_t data_len,
                                     struct ucx_message *message_out);
/* How many bytes the message has. */
uint32_t ucx_message_bytes(const struct ucx_message *message);
/* Its bit among those of the chunk, and all of them. */
uint32_t ucx_message_bit(const struct ucx_message *message);
uint32_t ucx_message_all_bits(uint32_t chunk_len);

#endif
