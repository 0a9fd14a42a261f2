/* SPDX-License-Identifier: Apache-2.0 */
/* Frames of the UCX channel: what two nodes agree on before bytes pass by UCX: where a worker is reached, and which
 * memory may be accessed by which remote key. Pure codec; docs/wire-protocol.md has the bytes and the order of frames.
 *
 * The requesting side sends ASK, LINK, RELEASE, REVOKED, PING, PULL; the serving side sends GRANT, REFUSE, LINKED,
 * REVOKE, PULLED. Every ASK gets one GRANT or REFUSE, every LINK one LINKED or REFUSE, every PULL one PULLED (or the
 * connection ends). */
#ifndef SHOAL_WIRE_UCX_FRAME_H
#define SHOAL_WIRE_UCX_FRAME_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <shoal/status.h>

#define UCX_FRAME_HEADER_BYTES 48
#define UCX_FRAME_BODY_MAX_BYTES 65536u
#define UCX_FRAME_REASON_MAX_BYTES 255
#define UCX_FRAME_PULL_BYTES 16u /* of PULL's body before the remote key */

enum ucx_frame_type {
    UCX_FRAME_ASK = 1,     /* addr, len, key: may I access that? code: enum ucx_frame_access */
    UCX_FRAME_LINK = 2,    /* id: of the link; set: devices of the serving side: where is a worker for
                            * it? body: address of ours */
    UCX_FRAME_RELEASE = 3, /* id: of a grant that is not used any more */
    UCX_FRAME_REVOKED = 4, /* id: answer to REVOKE: nothing uses the grant any more */
    UCX_FRAME_PING = 5,    /* the requesting side lives */
    UCX_FRAME_PULL = 6,   /* id; addr, len: of the serving side's memory; key: id of its grant; body: the link's id, the
                           * address here (8 bytes each), remote key: put it there */
    UCX_FRAME_GRANT = 16, /* answer to ASK: addr, len, key, set; body: remote key of UCX */
    UCX_FRAME_REFUSE = 17, /* answer to ASK or LINK; code: enum ucx_frame_code; body: text */
    UCX_FRAME_LINKED = 18, /* answer to LINK; body: address of the worker */
    UCX_FRAME_REVOKE = 19, /* id: this grant ends: answer REVOKED once nothing uses it */
    UCX_FRAME_PULLED = 20, /* answer to PULL: all bytes are there */
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

#endif
