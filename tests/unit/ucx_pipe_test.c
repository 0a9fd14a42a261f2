/* SPDX-License-Identifier: Apache-2.0 */
/* Streams of bytes by active messages of UCX: order, windows, and peers that send what they must not. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/endian.h"
#include "rpc/ucx_pipe.h"
#include "rpc_protocol.h"
#include "transport/ucx_lib.h"

#define WAIT_MS 60000
#define WINDOW UCX_PIPE_WINDOW_BYTES

struct end {
    struct ucx_port *port;
    struct ucx_pipe *pipe;
    struct buf description;
};

struct fixture {
    struct ucx_carrier *carrier;
    struct end a, b;
    /* a peer that speaks UCX by itself, connected to a */
    const struct ucx_lib *lib;
    ucp_context_h context;
    ucp_worker_h worker;
    ucp_ep_h ep;
    uint64_t token; /* of a */
    uint64_t bytes_of_a;
};

static void end_open(struct fixture *fixture, struct end *end)
{
    assert_int_equal(ucx_port_open(fixture->carrier, true, &end->port, NULL), SHOAL_OK);
    assert_int_equal(ucx_pipe_create(end->port, end, &end->pipe, NULL), SHOAL_OK);
    buf_init(&end->description, UCX_FRAME_HEADER_BYTES + UCX_FRAME_BODY_MAX_BYTES);
    assert_true(ucx_pipe_describe(end->pipe, UCX_FRAME_LINK, &end->description));
}

static void end_connect(struct end *end, const struct buf *peer)
{
    struct ucx_frame frame;

    assert_int_equal(ucx_frame_decode(peer->data, &frame), SHOAL_OK);
    assert_int_equal(frame.body_len + UCX_FRAME_HEADER_BYTES, peer->len);
    assert_int_equal(ucx_pipe_connect(end->pipe, &frame, peer->data + UCX_FRAME_HEADER_BYTES, NULL), SHOAL_OK);
}

static void end_close(struct end *end)
{
    ucx_pipe_close(end->pipe);
    ucx_port_close(end->port);
    buf_release(&end->description);
    memset(end, 0, sizeof *end);
}

static int setup(void **state)
{
    struct fixture *fixture = calloc(1, sizeof *fixture);

    setenv("MC_RPC_PROTOCOL", "ucx", 1);
    if (!rpc_protocol_is_usable()) {
        free(fixture);
        *state = NULL;
        return 0;
    }
    assert_int_equal(ucx_carrier_open("ucx", &fixture->carrier, NULL), SHOAL_OK);
    end_open(fixture, &fixture->a);
    end_open(fixture, &fixture->b);
    *state = fixture;
    return 0;
}

static int teardown(void **state)
{
    struct fixture *fixture = *state;

    if (!fixture)
        return 0;
    if (fixture->worker) {
        ucp_request_param_t param = {.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS, .flags = UCP_EP_CLOSE_FLAG_FORCE};
        ucs_status_ptr_t closing = fixture->ep ? fixture->lib->ep_close_nbx(fixture->ep, &param) : NULL;

        for (int i = 0; i < 1000; i++)
            fixture->lib->worker_progress(fixture->worker);
        if (UCS_PTR_IS_PTR(closing))
            fixture->lib->request_free(closing);
        fixture->lib->worker_destroy(fixture->worker);
        fixture->lib->cleanup(fixture->context);
    }
    end_close(&fixture->a);
    end_close(&fixture->b);
    ucx_carrier_close(fixture->carrier);
    free(fixture);
    return 0;
}

#define SKIP_WITHOUT_UCX(fixture)                                                                                      \
    do {                                                                                                               \
        if (!(fixture)) {                                                                                              \
            skip();                                                                                                    \
            return;                                                                                                    \
        }                                                                                                              \
    } while (0)

static void drive(struct fixture *fixture)
{
    ucx_port_progress(fixture->a.port);
    ucx_port_progress(fixture->b.port);
    if (fixture->worker)
        fixture->lib->worker_progress(fixture->worker);
}

static uint8_t nth(uint64_t offset)
{
    return (uint8_t)(offset * 13 + (offset >> 12));
}

