/* SPDX-License-Identifier: Apache-2.0 */
#include "store/claims.h"

#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/random.h"
#include "store/store_internal.h"
#include "wire/control.pb-c.h"

#define TICK_MS 100 /* how often receivers that hold slots and say nothing are looked for */
#define WAIT_MAX_MS 30000

struct claimant {
    struct claims *claims;                   /* borrowed */
    char *name;                              /* owned */
    uint32_t number;                         /* in the handout */
    struct rpc_request *request;             /* its waiting claim; NULL: none */
    const struct rpc_connection *connection; /* of its last claim; may be gone */
    struct list_node node;                   /* in claims->waiting with request */
    int64_t until_ms;                        /* of request */
    struct list_node heard_node;             /* in claims->heard */
    int64_t heard_ms;
};

static void answer(struct claimant *claimant, uint32_t slots, const uint32_t *pieces, uint32_t count)
{
    Shoal__Wire__ClaimResponse response = SHOAL__WIRE__CLAIM_RESPONSE__INIT;
    uint8_t body[16 + HANDOUT_CLAIM_MAX * 5];
    size_t len;

    response.slots = slots;
    response.n_pieces = count;
    response.pieces = (uint32_t *)(uintptr_t)pieces; /* only read */
    len = shoal__wire__claim_response__pack(&response, body);
    rpc_reply(claimant->request, SHOAL_OK, NULL, body, len);
    claimant->request = NULL;
    list_remove(&claimant->node);
}

static void run(struct claims *claims)
{
    struct handout_grant grant;

    while (claims->handout && handout_next(claims->handout, clock_now_ms(), &grant))
        answer(claims->by_number[grant.receiver], grant.slots, grant.pieces, grant.piece_count);
    if (list_is_empty(&claims->waiting))
        loop_timer_stop(&claims->timer);
    else
        loop_timer_start(&claims->timer, TICK_MS);
}

static void claimant_destroy(struct claimant *claimant)
{
    free(claimant->name);
    free(claimant);
}

static void drop(struct claims *claims, struct claimant *claimant)
{
    if (claimant->request)
        answer(claimant, 0, NULL, 0);
    handout_leave(claims->handout, claimant->number);
    claims->by_number[claimant->number] = NULL;
    list_remove(&claimant->heard_node);
    map_remove_str(&claims->by_name, claimant->name);
    claimant_destroy(claimant);
    if (claims->by_name.count == 0) { /* whether it chooses the pieces is decided anew for those who come next */
        handout_destroy(claims->handout);
        claims->handout = NULL;
    }
}

static void note_heard(struct claimant *claimant, int64_t now)
{
    claimant->heard_ms = now;
    list_remove(&claimant->heard_node);
    list_push_back(&claimant->claims->heard, &claimant->heard_node);
}

/* A claimant without an open request is not told of when its connection breaks, and needs not have one. */
static void drop_silent(struct claims *claims, int64_t now)
{
    struct list_node *first;

    while ((first = list_first(&claims->heard))) {
        struct claimant *claimant = container_of(first, struct claimant, heard_node);
        if (now - claimant->heard_ms <= RECEIVER_SILENCE_MS)
            break;
        if (claimant->request) /* it waits for us */
            note_heard(claimant, now);
        else
            drop(claims, claimant);
    }
}

static void on_tick(void *arg)
{
    struct claims *claims = arg;
    int64_t now = clock_now_ms();

    drop_silent(claims, now);
    LIST_FOR_EACH_SAFE (claimant, &claims->waiting, struct claimant, node) {
        if (claimant->until_ms <= now) {
            handout_unclaim(claims->handout, claimant->number);
            answer(claimant, 0, NULL, 0);
        }
    }
    run(claims);
}

enum shoal_status claims_init(struct claims *claims, struct loop *loop, struct shoal_error *error)
{
    enum shoal_status status = loop_timer_init(&claims->timer, loop, on_tick, claims, error);

    if (status)
        return status;
    claims->has_timer = true;
    map_init(&claims->by_name);
    list_init(&claims->heard);
    list_init(&claims->waiting);
    return SHOAL_OK;
}

