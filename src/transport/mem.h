/* SPDX-License-Identifier: Apache-2.0 */
/* Test double: moves bytes by memcpy between engines of one process, in steps, with the refusals, cancellation and
 * eviction of a real transport. Not registered by itself: transport_register(&transport_mem_ops, ...). */
#ifndef SHOAL_TRANSPORT_MEM_H
#define SHOAL_TRANSPORT_MEM_H

#include "transport/transport.h"

extern const struct transport_ops transport_mem_ops;

#endif
