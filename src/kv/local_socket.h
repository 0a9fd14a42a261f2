/* SPDX-License-Identifier: Apache-2.0 */
/* What travels over the Unix socket between a process and its local client, beside the methods of wire/kv_local.proto:
 * messages of one fixed struct each (SOCK_SEQPACKET keeps them apart; both ends are the same machine and the same
 * user). */
#ifndef SHOAL_KV_LOCAL_SOCKET_H
#define SHOAL_KV_LOCAL_SOCKET_H

#include <stdatomic.h>
#include <stdint.h>

#include "kv/session.h"

#define LOCAL_TOKEN_BYTES 16
#define LOCAL_REGIONS_MAX 16 /* of one session; region 0 is the arena */
#define LOCAL_ITEMS_MAX 256  /* of one request */
#define LOCAL_INLINE_MAX_BYTES (32u << 10)

enum local_method {
    LOCAL_METHOD_ATTACH = 1,
    LOCAL_METHOD_PUT = 2,
    LOCAL_METHOD_GET = 3,
    LOCAL_METHOD_SIZE = 4,
    LOCAL_METHOD_REMOVE = 5,
    LOCAL_METHOD_REMOVE_MATCHING = 6,
    LOCAL_METHOD_LIST = 7,
    LOCAL_METHOD_METRICS = 8,
    LOCAL_METHOD_STATUS = 9,
};

enum local_message_kind {
    LOCAL_HELLO = 1,         /* first; answer: the session in number */
    LOCAL_ADD_REGION = 2,    /* with a memfd, sealed against shrinking; number: its length. Answered */
    LOCAL_REMOVE_REGION = 3, /* no operation uses it any more. Not answered */
    LOCAL_CANCEL = 4,        /* number: operation. Not answered */
};

struct local_message {
    uint32_t kind;
    uint32_t region;
    uint64_t number;
    uint8_t token[LOCAL_TOKEN_BYTES]; /* LOCAL_HELLO */
};

struct local_answer {
    int32_t status;
    uint32_t region;
    uint64_t number;
};

/* In shared memory, at a multiple of 8 bytes: how far the daemon is with the one value of a request. It writes, the
 * process looks. */
struct local_progress {
    _Atomic uint64_t total_bytes; /* 0: not known yet */
    _Atomic uint64_t done_bytes;
};

#endif
