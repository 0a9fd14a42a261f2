/* SPDX-License-Identifier: Apache-2.0 */
/* Active messages that UCX takes at once or not at all, on a stand-in for UCX that says how much it takes. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <string.h>

#include "transport/ucx_am.h"

enum { TAKES_AT_ONCE = 1000, ID = 7 };

static struct {
    bool is_full;
    unsigned offers, queued, hellos;
    size_t last_len;
} ucx;

static char pending; /* what UCX returns for a request that it has queued */

static ucs_status_ptr_t am_send(ucp_ep_h ep, unsigned id, const void *header, size_t header_len, const void *data,
                                size_t len, const ucp_request_param_t *param)
{
    (void)ep;
    (void)header;
    (void)header_len;
    (void)data;
    assert_int_not_equal(param->flags & UCP_AM_SEND_FLAG_EAGER, 0);
    ucx.last_len = len;
    if (!(param->op_attr_mask & UCP_OP_ATTR_FLAG_FORCE_IMM_CMPL)) {
        assert_int_equal(id, ID);
        assert_non_null(param->cb.send);
        ucx.queued++;
        return &pending;
    }
    if (id == UCX_AM_HELLO)
        ucx.hellos++;
    else
        ucx.offers++;
    return ucx.is_full || len > TAKES_AT_ONCE ? UCS_STATUS_PTR(UCS_ERR_NO_RESOURCE) : NULL;
}

static void done(void *request, ucs_status_t status, void *arg)
{
    (void)request;
    (void)status;
    (void)arg;
}

static const struct ucx_lib lib = {.am_send_nbx = am_send};

static ucs_status_ptr_t send_bytes(struct ucx_am *am, size_t len)
{
    return ucx_am_send(&lib, NULL, am, ID, "header", 6, "data", len, done, NULL);
}

static int setup(void **state)
{
    (void)state;
    memset(&ucx, 0, sizeof ucx);
    return 0;
}

static void test_taken_at_once(void **state)
{
    struct ucx_am am = {0};

    (void)state;
    for (size_t len = 1; len <= TAKES_AT_ONCE; len += 37)
        assert_null(send_bytes(&am, len));
    assert_int_equal(ucx.queued + ucx.hellos, 0);
    assert_false(am.is_queued);
}

/* A connection that is full, or not there yet, is no reason to have anything queued. */
static void test_no_room(void **state)
{
    struct ucx_am am = {0};

    (void)state;
    ucx.is_full = true;
    for (int i = 0; i < 3; i++)
        assert_int_equal(UCS_PTR_STATUS(send_bytes(&am, TAKES_AT_ONCE)), UCS_ERR_NO_RESOURCE);
    ucx.is_full = false;
    assert_null(send_bytes(&am, TAKES_AT_ONCE));
    ucx.is_full = true;
    ucx.hellos = 0;
    for (int i = 0; i < 3; i++)
        assert_int_equal(UCS_PTR_STATUS(send_bytes(&am, TAKES_AT_ONCE)), UCS_ERR_NO_RESOURCE);
    assert_int_equal(ucx.hellos, 0); /* as much was taken before */
    assert_int_equal(ucx.queued, 0);
    assert_false(am.is_queued);
}

/* What is larger than these devices ever take at once is queued, whatever was sent before. */
static void test_too_large(void **state)
{
    struct ucx_am am = {0};

    (void)state;
    assert_null(send_bytes(&am, 1));
    ucx.is_full = true;
    assert_int_equal(UCS_PTR_STATUS(send_bytes(&am, TAKES_AT_ONCE + 1)), UCS_ERR_NO_RESOURCE);
    assert_int_equal(ucx.queued, 0);
    ucx.is_full = false;
    assert_ptr_equal(send_bytes(&am, TAKES_AT_ONCE + 1), &pending);
    assert_int_equal(ucx.last_len, TAKES_AT_ONCE + 1);
    assert_true(am.is_queued);
    assert_ptr_equal(send_bytes(&am, 5), &pending); /* in order */
    assert_int_equal(ucx.queued, 2);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(test_taken_at_once, setup),
        cmocka_unit_test_setup(test_no_room, setup),
        cmocka_unit_test_setup(test_too_large, setup),
    };

    return cmocka_run_group_tests_name("active messages of UCX", tests, NULL, NULL);
}
