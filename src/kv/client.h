/* SPDX-License-Identifier: Apache-2.0 */
/* What the process around a KV client may need beside shoal/kv.h. */
#ifndef SHOAL_KV_CLIENT_H
#define SHOAL_KV_CLIENT_H

#include <stdbool.h>

#include <shoal/kv.h>

/* The engine behind kv, borrowed; NULL for a connection to a local client. */
struct shoal_engine *kv_engine(struct shoal_kv *kv);
/* Whether the master knows this process now. */
bool kv_is_registered(struct shoal_kv *kv);

#endif
