/* SPDX-License-Identifier: Apache-2.0 */
/* The handshake that begins every connection (control, data, same host). Pure codec; docs/wire-protocol.md has the
 * bytes. Both sides send one hello; the accepting side answers after it has checked the other's. */
#ifndef SHOAL_WIRE_HELLO_H
#define SHOAL_WIRE_HELLO_H

#include <stddef.h>
#include <stdint.h>

#include <shoal/status.h>

#define HELLO_MAX_BYTES 2048     /* whole frame; larger ones are refused unread */
#define HELLO_PREFIX_BYTES 8     /* magic (4), frame length (4): read first */
#define HELLO_NAME_MAX_BYTES 319 /* server name */
#define HELLO_CLUSTER_MAX_BYTES 63
#define HELLO_PROOF_MAX_BYTES 1024 /* room for a later challenge and response */
#define HELLO_VERSION 1

enum hello_channel {
    HELLO_CHANNEL_DATA = 1,    /* transport: one-sided requests */
    HELLO_CHANNEL_CONTROL = 2, /* rpc */
    HELLO_CHANNEL_PROBE = 3,   /* nothing follows: asks who answers at an address */
    HELLO_CHANNEL_LOCAL = 4,   /* transport: same host; over the local socket only, and nothing but PROBE else there */
    HELLO_CHANNEL_UCX = 5,     /* transport: what precedes bytes over UCX */
    HELLO_CHANNEL_CONTROL_UCX = 6, /* rpc, whose frames travel by UCX */
    HELLO_CHANNEL_COUNT,
};

/* Answer of the accepting side; the dialing side sends HELLO_ACCEPT. */
enum hello_verdict {
    HELLO_ACCEPT = 0,
    HELLO_REFUSE_VERSION = 1,
    HELLO_REFUSE_CLUSTER = 2,
    HELLO_REFUSE_CHANNEL = 3,  /* nobody serves it here */
    HELLO_REFUSE_LIMIT = 4,    /* too many connections */
    HELLO_REFUSE_IDENTITY = 5, /* the dialer asked for another instance than this one */
};

struct hello {
    uint16_t version;
    uint8_t channel;                     /* enum hello_channel */
    uint8_t verdict;                     /* enum hello_verdict */
    uint64_t instance;                   /* random number of the sender's process life */
    uint64_t wanted;                     /* instance the dialer expects to reach; 0: any */
    char name[HELLO_NAME_MAX_BYTES + 1]; /* sender's server name */
    char cluster[HELLO_CLUSTER_MAX_BYTES + 1];
    uint16_t proof_kind; /* 0: none */
    uint16_t proof_len;
    uint8_t proof[HELLO_PROOF_MAX_BYTES];
};

/* Encoded length, at most HELLO_MAX_BYTES; out must have that room. */
size_t hello_encode(const struct hello *hello, uint8_t out[HELLO_MAX_BYTES]);
/* Checks the prefix. OK: frame_len_out is the length of the whole frame. PROTOCOL: not ours or too large. */
enum shoal_status hello_frame_len(const uint8_t prefix[HELLO_PREFIX_BYTES], size_t *frame_len_out);
/* Decodes a whole frame. Unknown trailing bytes are ignored (a later version may add fields). PROTOCOL: malformed. */
enum shoal_status hello_decode(const uint8_t *frame, size_t len, struct hello *hello_out);
const char *hello_verdict_text(unsigned verdict);
/* The dialing side's look at the answer: may the connection be used? wanted: the instance it asked for, 0: any. OK,
 * UNREACHABLE (somebody else; errno EPROTONOSUPPORT: nobody serves the
 * channel there), LIMIT (peer is full), PROTOCOL, with a message that names address. */
enum shoal_status hello_judge_answer(const struct hello *answer, const char *address, const char *cluster,
                                     uint64_t wanted, struct shoal_error *error);

#endif