/* Writes from a to b in pieces of all sizes, reads in pieces of other sizes, sometimes into what is expected. */
static void bytes_keep_their_order(void **state)
{
    enum { TOTAL = 8 << 20 };
    struct fixture *fixture = *state;
    int64_t deadline = deadline_after_ms(WAIT_MS);
    uint8_t *data = malloc(TOTAL), *got = malloc(TOTAL);
    size_t written = 0, read = 0, step = 1;

    SKIP_WITHOUT_UCX(fixture);
    for (size_t i = 0; i < TOTAL; i++)
        data[i] = nth(i);
    end_connect(&fixture->a, &fixture->b.description);
    end_connect(&fixture->b, &fixture->a.description);
    while (read < TOTAL) {
        size_t want = (step * 7919) % 200000 + 1, room = (step * 104729) % 150000 + 1;
        struct iovec parts[2];

        assert_false(deadline_is_past(deadline));
        if (want > TOTAL - written)
            want = TOTAL - written;
        if (room > TOTAL - read)
            room = TOTAL - read;
        written += ucx_pipe_write(fixture->a.pipe, data + written, want, step % 2);
        assert_true(written - read <= WINDOW);
        parts[0] = (struct iovec){got + read, room / 3};
        parts[1] = (struct iovec){got + read + room / 3, room - room / 3};
        if (step % 3 == 0 && !ucx_pipe_has_come(fixture->b.pipe)) {
            ucx_pipe_expect(fixture->b.pipe, parts, 2);
            drive(fixture);
            read += ucx_pipe_expected(fixture->b.pipe);
        } else {
            drive(fixture);
            read += ucx_pipe_read(fixture->b.pipe, parts, 2);
        }
        assert_false(ucx_pipe_has_failed(fixture->a.pipe) || ucx_pipe_has_failed(fixture->b.pipe));
        step++;
    }
    assert_memory_equal(data, got, TOTAL);
    while (!ucx_pipe_is_sent(fixture->a.pipe)) {
        assert_false(deadline_is_past(deadline));
        drive(fixture);
    }
    free(data);
    free(got);
}

/* Who does not read holds the sender up, at the window and not before; with small messages as well. */
static void a_reader_that_does_not_read(void **state)
{
    struct fixture *fixture = *state;
    int64_t deadline = deadline_after_ms(WAIT_MS);
    uint8_t *data = calloc(1, WINDOW);
    size_t written = 0, read = 0;

    SKIP_WITHOUT_UCX(fixture);
    end_connect(&fixture->a, &fixture->b.description);
    end_connect(&fixture->b, &fixture->a.description);
    for (size_t i = 0; written < WINDOW; i++) {
        size_t len = i < 3000 ? 100 : WINDOW - written;

        assert_false(deadline_is_past(deadline));
        written += ucx_pipe_write(fixture->a.pipe, data, len, false); /* nothing, while UCX is still connecting */
        drive(fixture);
    }
    assert_false(ucx_pipe_has_room(fixture->a.pipe));
    for (int i = 0; i < 100; i++) {
        assert_int_equal(ucx_pipe_write(fixture->a.pipe, data, 1, false), 0);
        drive(fixture);
    }
    while (read < WINDOW) {
        struct iovec part = {data + read, 1000};

        assert_false(deadline_is_past(deadline));
        if (part.iov_len > WINDOW - read)
            part.iov_len = WINDOW - read;
        read += ucx_pipe_read(fixture->b.pipe, &part, 1);
        drive(fixture);
    }
    while (ucx_pipe_write(fixture->a.pipe, data, 1, false) == 0) {
        assert_false(deadline_is_past(deadline));
        drive(fixture);
    }
    free(data);
}

/* --- a peer that speaks UCX by itself --- */

static ucs_status_t count_bytes(void *arg, const void *header, size_t header_len, void *data, size_t len,
                                const ucp_am_recv_param_t *param)
{
    struct fixture *fixture = arg;

    (void)header;
    (void)data;
    (void)param;
    assert_int_equal(header_len, 16);
    fixture->bytes_of_a += len;
    return UCS_OK;
}

