/* SPDX-License-Identifier: Apache-2.0 */
/* Which transport a peer's requests take, and what happens when the preferred one refuses: a transport that copies
 * inside this process, but is choosy, in front of tcp. */
#include "../contract/transport_fixture.h"

#include <string.h>

#include "base/buf.h"
#include "base/error.h"
#include "content.h"
#include "engine/engine.h"
#include "transport/mem.h"
#include "transport/transport.h"

#define LEN 65536u

enum mode { TAKE, REFUSE, REFUSE_ONCE, DECLINE, HOLD, UNREACHABLE, UNOPENED };

static struct {
    enum mode mode;
    unsigned submits;
    struct shoal_engine *engine;       /* whose requests are refused on its loop */
    struct transport_request *request; /* HOLD: the one that waits */
} picky;

static void refuse(void *arg)
{
    struct transport_request *request = arg;
    struct shoal_error error;

    request->refusal = "in a test";
    request->is_refused_once = picky.mode == REFUSE_ONCE;
    error_set(&error, SHOAL_UNSUPPORTED, 0, "this transport is choosy");
    request->done(request, SHOAL_UNSUPPORTED, &error);
}

static bool picky_is_reachable(struct transport *transport, const char *address, uint64_t instance)
{
    return picky.mode != UNREACHABLE && transport_mem_ops.is_reachable(transport, address, instance);
}

static enum shoal_status picky_peer_open(struct transport *transport, const char *name, const char *address,
                                         uint64_t instance, struct transport_peer **out, struct shoal_error *error)
{
    if (picky.mode == UNOPENED)
        return error_set(error, SHOAL_LIMIT, 0, "no room for a peer");
    return transport_mem_ops.peer_open(transport, name, address, instance, out, error);
}

static bool picky_accepts(struct transport_peer *peer, const struct transport_request *request)
{
    (void)peer;
    (void)request;
    return picky.mode != DECLINE;
}

static void picky_submit(struct transport_peer *peer, struct transport_request *request)
{
    __atomic_fetch_add(&picky.submits, 1, __ATOMIC_RELAXED);
    if (picky.mode == TAKE)
        transport_mem_ops.submit(peer, request);
    else if (picky.mode == HOLD)
        __atomic_store_n(&picky.request, request, __ATOMIC_RELEASE);
    else
        loop_post(engine_loop(picky.engine), &request->task, refuse, request);
}

/* Too late: it refuses all the same. */
static void picky_cancel(struct transport_peer *peer, struct transport_request *request)
{
    (void)peer;
    if (request == picky.request)
        loop_post(engine_loop(picky.engine), &request->task, refuse, request);
    picky.request = NULL;
}

struct pair {
    struct shoal_engine *target, *own;
    struct shoal_segment *segment;
    uint8_t *remote, *local;
};

static void pair_open(struct pair *pair, enum mode mode)
{
    struct shoal_error error;

    pair->target = engine_make(NULL);
    pair->own = engine_make(NULL);
    pair->remote = memory_make(LEN);
    pair->local = memory_make(LEN);
    memset(&picky, 0, sizeof picky);
    picky.engine = pair->own;
    picky.mode = mode;
    content_fill(pair->remote, LEN, 1, 0);
    assert_ok(shoal_engine_register_memory(pair->target, pair->remote, LEN, NULL,
                                           SHOAL_ACCESS_REMOTE_READ | SHOAL_ACCESS_REMOTE_WRITE, NULL, &error),
              &error);
    assert_ok(shoal_engine_register_memory(pair->own, pair->local, LEN, NULL, 0, NULL, &error), &error);
    assert_ok(shoal_segment_open(pair->own, shoal_engine_server_name(pair->target), NULL, &pair->segment, &error),
              &error);
}

static void pair_close(struct pair *pair)
{
    shoal_segment_close(pair->segment);
    shoal_engine_destroy(pair->own);
    shoal_engine_destroy(pair->target);
    memory_drop(pair->remote, LEN);
    memory_drop(pair->local, LEN);
}

static void read_all(struct pair *pair)
{
    struct shoal_error error;

    memset(pair->local, 0, LEN);
    assert_ok(transfer(pair->own, pair->segment, SHOAL_OP_READ, pair->local, pair->remote, 0, LEN, &error), &error);
    assert_int_equal(content_find_difference(pair->local, LEN, 1, 0), -1);
}

static bool has_metric(struct shoal_engine *engine, const char *line)
{
    struct buf out;
    bool is_found;

    buf_init(&out, 1u << 20);
    assert_true(engine_metrics(engine, &out));
    is_found = strstr((const char *)out.data, line) != NULL;
    buf_release(&out);
    return is_found;
}

