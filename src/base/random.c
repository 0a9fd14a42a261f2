/* SPDX-License-Identifier: Apache-2.0 */
#include "base/random.h"

#include <sys/random.h>
#include <unistd.h>

#include "base/clock.h"

static uint64_t splitmix64(uint64_t *state)
{
    uint64_t z = (*state += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

void random_init(struct random *random, uint64_t seed)
{
    for (int i = 0; i < 4; i++)
        random->state[i] = splitmix64(&seed);
}

static uint64_t rotate_left(uint64_t x, int k)
{
    return x << k | x >> (64 - k);
}

uint64_t random_next(struct random *random)
{
    uint64_t *s = random->state;
    uint64_t result = rotate_left(s[1] * 5, 7) * 9, t = s[1] << 17;

    s[2] ^= s[0];
    s[3] ^= s[1];
    s[1] ^= s[2];
    s[0] ^= s[3];
    s[2] ^= t;
    s[3] = rotate_left(s[3], 45);
    return result;
}

/* Lemire, "Fast random integer generation in an interval": no bias, no division in the common case. */
uint64_t random_below(struct random *random, uint64_t bound)
{
    unsigned __int128 product = (unsigned __int128)random_next(random) * bound;
    uint64_t low = (uint64_t)product;

    if (low < bound) {
        uint64_t threshold = (0 - bound) % bound;
        while (low < threshold) {
            product = (unsigned __int128)random_next(random) * bound;
            low = (uint64_t)product;
        }
    }
    return (uint64_t)(product >> 64);
}

uint64_t random_id(void)
{
    uint64_t id = 0;

    if (getrandom(&id, sizeof id, 0) != (ssize_t)sizeof id || !id) {
        uint64_t seed = (uint64_t)clock_now_ns() ^ (uint64_t)getpid() << 32;
        id = splitmix64(&seed) | 1;
    }
    return id;
}

void random_ids_init(struct random_ids *ids)
{
    ids->next = random_id();
}

uint64_t random_ids_next(struct random_ids *ids)
{
    uint64_t id;

    do {
        uint64_t seed = __atomic_fetch_add(&ids->next, 1, __ATOMIC_RELAXED);
        id = splitmix64(&seed);
    } while (!id);
    return id;
}

int64_t backoff_ms(struct random *random, unsigned attempt, int64_t base_ms, int64_t max_ms)
{
    int64_t cap = base_ms;

    while (attempt-- && cap > 0 && cap < max_ms)
        cap = cap > max_ms / 2 ? max_ms : cap * 2;
    if (cap > max_ms)
        cap = max_ms;
    return cap < 1 ? 1 : 1 + (int64_t)random_below(random, (uint64_t)cap);
}
