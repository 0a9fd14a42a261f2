/* SPDX-License-Identifier: Apache-2.0 */
/* The device layer on the stub driver, or on a real one where it needs no faults (tools/gpu-check). */
#include "unit.h"

#include "content.h"
#include "cuda_test.h"
#include "transport/device.h"
#include "transport/memory.h"

#define MIB ((size_t)1 << 20)
#define NO_DEVICE 100
#define OUT_OF_MEMORY 2

static const char *driver_path; /* NULL: the system's */
static struct shoal_error error;

#define assert_ok(expression)                                                                                          \
    do {                                                                                                               \
        enum shoal_status status_ = (expression);                                                                      \
        if (status_ != SHOAL_OK)                                                                                       \
            fail_msg("%s: %s: %s", #expression, shoal_status_name(status_), error.message);                            \
    } while (0)
#define assert_fails(expected, text, expression)                                                                       \
    do {                                                                                                               \
        assert_int_equal((expression), (expected));                                                                    \
        if (!strstr(error.message, (text)))                                                                            \
            fail_msg("\"%s\" is not in: %s", (text), error.message);                                                   \
    } while (0)

static void use_driver(const char *path)
{
    if (path)
        setenv("SHOAL_CUDA_DRIVER", path, 1);
    else
        unsetenv("SHOAL_CUDA_DRIVER");
}

/* First of all: once a driver has started it stays. */
static void test_no_driver(void **state)
{
    struct device_info info;
    struct device *device;
    unsigned count;

    (void)state;
    use_driver("/nowhere/libcuda.so.1");
    assert_fails(SHOAL_UNSUPPORTED, "cuda:0", device_open(0, &device, &error));
    assert_fails(SHOAL_UNSUPPORTED, "/nowhere/libcuda.so.1", device_open(0, &device, &error));
    assert_fails(SHOAL_UNSUPPORTED, "no CUDA driver", device_list(&info, 1, &count, NULL, &error));
    use_driver("libm.so.6");
    assert_fails(SHOAL_IO, "is no CUDA driver", device_open(0, &device, &error));
    use_driver(driver_path);
    if (!cuda_test_stub())
        return;
    cuda_test_stub()->fail_call("cuInit", NO_DEVICE, 0);
    assert_fails(SHOAL_IO, "CUDA_ERROR_NO_DEVICE", device_open(0, &device, &error));
}

static void test_devices(void **state)
{
    struct device *device, *same;
    struct device_info infos[8];
    unsigned count = 0;
    int version = 0;

    (void)state;
    assert_ok(device_list(infos, 8, &count, &version, &error));
    assert_true(count > 0 && version > 0 && infos[0].name[0] && infos[0].memory_bytes > 0);
    assert_fails(SHOAL_INVALID_ARGUMENT, "this machine has", device_open(99, &device, &error));
    assert_ok(device_open(0, &device, &error));
    assert_ok(device_open(0, &same, &error));
    assert_ptr_equal(device, same);
    assert_int_equal(device_number(device), 0);
    device_close(same);
    device_close(device);
    device_close(NULL);
}

static void test_ranges(void **state)
{
    uint8_t *memory = cuda_test_alloc(0, 5000), *host = malloc(5000);
    uint64_t addr = (uint64_t)(uintptr_t)memory, allocation = 0, again = 0;
    struct device *device, *other;
    unsigned count = 0;

    (void)state;
    assert_ok(device_open(0, &device, &error));
    assert_ok(device_check(device, addr, 5000, &allocation, &error));
    assert_ok(device_check(device, addr + 4999, 1, &again, &error));
    assert_true(allocation != 0 && allocation == again);
    assert_fails(SHOAL_INVALID_ARGUMENT, "one allocation",
                 device_check(device, addr, (uint64_t)1 << 40, &again, &error));
    assert_fails(SHOAL_INVALID_ARGUMENT, "one allocation", device_check(device, addr, UINT64_MAX, &again, &error));
    assert_fails(SHOAL_INVALID_ARGUMENT, "not device memory",
                 device_check(device, (uint64_t)(uintptr_t)host, 1, &again, &error));
    assert_ok(device_list(NULL, 0, &count, NULL, &error));
    if (count > 1) {
        assert_ok(device_open(1, &other, &error));
        assert_fails(SHOAL_INVALID_ARGUMENT, "memory of cuda:0", device_check(other, addr, 1, &again, &error));
        device_close(other);
    }
    cuda_test_free(0, memory);
    assert_fails(SHOAL_INVALID_ARGUMENT, "not device memory", device_check(device, addr, 1, &again, &error));
    device_close(device);
    free(host);
}

struct waiter {
    struct device_copy copy;
    pthread_mutex_t mutex;
    unsigned done;
    enum shoal_status status;
    struct shoal_error error;
};

static void on_done(struct device_copy *copy, enum shoal_status status, const struct shoal_error *why)
{
    struct waiter *waiter = copy->arg;

    pthread_mutex_lock(&waiter->mutex);
    waiter->status = status;
    if (why)
        waiter->error = *why;
    waiter->done++;
    pthread_mutex_unlock(&waiter->mutex);
}

static unsigned done_of(struct waiter *waiter)
{
    unsigned done;

    pthread_mutex_lock(&waiter->mutex);
    done = waiter->done;
    pthread_mutex_unlock(&waiter->mutex);
    return done;
}

static void start(struct device *device, struct waiter *waiter, enum device_direction direction, uint64_t addr,
                  uint64_t allocation, void *host, size_t len)
{
    *waiter = (struct waiter){.mutex = PTHREAD_MUTEX_INITIALIZER,
                              .copy = {.direction = direction,
                                       .addr = addr,
                                       .allocation = allocation,
                                       .host = host,
                                       .len = len,
                                       .done = on_done,
                                       .arg = waiter}};
    device_copy_start(device, &waiter->copy);
}

static enum shoal_status copy(struct device *device, enum device_direction direction, uint64_t addr,
                              uint64_t allocation, void *host, size_t len)
{
    struct waiter waiter;

    start(device, &waiter, direction, addr, allocation, host, len);
    wait_until(done_of(&waiter) == 1);
    error = waiter.error;
    return waiter.status;
}

static void test_copies(void **state)
{
    static const size_t sizes[] = {1, 2, 4095, 4096, 65537, MIB};
    uint8_t *memory = cuda_test_alloc(0, MIB + 16);
    uint64_t addr = (uint64_t)(uintptr_t)memory, allocation;
    struct device_buffer *buffer;
    struct waiter waiters[40];
    struct device *device;

    (void)state;
    assert_ok(device_open(0, &device, &error));
    assert_ok(device_check(device, addr, MIB + 16, &allocation, &error));
    assert_ok(device_buffer_take(device, DEVICE_USE_REQUEST, NULL, &buffer));
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        content_fill(buffer->data, sizes[i], i + 1, 0);
        assert_ok(copy(device, DEVICE_IN, addr + i, allocation, buffer->data, sizes[i]));
        assert_int_equal(cuda_test_find_difference(0, memory + i, sizes[i], i + 1, 0), -1);
        memset(buffer->data, 0, sizes[i]);
        assert_ok(copy(device, DEVICE_OUT, addr + i, allocation, buffer->data, sizes[i]));
        assert_int_equal(content_find_difference(buffer->data, sizes[i], i + 1, 0), -1);
    }
    /* More than the driver is given at a time. */
    for (size_t i = 0; i < 40; i++)
        start(device, &waiters[i], DEVICE_OUT, addr + i, allocation, (uint8_t *)buffer->data + 64 * i, 64);
    for (size_t i = 0; i < 40; i++) {
        wait_until(done_of(&waiters[i]) == 1);
        assert_int_equal(waiters[i].status, SHOAL_OK);
    }
    device_buffer_put(device, DEVICE_USE_REQUEST, buffer);
    device_close(device);
    cuda_test_free(0, memory);
}