static void stranger_open(struct fixture *fixture)
{
    ucp_params_t params = {.field_mask = UCP_PARAM_FIELD_FEATURES, .features = UCP_FEATURE_AM | UCP_FEATURE_WAKEUP};
    ucp_worker_params_t worker_params = {.field_mask = UCP_WORKER_PARAM_FIELD_FLAGS,
                                         .flags = UCP_WORKER_FLAG_IGNORE_REQUEST_LEAK};
    ucp_am_handler_param_t handler = {.field_mask = UCP_AM_HANDLER_PARAM_FIELD_ID | UCP_AM_HANDLER_PARAM_FIELD_CB |
                                                    UCP_AM_HANDLER_PARAM_FIELD_ARG,
                                      .id = 1,
                                      .cb = count_bytes,
                                      .arg = fixture};
    ucp_ep_params_t ep_params = {.field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS | UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE,
                                 .err_mode = UCP_ERR_HANDLING_MODE_PEER};
    struct ucx_frame frame = {.type = UCX_FRAME_LINKED, .key = 4711};
    ucp_config_t *config;
    ucp_address_t *address;
    size_t len;

    fixture->lib = ucx_lib_load(NULL);
    assert_int_equal(fixture->lib->config_read(NULL, NULL, &config), UCS_OK);
    assert_int_equal(fixture->lib->config_modify(config, "TLS", "tcp"), UCS_OK);
    assert_int_equal(fixture->lib->init_version(UCP_API_MAJOR, UCP_API_MINOR, &params, config, &fixture->context),
                     UCS_OK);
    fixture->lib->config_release(config);
    assert_int_equal(fixture->lib->worker_create(fixture->context, &worker_params, &fixture->worker), UCS_OK);
    assert_int_equal(fixture->lib->worker_set_am_recv_handler(fixture->worker, &handler), UCS_OK);
    assert_int_equal(fixture->lib->worker_get_address(fixture->worker, &address, &len), UCS_OK);
    assert_int_equal(ucx_pipe_connect(fixture->a.pipe, &frame, (const uint8_t *)address, NULL), SHOAL_OK);
    fixture->lib->worker_release_address(fixture->worker, address);
    assert_int_equal(ucx_frame_decode(fixture->a.description.data, &frame), SHOAL_OK);
    fixture->token = frame.key;
    ep_params.address = (const ucp_address_t *)(const void *)(fixture->a.description.data + UCX_FRAME_HEADER_BYTES);
    assert_int_equal(fixture->lib->ep_create(fixture->worker, &ep_params, &fixture->ep), UCS_OK);
}

static void send_raw(struct fixture *fixture, unsigned id, uint64_t token, uint64_t number, size_t header_len,
                     size_t len, uint32_t flags)
{
    static uint8_t data[2 << 20];
    ucp_request_param_t param = {.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS, .flags = flags};
    uint8_t header[16];
    ucs_status_ptr_t result;
    int64_t deadline = deadline_after_ms(WAIT_MS);

    for (size_t i = 0; i < len; i++)
        data[i] = nth(number + i);
    put_le64(header, token);
    put_le64(header + 8, number);
    result = fixture->lib->am_send_nbx(fixture->ep, id, header, header_len, data, len, &param);
    assert_false(UCS_PTR_IS_ERR(result));
    while (UCS_PTR_IS_PTR(result) && fixture->lib->request_check_status(result) == UCS_INPROGRESS) {
        assert_false(deadline_is_past(deadline));
        drive(fixture);
    }
    if (UCS_PTR_IS_PTR(result))
        fixture->lib->request_free(result);
}

static void expect_failure(struct fixture *fixture, const char *what)
{
    int64_t deadline = deadline_after_ms(WAIT_MS);

    while (!ucx_pipe_has_failed(fixture->a.pipe)) {
        assert_false(deadline_is_past(deadline));
        drive(fixture);
    }
    if (!strstr(ucx_pipe_failure(fixture->a.pipe), what))
        fail_msg("not '%s': %s", what, ucx_pipe_failure(fixture->a.pipe));
    assert_int_equal(ucx_pipe_write(fixture->a.pipe, "x", 1, false), 0);
    assert_ptr_equal(ucx_port_next_ready(fixture->a.port), fixture->a.pipe);
}

static void expect_bytes(struct fixture *fixture, uint64_t from, size_t len)
{
    int64_t deadline = deadline_after_ms(WAIT_MS);
    uint8_t *got = malloc(len);
    size_t done = 0;

    while (done < len) {
        struct iovec part = {got + done, len - done};

        assert_false(deadline_is_past(deadline));
        assert_false(ucx_pipe_has_failed(fixture->a.pipe));
        drive(fixture);
        done += ucx_pipe_read(fixture->a.pipe, &part, 1);
    }
    for (size_t i = 0; i < len; i++)
        assert_int_equal(got[i], nth(from + i));
    free(got);
}

