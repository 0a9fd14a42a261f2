/* SPDX-License-Identifier: Apache-2.0 */
/* Rate limits of connections: who has used up what it reserved stops, and its shard's timer lets it go on. */
#include "base/clock.h"
#include "transport/tcp_internal.h"

#define NS_PER_MS 1000000

void tcp_meter_init(struct tcp_meter *meter, struct tcp_shard *shard, struct rate_limiter *limiter,
                    uint64_t *throttled_ns, void (*resume)(void *arg), void *arg)
{
    *meter = (struct tcp_meter){
        .shard = shard, .limiter = limiter, .throttled_ns = throttled_ns, .resume = resume, .arg = arg};
    list_node_init(&meter->node);
}

void tcp_meter_release(struct tcp_meter *meter)
{
    list_remove(&meter->node);
}

static void arm(struct tcp_shard *shard, int64_t ready_ns, int64_t now_ns)
{
    if (loop_timer_is_running(&shard->throttle) && shard->throttle_ns <= ready_ns)
        return;
    shard->throttle_ns = ready_ns;
    loop_timer_start(&shard->throttle, (ready_ns - now_ns + NS_PER_MS - 1) / NS_PER_MS);
}

int64_t tcp_meter_wait_ms(const struct tcp_meter *meter)
{
    return (meter->ready_ns - clock_now_ns() + NS_PER_MS - 1) / NS_PER_MS;
}

bool tcp_meter_take(struct tcp_meter *meter, uint64_t wanted, uint64_t *allowance)
{
    int64_t now_ns = clock_now_ns();

    if (wanted == 0 || tcp_meter_is_waiting(meter))
        return false;
    if (meter->reserved == 0) {
        meter->ready_ns = rate_reserve(meter->limiter, wanted, now_ns, &meter->reserved);
        if (meter->ready_ns > now_ns)
            tcp_count(meter->throttled_ns, (uint64_t)(meter->ready_ns - now_ns));
    }
    if (meter->ready_ns <= now_ns) {
        *allowance += meter->reserved;
        meter->reserved = 0;
        return true;
    }
    list_push_back(&meter->shard->throttled, &meter->node);
    arm(meter->shard, meter->ready_ns, now_ns);
    return false;
}

void tcp_shard_unthrottle(struct tcp_shard *shard)
{
    int64_t now_ns = clock_now_ns(), next_ns = INT64_MAX;
    struct list ready;
    struct list_node *node;

    list_init(&ready);
    LIST_FOR_EACH_SAFE (meter, &shard->throttled, struct tcp_meter, node) {
        if (meter->ready_ns > now_ns)
            continue;
        list_remove(&meter->node);
        list_push_back(&ready, &meter->node);
    }
    /* One that goes on may end others: they leave the list with tcp_meter_release. */
    while ((node = list_pop_front(&ready))) {
        struct tcp_meter *meter = container_of(node, struct tcp_meter, node);

        meter->resume(meter->arg);
    }
    LIST_FOR_EACH (meter, &shard->throttled, struct tcp_meter, node) {
        if (meter->ready_ns < next_ns)
            next_ns = meter->ready_ns;
    }
    if (next_ns != INT64_MAX)
        arm(shard, next_ns, now_ns);
}
