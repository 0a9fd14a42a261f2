/* SPDX-License-Identifier: Apache-2.0 */
#include "unit.h"

#include "transport/rate.h"

#define MS INT64_C(1000000)
#define SECOND (1000 * MS)

static void test_rate_holds(void **state)
{
    static const uint64_t rates[] = {64 << 10, 1000000, 12500000, 1u << 30, 1ull << 40};

    (void)state;
    for (size_t i = 0; i < sizeof rates / sizeof rates[0]; i++) {
        struct rate_limiter limiter;
        int64_t now_ns = 5 * SECOND, begun_ns = now_ns;
        uint64_t moved = 0, most, least, burst, bytes;

        rate_init(&limiter, rates[i]);
        burst = rates[i] / 50 > 65536 ? rates[i] / 50 : 65536;
        /* Somebody who always wants more, for ten seconds: never ahead of the rate by more than the burst. */
        while (now_ns < begun_ns + 10 * SECOND) {
            int64_t ready_ns = rate_reserve(&limiter, UINT64_MAX, now_ns, &bytes);

            if (ready_ns > now_ns)
                now_ns = ready_ns;
            moved += bytes;
            most = (uint64_t)((double)(now_ns - begun_ns) / 1e9 * (double)rates[i]) + burst + limiter.quantum_bytes;
            assert_true(moved <= most + 16);
        }
        least = rates[i] * 10;
        assert_true(moved + limiter.quantum_bytes >= least);
        rate_release(&limiter);
    }
}

/* A timer that is late does not lower the rate; a long silence is not saved up. */
static void test_silence(void **state)
{
    struct rate_limiter limiter;
    int64_t now_ns = SECOND;
    uint64_t at_once = 0, bytes;

    (void)state;
    rate_init(&limiter, 10000000);
    while (rate_reserve(&limiter, 1000, now_ns, &bytes) <= now_ns)
        at_once += bytes;
    assert_in_range(at_once, 200000, 201000); /* 20 ms */
    now_ns += 15 * MS;
    for (at_once = 0; rate_reserve(&limiter, 1000, now_ns, &bytes) <= now_ns;)
        at_once += bytes;
    assert_in_range(at_once, 147000, 151000);
    now_ns += 3600 * SECOND;
    for (at_once = 0; rate_reserve(&limiter, 1000, now_ns, &bytes) <= now_ns;)
        at_once += bytes;
    assert_in_range(at_once, 200000, 201000);
    rate_release(&limiter);
}

/* Of many that want more all the time each gets its part, in the order of asking. */
static void test_fair(void **state)
{
    enum { COUNT = 7 };
    struct rate_limiter limiter;
    int64_t ready_ns[COUNT] = {0}, now_ns = SECOND, last_ns = 0;
    uint64_t reserved[COUNT] = {0}, moved[COUNT] = {0};

    (void)state;
    rate_init(&limiter, 1000000);
    for (unsigned step = 0; step < 20000; step++, now_ns += MS) {
        for (unsigned i = 0; i < COUNT; i++) {
            if (reserved[i] == 0) {
                ready_ns[i] = rate_reserve(&limiter, 1 << 20, now_ns, &reserved[i]);
                assert_true(ready_ns[i] >= last_ns);
                last_ns = ready_ns[i];
            }
            if (ready_ns[i] <= now_ns) {
                moved[i] += reserved[i];
                reserved[i] = 0;
            }
        }
    }
    for (unsigned i = 0; i < COUNT; i++)
        assert_in_range(moved[i], 20 * 1000000 / COUNT * 95 / 100, 20 * 1000000 / COUNT * 105 / 100);
    rate_release(&limiter);
}

static void test_quantum(void **state)
{
    struct rate_limiter limiter;
    uint64_t bytes;

    (void)state;
    rate_init(&limiter, 64 << 10);
    rate_reserve(&limiter, UINT64_MAX, 0, &bytes);
    assert_int_equal(bytes, 4096);
    rate_reserve(&limiter, 1, 0, &bytes);
    assert_int_equal(bytes, 1);
    rate_release(&limiter);
    rate_init(&limiter, 1ull << 40);
    rate_reserve(&limiter, UINT64_MAX, 0, &bytes);
    assert_int_equal(bytes, 4 << 20);
    rate_release(&limiter);
    rate_init(&limiter, 0);
    assert_false(rate_is_limited(&limiter));
    rate_release(&limiter);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rate_holds),
        cmocka_unit_test(test_silence),
        cmocka_unit_test(test_fair),
        cmocka_unit_test(test_quantum),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