static void copy_view(void *arg, const struct engine_peer_view *view)
{
    *(struct engine_peer_view *)arg = *view;
}

static struct engine_peer_view view_of(struct pair *pair)
{
    struct engine_peer_view view = {0};

    assert_int_equal(engine_peers_visit(pair->own, copy_view, &view), SHOAL_OK);
    assert_int_equal(view.instance, engine_instance(pair->target));
    assert_int_equal(view.path_count, 2);
    assert_string_equal(view.paths[0].transport, "picky");
    assert_string_equal(view.paths[1].transport, "tcp");
    return view;
}

static void test_refused_peer(void **state)
{
    struct engine_peer_view view = {0};
    struct pair pair;

    (void)state;
    pair_open(&pair, REFUSE);
    assert_int_equal(engine_peers_visit(pair.own, copy_view, &view), SHOAL_OK);
    assert_null(view.transport);
    read_all(&pair);
    read_all(&pair);
    assert_int_equal(picky.submits, 1);
    view = view_of(&pair);
    assert_string_equal(view.transport, "tcp");
    assert_string_equal(view.paths[0].refusal, "in a test");
    assert_string_equal(view.paths[0].text, "this transport is choosy");
    assert_false(view.paths[0].is_in_use);
    assert_true(view.paths[1].is_in_use);
    assert_null(view.paths[1].refusal);
    assert_int_equal(view.paths[1].requests, 2);
    assert_int_equal(view.paths[1].bytes, 2 * LEN);
    assert_true(has_metric(pair.own, "\nshoal_engine_fallbacks_total{transport=\"picky\",reason=\"in a test\"} 1\n"));
    pair_close(&pair);
}

static void test_refused_once(void **state)
{
    struct engine_peer_view view;
    struct pair pair;

    (void)state;
    pair_open(&pair, REFUSE_ONCE);
    read_all(&pair);
    read_all(&pair);
    assert_int_equal(picky.submits, 2);
    view = view_of(&pair);
    assert_null(view.paths[0].refusal);
    assert_int_equal(view.paths[1].requests, 2);
    assert_true(has_metric(pair.own, "\nshoal_engine_fallbacks_total{transport=\"picky\",reason=\"in a test\"} 2\n"));
    picky.mode = TAKE;
    read_all(&pair);
    view = view_of(&pair);
    assert_string_equal(view.transport, "picky");
    assert_int_equal(view.paths[0].requests, 1);
    pair_close(&pair);
}

static void test_declined(void **state)
{
    struct pair pair;

    (void)state;
    pair_open(&pair, DECLINE);
    read_all(&pair);
    assert_int_equal(picky.submits, 0);
    assert_null(view_of(&pair).paths[0].refusal);
    assert_false(has_metric(pair.own, "\nshoal_engine_fallbacks_total{transport"));
    picky.mode = TAKE;
    read_all(&pair);
    assert_int_equal(picky.submits, 1);
    pair_close(&pair);
}

static void test_tried_again(void **state)
{
    struct engine_peer_view view;
    struct pair pair;

    (void)state;
    pair_open(&pair, REFUSE);
    engine_set_path_retry_ms(pair.own, 0);
    read_all(&pair);
    read_all(&pair);
    assert_int_equal(picky.submits, 2);
    assert_true(has_metric(pair.own, "\nshoal_engine_fallbacks_total{transport=\"picky\",reason=\"in a test\"} 1\n"));
    picky.mode = TAKE;
    read_all(&pair);
    view = view_of(&pair);
    assert_string_equal(view.transport, "picky");
    assert_null(view.paths[0].refusal);
    assert_string_equal(view.paths[0].text, "");
    pair_close(&pair);
}

static void test_out_of_reach(void **state)
{
    struct engine_peer_view view;
    struct pair pair;

    (void)state;
    pair_open(&pair, UNREACHABLE);
    read_all(&pair);
    view = view_of(&pair);
    assert_string_equal(view.transport, "tcp");
    assert_string_equal(view.paths[0].refusal, "out of reach");
    assert_false(has_metric(pair.own, "\nshoal_engine_fallbacks_total{transport"));
    pair_close(&pair);

    pair_open(&pair, UNOPENED);
    read_all(&pair);
    read_all(&pair);
    view = view_of(&pair);
    assert_string_equal(view.paths[0].text, "no room for a peer");
    assert_true(
        has_metric(pair.own, "\nshoal_engine_fallbacks_total{transport=\"picky\",reason=\"cannot be opened\"} 1\n"));
    pair_close(&pair);
}