static void test_freed(void **state)
{
    uint8_t *memory = cuda_test_alloc(0, 8192), *again;
    uint64_t addr = (uint64_t)(uintptr_t)memory, allocation;
    struct device_buffer *buffer;
    struct device *device;

    (void)state;
    assert_ok(device_open(0, &device, &error));
    assert_ok(device_check(device, addr, 8192, &allocation, &error));
    assert_ok(device_buffer_take(device, DEVICE_USE_REQUEST, NULL, &buffer));
    cuda_test_free(0, memory);
    assert_fails(SHOAL_IO, "was freed", copy(device, DEVICE_IN, addr, allocation, buffer->data, 100));
    assert_fails(SHOAL_IO, "was freed", copy(device, DEVICE_OUT, addr, allocation, buffer->data, 100));
    /* What lies there now is somebody else's. */
    again = cuda_test_alloc(0, 8192);
    if (again == memory) {
        assert_fails(SHOAL_IO, "was freed", copy(device, DEVICE_IN, addr, allocation, buffer->data, 100));
        assert_ok(device_check(device, addr, 8192, &allocation, &error));
        assert_ok(copy(device, DEVICE_IN, addr, allocation, buffer->data, 100));
    }
    cuda_test_free(0, again);
    device_buffer_put(device, DEVICE_USE_REQUEST, buffer);
    device_close(device);
}

