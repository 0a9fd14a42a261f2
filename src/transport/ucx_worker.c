/* SPDX-License-Identifier: Apache-2.0 */
/* Drives one worker of UCX from its event descriptor: progress until there is none, arm, sleep. */
#include <sched.h>
#include <stdlib.h>

#include "base/error.h"
#include "base/log.h"
#include "transport/ucx_internal.h"

#define LOG_MODULE "ucx"
#define CLOSE_STEPS 10000
#define STEPS_PER_TURN 512 /* then others of the loop have their turn */
#define BLOCKED_MS 1       /* pause of a worker that nothing will wake, after a turn without progress */

static void run_posted(void *arg);

static void post(struct ucx_worker *worker)
{
    if (worker->is_posted)
        return;
    worker->is_posted = true;
    loop_post(worker->ucx->loop, &worker->task, run_posted, worker);
}

/* A worker that cannot be armed has more to send than the peer's queue in shared memory takes: only looking again shows
 * when there is room. The peer may need this very CPU to make it, or be stopped and never make it. */
static void run(struct ucx_worker *worker)
{
    const struct ucx_lib *lib = worker->ucx->lib;
    bool is_blocked = true;

    for (unsigned step = 0; step < STEPS_PER_TURN; step++) {
        bool is_busy = lib->worker_progress(worker->handle) != 0;
        ucs_status_t status;

        is_busy |= worker->pump && worker->pump(worker->arg);
        if (is_busy) {
            is_blocked = false;
            continue;
        }
        status = lib->worker_arm(worker->handle);
        if (status == UCS_OK)
            return;
        if (status != UCS_ERR_BUSY) {
            LOG_WARN("arming a worker: %s", lib->status_string(status));
            return;
        }
        sched_yield();
    }
    if (!is_blocked) {
        post(worker);
        return;
    }
    ucx_count(&worker->ucx->counters.pauses, 1);
    loop_timer_start(&worker->pause, BLOCKED_MS);
}

static void run_posted(void *arg)
{
    struct ucx_worker *worker = arg;

    worker->is_posted = false;
    if (worker->is_closed)
        free(worker);
    else
        run(worker);
}

static void worker_io(void *arg, unsigned events)
{
    (void)events;
    run(arg);
}

static void pause_over(void *arg)
{
    run(arg);
}

void ucx_worker_kick(struct ucx_worker *worker)
{
    post(worker);
}

enum shoal_status ucx_worker_create(struct ucx *ucx, unsigned set, bool (*pump)(void *arg), void *arg,
                                    struct ucx_worker **out, struct shoal_error *error)
{
    const struct ucx_lib *lib = ucx->lib;
    ucp_worker_params_t params = {.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE | UCP_WORKER_PARAM_FIELD_FLAGS,
                                  .thread_mode = UCS_THREAD_MODE_SINGLE,
                                  .flags = UCP_WORKER_FLAG_IGNORE_REQUEST_LEAK};
    struct ucx_worker *worker = calloc(1, sizeof *worker);
    enum shoal_status result;
    ucs_status_t status;
    int fd;

    if (!worker)
        return error_no_memory(error);
    worker->ucx = ucx;
    worker->pump = pump;
    worker->arg = arg;
    status = lib->worker_create(ucx->sets[set].context, &params, &worker->handle);
    if (status != UCS_OK) {
        result = error_set(error, SHOAL_UNSUPPORTED, 0, "UCX worker over '%s': %s", ucx->sets[set].devices,
                           lib->status_string(status));
        goto release;
    }
    status = lib->worker_get_efd(worker->handle, &fd);
    if (status != UCS_OK) {
        result = error_set(error, SHOAL_UNSUPPORTED, 0, "UCX worker over '%s' cannot wake us: %s",
                           ucx->sets[set].devices, lib->status_string(status));
        goto destroy;
    }
    result = loop_io_init(&worker->io, ucx->loop, fd, worker_io, worker, error);
    if (result != SHOAL_OK)
        goto destroy;
    result = loop_timer_init(&worker->pause, ucx->loop, pause_over, worker, error);
    if (result != SHOAL_OK)
        goto release_io;
    loop_io_set(&worker->io, LOOP_READ);
    post(worker);
    *out = worker;
    return SHOAL_OK;

release_io:
    loop_io_release(&worker->io);
destroy:
    lib->worker_destroy(worker->handle);
release:
    free(worker);
    return result;
}

enum shoal_status ucx_worker_connect(struct ucx_worker *worker, const uint8_t *address, ucp_err_handler_cb_t failed,
                                     void *arg, struct shoal_error *error)
{
    const struct ucx_lib *lib = worker->ucx->lib;
    ucp_ep_params_t params = {.field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS | UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE |
                                            UCP_EP_PARAM_FIELD_ERR_HANDLER,
                              .address = (const ucp_address_t *)(const void *)address,
                              .err_mode = UCP_ERR_HANDLING_MODE_PEER,
                              .err_handler = {failed, arg}};
    ucs_status_t status = lib->ep_create(worker->handle, &params, &worker->ep);

    worker->has_error_handling = status == UCS_OK;
    if (status == UCS_ERR_UNREACHABLE) {
        /* Shared memory, say: nothing there notices a peer that dies. The channel and the progress deadline do. */
        params.err_mode = UCP_ERR_HANDLING_MODE_NONE;
        status = lib->ep_create(worker->handle, &params, &worker->ep);
    }
    if (status == UCS_OK)
        return SHOAL_OK;
    worker->ep = NULL;
    return error_set(error, SHOAL_UNSUPPORTED, 0, "UCX does not reach the peer: %s", lib->status_string(status));
}

bool ucx_worker_disconnect(struct ucx_worker *worker, const unsigned *count)
{
    ucp_request_param_t param = {.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS, .flags = UCP_EP_CLOSE_FLAG_FORCE};
    const struct ucx_lib *lib = worker->ucx->lib;
    ucs_status_ptr_t result;

    if (!worker->ep || !worker->has_error_handling)
        return *count == 0;
    result = lib->ep_close_nbx(worker->ep, &param);
    for (unsigned i = 0; i < CLOSE_STEPS; i++) {
        lib->worker_progress(worker->handle);
        if ((!UCS_PTR_IS_PTR(result) || lib->request_check_status(result) != UCS_INPROGRESS) && *count == 0)
            break;
    }
    if (UCS_PTR_IS_PTR(result))
        lib->request_free(result);
    worker->ep = NULL;
    return *count == 0;
}

void ucx_worker_destroy(struct ucx_worker *worker)
{
    if (!worker)
        return;
    loop_timer_release(&worker->pause);
    loop_io_release(&worker->io); /* before UCX closes the descriptor */
    worker->ucx->lib->worker_destroy(worker->handle);
    worker->is_closed = true;
    if (!worker->is_posted)
        free(worker);
}
