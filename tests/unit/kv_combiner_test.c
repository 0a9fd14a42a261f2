/* SPDX-License-Identifier: Apache-2.0 */
#include "unit.h"

#include <stdatomic.h>

#include "kv/combiner.h"

#define TARGET 77u

/* Items are carried out by run_held, which waits until the gate is open. */
struct gate {
    pthread_mutex_t mutex;
    pthread_cond_t changed;
    bool is_open;
    unsigned flights;     /* that have begun */
    size_t counts[64];    /* items of each */
    uint64_t targets[64]; /* of its first item; all have the same */
    unsigned kinds[64];
    atomic_uint done;
};

struct call {
    struct combiner *combiner;
    struct gate *gate;
    struct combiner_item item;
    enum shoal_status status;
    int times_run;
};

static void run_held(void *arg, struct combiner_item *const *items, size_t count)
{
    struct gate *gate = ((struct call *)arg)->gate;

    pthread_mutex_lock(&gate->mutex);
    gate->counts[gate->flights] = count;
    gate->targets[gate->flights] = items[0]->target;
    gate->kinds[gate->flights] = items[0]->kind;
    gate->flights++;
    for (size_t i = 0; i < count; i++) {
        struct call *call = container_of(items[i], struct call, item);
        call->times_run++;
        assert_int_equal(call->item.target, items[0]->target);
        assert_int_equal(call->item.kind, items[0]->kind);
    }
    pthread_cond_broadcast(&gate->changed);
    while (!gate->is_open)
        pthread_cond_wait(&gate->changed, &gate->mutex);
    pthread_mutex_unlock(&gate->mutex);
}

static void *call_thread(void *arg)
{
    struct call *call = arg;

    call->status = combiner_run(call->combiner, &call->item, run_held, call);
    atomic_fetch_add(&call->gate->done, 1);
    return NULL;
}

static unsigned flights(struct gate *gate)
{
    unsigned count;

    pthread_mutex_lock(&gate->mutex);
    count = gate->flights;
    pthread_mutex_unlock(&gate->mutex);
    return count;
}

static void open_gate(struct gate *gate)
{
    pthread_mutex_lock(&gate->mutex);
    gate->is_open = true;
    pthread_cond_broadcast(&gate->changed);
    pthread_mutex_unlock(&gate->mutex);
}

static struct call call_of(struct combiner *combiner, struct gate *gate, uint64_t target, size_t len_bytes,
                           int64_t timeout_ms)
{
    return (struct call){
        .combiner = combiner,
        .gate = gate,
        .item = {.target = target, .kind = 1, .len_bytes = len_bytes, .deadline_ms = deadline_after_ms(timeout_ms)}};
}

#define GATE                                                                                                           \
    {                                                                                                                  \
        .mutex = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER                                        \
    }
#define CALLS 20

/* Two flights may be on their way; the rest waits, and travels together when one is back, in equal shares. */
static void what_waits_travels_together(void **state)
{
    struct combiner *combiner = combiner_create(1000);
    struct gate gate = GATE;
    struct call calls[CALLS];
    pthread_t threads[CALLS];

    (void)state;
    for (unsigned i = 0; i < CALLS; i++)
        calls[i] = call_of(combiner, &gate, TARGET, 10, UNIT_WAIT_MS);
    for (unsigned i = 0; i < 2; i++) {
        threads[i] = start_thread(call_thread, &calls[i]);
        wait_until(flights(&gate) == i + 1);
    }
    for (unsigned i = 2; i < CALLS; i++)
        threads[i] = start_thread(call_thread, &calls[i]);
    wait_until(combiner_waiting(combiner) == CALLS - 2);
    open_gate(&gate);
    for (unsigned i = 0; i < CALLS; i++) {
        join_thread(threads[i]);
        assert_int_equal(calls[i].status, SHOAL_OK);
        assert_int_equal(calls[i].times_run, 1);
    }
    assert_int_equal(gate.counts[0], 1);
    assert_int_equal(gate.counts[1], 1);
    assert_int_equal(gate.counts[2], CALLS / 2);
    assert_int_equal(gate.counts[3], CALLS / 2 - 2);
    assert_int_equal(gate.flights, 4);
    combiner_destroy(combiner);
    combiner_destroy(NULL);
}

#define CROWD 80 /* more than there are bits to wake them by, and than travel together */