struct grant {
    struct device_wait wait;
    struct device_buffer *buffer;
};

static void on_granted(struct device_wait *wait, struct device_buffer *buffer)
{
    container_of(wait, struct grant, wait)->buffer = buffer;
}

static void test_buffers(void **state)
{
    struct device_buffer *buffers[DEVICE_BUFFERS_MAX], *more;
    struct grant first = {.wait = {.granted = on_granted}}, second = first, third = first;
    struct device *device;

    (void)state;
    assert_ok(device_open(0, &device, &error));
    for (unsigned i = 0; i < DEVICE_BUFFERS_MAX; i++)
        assert_ok(device_buffer_take(device, DEVICE_USE_SERVE_READ, NULL, &buffers[i]));
    assert_int_equal(device_buffer_take(device, DEVICE_USE_SERVE_READ, NULL, &more), SHOAL_BUSY);
    assert_int_equal(device_buffer_take(device, DEVICE_USE_SERVE_READ, &first.wait, &more), SHOAL_BUSY);
    assert_int_equal(device_buffer_take(device, DEVICE_USE_SERVE_READ, &second.wait, &more), SHOAL_BUSY);
    assert_int_equal(device_buffer_take(device, DEVICE_USE_SERVE_READ, &third.wait, &more), SHOAL_BUSY);
    /* Other uses have their own. */
    assert_ok(device_buffer_take(device, DEVICE_USE_REQUEST, NULL, &more));
    device_buffer_put(device, DEVICE_USE_REQUEST, more);
    assert_true(device_wait_cancel(device, &second.wait));
    device_buffer_put(device, DEVICE_USE_SERVE_READ, buffers[0]);
    assert_ptr_equal(first.buffer, buffers[0]);
    assert_false(device_wait_cancel(device, &first.wait));
    device_buffer_put(device, DEVICE_USE_SERVE_READ, buffers[1]);
    assert_ptr_equal(third.buffer, buffers[1]);
    assert_null(second.buffer);
    for (unsigned i = 0; i < DEVICE_BUFFERS_MAX; i++)
        device_buffer_put(device, DEVICE_USE_SERVE_READ, buffers[i]);
    device_buffer_put(device, DEVICE_USE_SERVE_READ, NULL);
    device_close(device);
}

static bool append(void *arg, const void *data, size_t len)
{
    uint8_t **to = arg;

    memcpy(*to, data, len);
    *to += len;
    return true;
}

static bool only_once(void *arg, const void *data, size_t len)
{
    (void)data;
    *(size_t *)arg += len;
    return false;
}

