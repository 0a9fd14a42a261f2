/* SPDX-License-Identifier: Apache-2.0 */
/* Frames of the same-host channel: all of one size, no bodies, because bytes move by other means (one process reads the
 * other's memory). Pure codec; docs/wire-protocol.md has the bytes and the order of frames. */
#ifndef SHOAL_WIRE_LOCAL_H
#define SHOAL_WIRE_LOCAL_H

#include <stddef.h>
#include <stdint.h>

#include <shoal/status.h>

#define LOCAL_FRAME_BYTES 128
#define LOCAL_TEXT_BYTES 72
#define LOCAL_VERSION 1
#define LOCAL_RANGE_MAX_BYTES (1ull << 40)
#define LOCAL_SLOTS 256u /* the low bits of a request's id; one request at a time has a slot */

enum local_type {
    LOCAL_HELLO = 1,     /* id: version, addr: of a word in my memory, key: its value. Both sides, first */
    LOCAL_READY = 2,     /* whether I can read you. Both sides, second; text: why not */
    LOCAL_READ = 3,      /* addr, key, len: may I read that range? */
    LOCAL_WRITE = 4,     /* addr, key, len: fill that range from my memory at from, or from a share */
    LOCAL_CANCEL = 5,    /* WRITE, or READ that is not granted: stop. The final answer still comes */
    LOCAL_RELEASE = 6,   /* a granted READ is over, however it went; addr: what could not be read, 0: nothing */
    LOCAL_SHARE = 7,     /* id: of memory that I share, len; a descriptor travels with it. Both sides */
    LOCAL_UNSHARE = 8,   /* id: close it. Both sides */
    LOCAL_GRANT = 16,    /* READ: go ahead, from the range itself or from a share at from */
    LOCAL_DONE = 17,     /* WRITE: all bytes are in memory */
    LOCAL_REFUSE = 18,   /* final answer with code and text */
    LOCAL_REVOKE = 19,   /* a granted READ must end: release it */
    LOCAL_PROGRESS = 20, /* WRITE: len bytes are in memory, the rest is coming. READ: it waits for its turn, len 0 */
};

enum local_code {
    LOCAL_CODE_NONE = 0,
    LOCAL_CODE_INVALID = 1,    /* range, key or permission */
    LOCAL_CODE_CANCELED = 2,   /* answer to CANCEL */
    LOCAL_CODE_UNREADABLE = 3, /* memory is registered, but not accessible */
    LOCAL_CODE_UNABLE = 4,     /* the kernel does not let this range pass; another transport may */
    LOCAL_CODE_NO_MEMORY = 5,
};

enum local_flags {
    LOCAL_FLAG_LIMITED = 1,  /* HELLO: I have a rate limit, which this channel does not know: do not use it */
    LOCAL_FLAG_CAN_READ = 2, /* READY */
    LOCAL_FLAG_SHARES = 4,   /* READY: I have memory that can be shared */
};

struct local_frame {
    uint8_t type; /* enum local_type */
    uint8_t code; /* enum local_code; REFUSE only */
    uint32_t flags;
    uint64_t id; /* chosen by the requesting side */
    uint64_t addr, len, key, from;
    uint64_t share;                  /* 0: none, the memory itself is read */
    char text[LOCAL_TEXT_BYTES + 1]; /* READY, REFUSE */
};

void local_encode(const struct local_frame *frame, uint8_t out[LOCAL_FRAME_BYTES]);
/* PROTOCOL: not a frame, unknown type, a length beyond the bounds, text with control characters. */
enum shoal_status local_decode(const uint8_t in[LOCAL_FRAME_BYTES], struct local_frame *frame_out);
/* What a refusal means for the request. */
enum shoal_status local_code_status(uint8_t code);

#endif