/* Canceled while the transport makes up its mind: the request does not go on over another one. */
static void test_canceled(void **state)
{
    struct shoal_transfer_status status;
    struct shoal_request request;
    struct shoal_batch *batch;
    struct shoal_error error;
    struct pair pair;

    (void)state;
    pair_open(&pair, HOLD);
    request = (struct shoal_request){.op = SHOAL_OP_READ,
                                     .segment = pair.segment,
                                     .local = pair.local,
                                     .remote_addr = (uint64_t)(uintptr_t)pair.remote,
                                     .len_bytes = LEN};
    assert_ok(shoal_batch_create(pair.own, 1, &batch, &error), &error);
    assert_ok(shoal_batch_submit(batch, &request, 1, &error), &error);
    wait_until(__atomic_load_n(&picky.request, __ATOMIC_ACQUIRE) != NULL);
    shoal_batch_cancel(batch);
    assert_status(SHOAL_CANCELED, shoal_batch_wait(batch, PATIENCE_MS, &error), &error);
    assert_int_equal(shoal_batch_status(batch, 0, &status), SHOAL_OK);
    assert_int_equal(status.transferred_bytes, 0);
    assert_int_equal(view_of(&pair).paths[1].requests, 0);
    shoal_batch_destroy(batch);
    pair_close(&pair);
}

static void count_note(void *arg, const char *peer, const char *name, const void *message, size_t len)
{
    (void)peer;
    (void)name;
    (void)message;
    (void)len;
    __atomic_fetch_add((unsigned *)arg, 1, __ATOMIC_RELAXED);
}

/* A transport without notifications leaves them to the next one. */
static void test_notify(void **state)
{
    struct shoal_error error;
    unsigned count = 0;
    struct pair pair;

    (void)state;
    pair_open(&pair, TAKE);
    shoal_engine_set_notify(pair.target, count_note, &count);
    assert_ok(shoal_segment_notify(pair.segment, "tick", "x", 1, NULL, &error), &error);
    assert_int_equal(count, 1);
    assert_int_equal(picky.submits, 0);
    shoal_engine_set_notify(pair.target, NULL, NULL);
    pair_close(&pair);
}

static void test_protocols(void **state)
{
    struct shoal_engine_config config = fixture_config();
    struct shoal_engine *engine = NULL;
    struct shoal_error error;

    (void)state;
    config.protocol = "pigeon";
    assert_status(SHOAL_INVALID_ARGUMENT, shoal_engine_create(&config, NULL, &engine, &error), &error);
    assert_non_null(strstr(error.message, "auto, tcp, local, rdma, ucx"));
    config.protocol = "tcp";
    config.nic_priority_matrix = "{\"cpu:0\":[[\"mlx5_0\"],[]]}";
    assert_status(SHOAL_INVALID_ARGUMENT, shoal_engine_create(&config, NULL, &engine, &error), &error);
    assert_non_null(strstr(error.message, "matrix is for protocol rdma or ucx, not for tcp"));
    config.protocol = NULL;
    assert_status(SHOAL_UNSUPPORTED, shoal_engine_create(&config, NULL, &engine, &error), &error);
    assert_null(engine);
    config.protocol = "rdma";
    config.nic_priority_matrix = "{\"cpu:0\":[[],[\"mlx5_0\"]]}";
    assert_status(SHOAL_INVALID_ARGUMENT, shoal_engine_create(&config, NULL, &engine, &error), &error);
    assert_non_null(strstr(error.message, "NIC priority matrix: cpu:0: the list of preferred devices is empty"));
    assert_null(engine);
    config.protocol = "tcp";
    config.nic_priority_matrix = " {} ";
    engine = engine_make(&config);
    shoal_engine_destroy(engine);
    config.protocol = "";
    config.nic_priority_matrix = "";
    engine = engine_make(&config);
    shoal_engine_destroy(engine);
}

int main(void)
{
    static struct transport_ops ops;
    const struct CMUnitTest tests[] = {
#define CASE(fn) cmocka_unit_test_setup_teardown(fn, fixture_setup, fixture_teardown)
        CASE(test_refused_peer), CASE(test_refused_once), CASE(test_declined), CASE(test_tried_again),
        CASE(test_out_of_reach), CASE(test_canceled),     CASE(test_notify),   CASE(test_protocols),
    };

    ops = transport_mem_ops;
    ops.name = "picky";
    ops.caps &= ~(unsigned)TRANSPORT_CAP_NOTIFY;
    ops.is_reachable = picky_is_reachable;
    ops.peer_open = picky_peer_open;
    ops.accepts = picky_accepts;
    ops.submit = picky_submit;
    ops.cancel = picky_cancel;
    if (transport_register(&ops, NULL) != SHOAL_OK)
        return 1;
    transport_name = "picky";
    return cmocka_run_group_tests(tests, NULL, NULL);
}