static void test_read(void **state)
{
    static const size_t sizes[] = {1, MIB, MIB + 1, 2 * MIB, 9 * MIB + 17};
    uint8_t *memory = cuda_test_alloc(0, 10 * MIB), *bytes = malloc(10 * MIB), *to;
    uint64_t addr = (uint64_t)(uintptr_t)memory, allocation;
    struct device *device;
    size_t shown = 0;

    (void)state;
    cuda_test_fill(0, memory, 10 * MIB, 7, 0);
    assert_ok(device_open(0, &device, &error));
    assert_ok(device_check(device, addr, 10 * MIB, &allocation, &error));
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        to = bytes;
        assert_ok(device_read(device, allocation, addr + i, sizes[i], append, &to, &error));
        assert_int_equal(to - bytes, sizes[i]);
        assert_int_equal(content_find_difference(bytes, sizes[i], 7, i), -1);
    }
    assert_ok(device_read(device, allocation, addr, 0, append, &to, &error));
    assert_ok(device_read(device, allocation, addr, 10 * MIB, only_once, &shown, &error));
    assert_int_equal(shown, MIB);
    cuda_test_free(0, memory);
    assert_fails(SHOAL_IO, "was freed", device_read(device, allocation, addr, 9 * MIB, append, &to, &error));
    device_close(device);
    free(bytes);
}

static void test_registration(void **state)
{
    uint8_t *memory = cuda_test_alloc(0, 3 * MIB), *host = malloc(4096), *again;
    struct memory_region *region = NULL;
    struct memory_table *table;
    const char *reason = NULL;
    uint64_t key, addr = (uint64_t)(uintptr_t)memory;

    (void)state;
    assert_ok(memory_table_create(&table, &error));
    assert_fails(SHOAL_INVALID_ARGUMENT, "this machine has",
                 memory_register(table, memory, 1, "cuda:99", 0, &key, &error));
    assert_fails(SHOAL_INVALID_ARGUMENT, "this machine has",
                 memory_register(table, NULL, 0, "cuda:99", 0, &key, &error));
    assert_fails(SHOAL_INVALID_ARGUMENT, "not device memory",
                 memory_register(table, host, 4096, "cuda:0", 0, &key, &error));
    assert_fails(SHOAL_INVALID_ARGUMENT, "one allocation",
                 memory_register(table, memory, (uint64_t)1 << 45, "cuda:0", 0, &key, &error));
    assert_ok(memory_register(table, memory, 3 * MIB, "cuda:0", 0, &key, &error));
    assert_ok(memory_register(table, memory, 3 * MIB, "cuda:0", 0, &key, &error));
    assert_fails(SHOAL_INVALID_ARGUMENT, "location \"cuda:0\"",
                 memory_register(table, memory, 3 * MIB, "*", 0, &key, &error));
    assert_ok(memory_register(table, host, 4096, "cpu:0", 0, &key, &error));
    assert_ok(memory_pin(table, addr + MIB, MIB, 0, 0, &region, &reason));
    assert_int_equal(device_number(memory_device(region)), 0);
    assert_string_equal(memory_location(region), "cuda:0");
    memory_unpin(table, region);
    assert_ok(memory_pin(table, (uint64_t)(uintptr_t)host, 1, 0, 0, &region, &reason));
    assert_null(memory_device(region));
    memory_unpin(table, region);
    cuda_test_free(0, memory);
    again = cuda_test_alloc(0, 3 * MIB);
    if (again == memory)
        assert_fails(SHOAL_ADDRESS_OVERLAPPED, "freed",
                     memory_register(table, memory, 3 * MIB, "cuda:0", 0, &key, &error));
    cuda_test_free(0, again);
    assert_ok(memory_unregister(table, memory, 3 * MIB, 0, NULL, NULL, &error));
    assert_ok(memory_unregister(table, memory, 3 * MIB, 0, NULL, NULL, &error));
    assert_ok(memory_unregister(table, host, 4096, 0, NULL, NULL, &error));
    memory_table_destroy(table);
    free(host);
}