static void a_crowd_shares_bits(void **state)
{
    struct combiner *combiner = combiner_create(1000);
    struct gate gate = GATE;
    struct call calls[CROWD];
    pthread_t threads[CROWD];
    size_t sum = 0;

    (void)state;
    for (unsigned i = 0; i < CROWD; i++) {
        calls[i] = call_of(combiner, &gate, TARGET, 1, UNIT_WAIT_MS);
        threads[i] = start_thread(call_thread, &calls[i]);
    }
    wait_until(flights(&gate) == 2);
    wait_until(combiner_waiting(combiner) + gate.counts[0] + gate.counts[1] == CROWD);
    open_gate(&gate);
    for (unsigned i = 0; i < CROWD; i++) {
        join_thread(threads[i]);
        assert_int_equal(calls[i].status, SHOAL_OK);
        assert_int_equal(calls[i].times_run, 1);
    }
    for (unsigned i = 0; i < gate.flights; i++) {
        assert_in_range(gate.counts[i], 1, COMBINER_ITEMS_MAX);
        sum += gate.counts[i];
    }
    assert_int_equal(sum, CROWD);
    combiner_destroy(combiner);
}

/* Neither another owner's nor more than the bound. */
static void only_what_fits_travels_together(void **state)
{
    struct combiner *combiner = combiner_create(100);
    struct gate gate = GATE;
    struct call calls[8];
    pthread_t threads[8];
    size_t sum = 0;

    (void)state;
    for (unsigned i = 0; i < 8; i++) /* targets that share a lane */
        calls[i] = call_of(combiner, &gate, i == 5 ? TARGET + (64ull << 32 | 64) : TARGET, 40, UNIT_WAIT_MS);
    for (unsigned i = 0; i < 2; i++) {
        threads[i] = start_thread(call_thread, &calls[i]);
        wait_until(flights(&gate) == i + 1);
    }
    for (unsigned i = 2; i < 8; i++)
        threads[i] = start_thread(call_thread, &calls[i]);
    wait_until(combiner_waiting(combiner) == 6);
    open_gate(&gate);
    for (unsigned i = 0; i < 8; i++) {
        join_thread(threads[i]);
        assert_int_equal(calls[i].times_run, 1);
    }
    for (unsigned i = 0; i < gate.flights; i++) {
        assert_true(gate.counts[i] <= 2);
        sum += gate.counts[i];
    }
    assert_int_equal(sum, 8);
    combiner_destroy(combiner);
}

static void who_waits_too_long_is_not_carried_out(void **state)
{
    struct combiner *combiner = combiner_create(1000);
    struct gate gate = GATE;
    struct call calls[2], late = call_of(combiner, &gate, TARGET, 10, 20);
    pthread_t threads[2];

    (void)state;
    for (unsigned i = 0; i < 2; i++) {
        calls[i] = call_of(combiner, &gate, TARGET, 10, UNIT_WAIT_MS);
        threads[i] = start_thread(call_thread, &calls[i]);
        wait_until(flights(&gate) == i + 1);
    }
    (void)call_thread(&late);
    assert_int_equal(late.status, SHOAL_TIMED_OUT);
    assert_int_equal(late.times_run, 0);
    assert_int_equal(combiner_waiting(combiner), 0);
    open_gate(&gate);
    for (unsigned i = 0; i < 2; i++)
        join_thread(threads[i]);
    combiner_destroy(combiner);
}

static void run_counted(void *arg, struct combiner_item *const *items, size_t count)
{
    (void)arg;
    for (size_t i = 0; i < count; i++)
        container_of(items[i], struct call, item)->times_run++;
}

static void *call_many_counted(void *arg)
{
    struct call *model = arg;

    for (unsigned i = 0; i < 2000; i++) {
        struct call call = call_of(model->combiner, model->gate, TARGET + i % 3, 10, UNIT_WAIT_MS);

        if (combiner_run(call.combiner, &call.item, run_counted, &call) != SHOAL_OK || call.times_run != 1)
            return model;
    }
    return NULL;
}

static void many_threads_lose_nothing(void **state)
{
    struct combiner *combiner = combiner_create(100);
    struct gate gate = GATE;
    struct call model = call_of(combiner, &gate, TARGET, 10, UNIT_WAIT_MS);
    pthread_t threads[16];
    void *result;

    (void)state;
    for (unsigned i = 0; i < 16; i++)
        threads[i] = start_thread(call_many_counted, &model);
    for (unsigned i = 0; i < 16; i++) {
        assert_int_equal(pthread_join(threads[i], &result), 0);
        assert_null(result);
    }
    combiner_destroy(combiner);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_waits_travels_together),     cmocka_unit_test(a_crowd_shares_bits),
        cmocka_unit_test(only_what_fits_travels_together), cmocka_unit_test(who_waits_too_long_is_not_carried_out),
        cmocka_unit_test(many_threads_lose_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