/* Strangers and garbage go nowhere; what comes out of order is put in order. */
static void what_belongs_to_nobody_is_ignored(void **state)
{
    struct fixture *fixture = *state;

    SKIP_WITHOUT_UCX(fixture);
    stranger_open(fixture);
    send_raw(fixture, 1, fixture->token + 1, 0, 16, 100, UCP_AM_SEND_FLAG_EAGER);
    send_raw(fixture, 1, fixture->token, 0, 8, 100, UCP_AM_SEND_FLAG_EAGER);
    send_raw(fixture, 2, fixture->token + 1, 999, 16, 0, UCP_AM_SEND_FLAG_EAGER);
    send_raw(fixture, 1, fixture->token, 50, 16, 50, UCP_AM_SEND_FLAG_EAGER);
    send_raw(fixture, 1, fixture->token, 200, 16, 100, UCP_AM_SEND_FLAG_EAGER);
    send_raw(fixture, 1, fixture->token, 0, 16, 50, UCP_AM_SEND_FLAG_EAGER);
    send_raw(fixture, 1, fixture->token, 100, 16, 100, UCP_AM_SEND_FLAG_EAGER);
    expect_bytes(fixture, 0, 300);
}

struct lie {
    unsigned id;
    uint64_t number;
    size_t len;
    uint32_t flags;
    const char *says;
};

static void lies(void **state)
{
    static const struct lie lies[] = {
        {1, 100 + WINDOW, 1, UCP_AM_SEND_FLAG_EAGER, "beyond the window"},
        {1, 101, WINDOW, UCP_AM_SEND_FLAG_EAGER, "beyond the window"},
        {1, UINT64_MAX, 1, UCP_AM_SEND_FLAG_EAGER, "beyond the window"},
        {1, UINT64_MAX - 10, 100, UCP_AM_SEND_FLAG_EAGER, "beyond the window"},
        {1, 100, 2 << 20, UCP_AM_SEND_FLAG_EAGER, "beyond the window"},
        {1, 99, 10, UCP_AM_SEND_FLAG_EAGER, "beyond the window"}, /* taken out already */
        {1, 205, 10, UCP_AM_SEND_FLAG_EAGER, "bytes twice"},
        {1, 190, 20, UCP_AM_SEND_FLAG_EAGER, "bytes twice"},
        {1, 200, 10, UCP_AM_SEND_FLAG_EAGER, "bytes twice"},
        {1, 100, 70000, UCP_AM_SEND_FLAG_RNDV, "rendezvous"},
        {2, 1, 0, UCP_AM_SEND_FLAG_EAGER, "not sent"},
    };

    for (size_t i = 0; i < sizeof lies / sizeof *lies; i++) {
        struct fixture *fixture;

        assert_int_equal(setup(state), 0);
        fixture = *state;
        SKIP_WITHOUT_UCX(fixture);
        stranger_open(fixture);
        send_raw(fixture, 1, fixture->token, 0, 16, 100, UCP_AM_SEND_FLAG_EAGER);
        expect_bytes(fixture, 0, 100);
        send_raw(fixture, 1, fixture->token, 200, 16, 10, UCP_AM_SEND_FLAG_EAGER);
        send_raw(fixture, lies[i].id, fixture->token, lies[i].number, 16, lies[i].len, lies[i].flags);
        expect_failure(fixture, lies[i].says);
        teardown(state);
    }
}

/* Bytes with a gap before each: they cannot be joined, so their number is bounded. */
static void crumbs(void **state)
{
    struct fixture *fixture = *state;

    SKIP_WITHOUT_UCX(fixture);
    stranger_open(fixture);
    for (uint64_t i = 1; i < 6000 && !ucx_pipe_has_failed(fixture->a.pipe); i++) {
        send_raw(fixture, 1, fixture->token, 2 * i, 16, 1, UCP_AM_SEND_FLAG_EAGER);
        drive(fixture);
    }
    expect_failure(fixture, "too many small messages");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(bytes_keep_their_order, setup, teardown),
        cmocka_unit_test_setup_teardown(a_reader_that_does_not_read, setup, teardown),
        cmocka_unit_test_setup_teardown(what_belongs_to_nobody_is_ignored, setup, teardown),
        cmocka_unit_test(lies),
        cmocka_unit_test_setup_teardown(crumbs, setup, teardown),
    };

    return cmocka_run_group_tests_name("ucx_pipe", tests, NULL, NULL);
}