/* --- what only the stub can do --- */

#define NEED_STUB()                                                                                                    \
    do {                                                                                                               \
        if (!cuda_test_stub())                                                                                         \
            skip();                                                                                                    \
    } while (0)

static void test_refused_by_driver(void **state)
{
    static const char *const symbols[] = {"cuDevicePrimaryCtxRetain", "cuStreamCreate", "cuEventCreate", "cuDeviceGet",
                                          "cuDeviceGetCount"};
    struct device *device;
    struct cuda_stub_counts counts;

    (void)state;
    NEED_STUB();
    counts = cuda_test_stub()->counts();
    for (size_t i = 0; i < sizeof symbols / sizeof symbols[0]; i++) {
        for (unsigned after = 0; after < (strcmp(symbols[i], "cuEventCreate") == 0 ? 3u : 1u); after++) {
            cuda_test_stub()->fail_call(symbols[i], OUT_OF_MEMORY, after);
            assert_fails(SHOAL_IO, "CUDA_ERROR_OUT_OF_MEMORY", device_open(1, &device, &error));
        }
    }
    assert_int_equal(cuda_test_stub()->counts().streams, counts.streams);
    assert_int_equal(cuda_test_stub()->counts().events, counts.events);
    assert_int_equal(cuda_test_stub()->counts().contexts, counts.contexts);
    assert_ok(device_open(1, &device, &error));
    device_close(device);
    assert_int_equal(cuda_test_stub()->counts().streams, counts.streams);
    assert_int_equal(cuda_test_stub()->counts().events, counts.events);
    assert_int_equal(cuda_test_stub()->counts().contexts, counts.contexts);
}

static void test_unpinned(void **state)
{
    uint8_t *memory = cuda_test_alloc(0, 4096);
    uint64_t addr = (uint64_t)(uintptr_t)memory, allocation, unpinned;
    struct device_buffer *buffer;
    struct device *device;

    (void)state;
    NEED_STUB();
    assert_ok(device_open(0, &device, &error));
    assert_ok(device_check(device, addr, 4096, &allocation, &error));
    unpinned = cuda_test_stub()->counts().unpinned_copies;
    assert_int_equal(unpinned, 0); /* in all tests so far */
    cuda_test_stub()->fail_call("cuMemHostRegister", OUT_OF_MEMORY, 0);
    assert_ok(device_buffer_take(device, DEVICE_USE_REQUEST, NULL, &buffer));
    assert_false(buffer->is_pinned);
    assert_ok(copy(device, DEVICE_IN, addr, allocation, buffer->data, 4096));
    assert_int_equal(cuda_test_stub()->counts().unpinned_copies, unpinned + 1);
    device_buffer_put(device, DEVICE_USE_REQUEST, buffer);
    device_close(device);
    cuda_test_free(0, memory);
}

static void test_copy_errors(void **state)
{
    static const char *const symbols[] = {"cuMemcpyHtoDAsync", "cuEventRecord", "cuEventSynchronize",
                                          "cuPointerGetAttributes", "cuCtxPushCurrent"};
    uint8_t *memory = cuda_test_alloc(0, 4096);
    uint64_t addr = (uint64_t)(uintptr_t)memory, allocation;
    struct device_buffer *buffer;
    struct device *device;

    (void)state;
    NEED_STUB();
    assert_ok(device_open(0, &device, &error));
    assert_ok(device_check(device, addr, 4096, &allocation, &error));
    assert_ok(device_buffer_take(device, DEVICE_USE_REQUEST, NULL, &buffer));
    for (size_t i = 0; i < sizeof symbols / sizeof symbols[0]; i++) {
        cuda_test_stub()->fail_call(symbols[i], OUT_OF_MEMORY, 0);
        assert_fails(SHOAL_IO, "CUDA_ERROR_OUT_OF_MEMORY",
                     copy(device, DEVICE_IN, addr, allocation, buffer->data, 4096));
        assert_ok(copy(device, DEVICE_IN, addr, allocation, buffer->data, 4096));
    }
    device_buffer_put(device, DEVICE_USE_REQUEST, buffer);
    device_close(device);
    cuda_test_free(0, memory);
}