void claims_release(struct claims *claims)
{
    const struct map_entry *position = NULL;
    struct claimant *claimant;

    if (!claims->has_timer)
        return;
    while ((claimant = map_next(&claims->by_name, &position, NULL, NULL))) {
        if (claimant->request)
            rpc_reply(claimant->request, SHOAL_NOT_FOUND, "payload was withdrawn", NULL, 0);
        claimant_destroy(claimant);
    }
    map_release(&claims->by_name);
    free(claims->by_number);
    claims->by_number = NULL;
    claims->number_capacity = 0;
    handout_destroy(claims->handout);
    claims->handout = NULL;
    loop_timer_release(&claims->timer);
    claims->has_timer = false;
}

void claims_heard(struct claims *claims, const char *name)
{
    struct claimant *claimant = claims->has_timer ? map_get_str(&claims->by_name, name) : NULL;

    if (claimant)
        note_heard(claimant, clock_now_ms());
}

void claims_leave(struct claims *claims, const struct rpc_request *request)
{
    struct claimant *claimant = claims->has_timer ? map_get_str(&claims->by_name, request->peer) : NULL;

    if (!claimant || claimant->connection != request->connection)
        return;
    drop(claims, claimant);
    run(claims);
}

static bool make_room(struct claims *claims, uint32_t number)
{
    struct claimant **grown;
    uint32_t capacity = claims->number_capacity ? claims->number_capacity : 8;

    while (capacity <= number)
        capacity *= 2;
    if (capacity == claims->number_capacity)
        return true;
    grown = realloc(claims->by_number, capacity * sizeof(struct claimant *));
    if (!grown)
        return false;
    claims->by_number = grown;
    claims->number_capacity = capacity;
    return true;
}

static struct claimant *join(struct payload *payload, const char *name)
{
    struct claims *claims = &payload->claims;
    struct handout_config config = {.piece_count = payload->layout.piece_count,
                                    .piece_bytes = payload->layout.piece_size,
                                    .chooses = payload->is_complete,
                                    .seed = random_id()};
    struct claimant *claimant = calloc(1, sizeof *claimant);

    if (!claimant)
        return NULL;
    claimant->claims = claims;
    claimant->number = HANDOUT_NONE;
    claimant->name = strdup(name);
    if (!claimant->name || (!claims->handout && handout_create(&config, &claims->handout)))
        goto fail;
    claimant->number = handout_join(claims->handout);
    if (claimant->number == HANDOUT_NONE)
        goto fail;
    if (!make_room(claims, claimant->number) || !map_put_str(&claims->by_name, name, claimant)) {
        handout_leave(claims->handout, claimant->number);
        goto fail;
    }
    claims->by_number[claimant->number] = claimant;
    list_push_back(&claims->heard, &claimant->heard_node);
    return claimant;
fail:
    if (claims->by_name.count == 0) {
        handout_destroy(claims->handout);
        claims->handout = NULL;
    }
    claimant_destroy(claimant);
    return NULL;
}

static void on_abort(struct rpc_request *request)
{
    struct claimant *claimant = request->arg;
    struct claims *claims = claimant->claims;

    claimant->request = NULL;
    list_remove(&claimant->node);
    drop(claims, claimant);
    run(claims);
}

void claims_request(struct payload *payload, struct rpc_request *request, uint32_t wanted, uint32_t outstanding,
                    uint32_t wait_ms, const uint32_t *taken, size_t taken_count)
{
    struct claims *claims = &payload->claims;
    struct claimant *claimant;
    int64_t now = clock_now_ms();

    drop_silent(claims, now);
    claimant = map_get_str(&claims->by_name, request->peer);
    if (!claimant && !(claimant = join(payload, request->peer))) {
        rpc_reply(request, SHOAL_LIMIT, "no memory or too many receivers", NULL, 0);
        return;
    }
    note_heard(claimant, now);
    claimant->connection = request->connection;
    for (size_t i = 0; i < taken_count; i++) {
        if (!handout_taken(claims->handout, claimant->number, taken[i])) {
            rpc_reply(request, SHOAL_PROTOCOL, "no such piece", NULL, 0);
            return;
        }
    }
    if (claimant->request) /* replaced */
        answer(claimant, 0, NULL, 0);
    claimant->request = request;
    claimant->until_ms = now + (wait_ms < WAIT_MAX_MS ? (int64_t)wait_ms : WAIT_MAX_MS);
    request->on_abort = on_abort;
    request->arg = claimant;
    list_push_back(&claims->waiting, &claimant->node);
    if (!handout_claim(claims->handout, claimant->number, wanted, outstanding, now))
        answer(claimant, 0, NULL, 0);
    run(claims);
}
