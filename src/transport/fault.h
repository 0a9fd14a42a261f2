/* SPDX-License-Identifier: Apache-2.0 */
/* Decorator for tests: any transport with faults on demand. Not registered by itself:
 *
 *     transport_register(&transport_fault_ops, ...);
 *     shoal_engine_install_transport(engine, "fault", "tcp", ...);   // args: the transport inside
 *     fault_add_rule(engine_instance(engine), &(struct fault_rule){.kind = FAULT_CORRUPT, .nth = 3});
 *
 * Without rules it behaves as what is inside. Rules apply to requests of the engine that installed it. */
#ifndef SHOAL_TRANSPORT_FAULT_H
#define SHOAL_TRANSPORT_FAULT_H

#include "transport/transport.h"

enum fault_kind {
    FAULT_FAIL,    /* ends at once with status, nothing is moved */
    FAULT_STALL,   /* moves nothing until it is canceled or the progress deadline passes */
    FAULT_CORRUPT, /* READ: one byte of what arrived is flipped; WRITE: passes */
    FAULT_DELAY,   /* begins delay_ms later */
    FAULT_DROP,    /* the connection breaks under it: every request of the peer ends with UNREACHABLE */
};

struct fault_rule {
    enum fault_kind kind;
    unsigned ops;             /* 1 << enum shoal_op, or'ed; 0: all */
    uint64_t nth;             /* applies to the nth matching request from now, 1-based; 0: see percent */
    unsigned percent;         /* else to this share of them, by the seeded generator; 0: all */
    uint64_t times;           /* how often at most; 0: no limit (1 with nth) */
    enum shoal_status status; /* FAULT_FAIL; SHOAL_OK stands for UNREACHABLE */
    int64_t delay_ms;         /* FAULT_DELAY */
};

/* Any thread. The first rule that applies wins. false: no such engine, or too many rules (32). */
bool fault_add_rule(uint64_t instance, const struct fault_rule *rule);
bool fault_clear_rules(uint64_t instance, uint64_t seed); /* and seeds the generator */
uint64_t fault_applied(uint64_t instance);                /* requests that a rule has hit */

extern const struct transport_ops transport_fault_ops;

#endif