/* The application resets the device under us: errors, no crash; and the device can be used again afterwards. */
static void test_destroyed_context(void **state)
{
    uint8_t *memory = cuda_test_alloc(0, 4096);
    uint64_t addr = (uint64_t)(uintptr_t)memory, allocation;
    struct device_buffer *buffer, *idle;
    struct device *device, *fresh;
    struct waiter waiter;

    (void)state;
    NEED_STUB();
    assert_ok(device_open(0, &device, &error));
    assert_ok(device_check(device, addr, 4096, &allocation, &error));
    assert_ok(device_buffer_take(device, DEVICE_USE_REQUEST, NULL, &buffer));
    assert_ok(device_buffer_take(device, DEVICE_USE_REQUEST, NULL, &idle));
    device_buffer_put(device, DEVICE_USE_REQUEST, idle);
    cuda_test_stub()->hold(CUDA_STUB_IN, true);
    start(device, &waiter, DEVICE_IN, addr, allocation, buffer->data, 4096);
    wait_until(cuda_test_stub()->counts().waiting[CUDA_STUB_IN] == 1);
    cuda_test_stub()->destroy_context(0);
    cuda_test_stub()->hold(CUDA_STUB_IN, false);
    wait_until(done_of(&waiter) == 1);
    assert_int_equal(waiter.status, SHOAL_IO);
    assert_non_null(strstr(waiter.error.message, "CUDA_ERROR_CONTEXT_IS_DESTROYED"));
    assert_fails(SHOAL_IO, "CONTEXT_IS_DESTROYED", copy(device, DEVICE_OUT, addr, allocation, buffer->data, 4096));
    memset(buffer->data, 1, DEVICE_BUFFER_BYTES); /* stays memory */

    memory = cuda_test_alloc(0, 4096);
    addr = (uint64_t)(uintptr_t)memory;
    assert_ok(device_open(0, &fresh, &error));
    assert_ptr_not_equal(fresh, device);
    device_buffer_put(device, DEVICE_USE_REQUEST, buffer);
    device_close(device);
    assert_ok(device_check(fresh, addr, 4096, &allocation, &error));
    assert_ok(device_buffer_take(fresh, DEVICE_USE_REQUEST, NULL, &buffer));
    assert_ok(copy(fresh, DEVICE_IN, addr, allocation, buffer->data, 4096));
    device_buffer_put(fresh, DEVICE_USE_REQUEST, buffer);
    device_close(fresh);
    cuda_test_free(0, memory);
}

static void test_nothing_left(void **state)
{
    struct cuda_stub_counts counts;

    (void)state;
    NEED_STUB();
    counts = cuda_test_stub()->counts();
    assert_int_equal(counts.streams, 0);
    assert_int_equal(counts.pinned_ranges, 0);
    assert_int_equal(counts.allocations, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_no_driver),
        cmocka_unit_test(test_devices),
        cmocka_unit_test(test_ranges),
        cmocka_unit_test(test_copies),
        cmocka_unit_test(test_freed),
        cmocka_unit_test(test_buffers),
        cmocka_unit_test(test_read),
        cmocka_unit_test(test_registration),
        cmocka_unit_test(test_refused_by_driver),
        cmocka_unit_test(test_unpinned),
        cmocka_unit_test(test_copy_errors),
        cmocka_unit_test(test_destroyed_context),
        cmocka_unit_test(test_nothing_left),
    };

    driver_path = getenv("SHOAL_CUDA_DRIVER");
    if (!cuda_test_stub() && !cuda_test_start()) {
        printf("skipped: no CUDA driver\n");
        return 77;
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}
