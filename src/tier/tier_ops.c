/* SPDX-License-Identifier: Apache-2.0 */
#include "tier/tier_ops.h"

static enum shoal_status recover_nothing(struct tier *tier, tier_recovered_fn fn, void *arg, struct shoal_error *error)
{
    (void)tier, (void)fn, (void)arg, (void)error;
    return SHOAL_OK;
}

static enum shoal_status seal_nothing(struct tier *tier, struct tier_space *space, struct shoal_error *error)
{
    (void)tier, (void)space, (void)error;
    return SHOAL_OK;
}

static enum shoal_status persist_nothing(struct tier *tier, struct tier_space *space, const char *key,
                                         uint64_t object_id, struct shoal_error *error)
{
    (void)tier, (void)space, (void)key, (void)object_id, (void)error;
    return SHOAL_OK;
}

static enum shoal_status forget_nothing(struct tier *tier, struct tier_space *space, bool is_durable,
                                        struct shoal_error *error)
{
    (void)tier, (void)space, (void)is_durable, (void)error;
    return SHOAL_OK;
}

static bool maintain_nothing(struct tier *tier)
{
    (void)tier;
    return false;
}

bool tier_ops_fill(const struct tier_ops *kind, bool is_persistent, struct tier_ops *ops_out)
{
    struct tier_ops ops = *kind;

    if (!ops.name || !ops.create || !ops.destroy || !ops.allocate || !ops.release || !ops.data || !ops.write ||
        !ops.read)
        return false;
    if (is_persistent && (!ops.recover || !ops.persist || !ops.forget))
        return false;
    if (!ops.recover)
        ops.recover = recover_nothing;
    if (!ops.seal)
        ops.seal = seal_nothing;
    if (!ops.persist)
        ops.persist = persist_nothing;
    if (!ops.forget)
        ops.forget = forget_nothing;
    if (!ops.maintain)
        ops.maintain = maintain_nothing;
    *ops_out = ops;
    return true;
}
