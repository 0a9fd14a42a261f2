/* SPDX-License-Identifier: Apache-2.0 */
#include "cuda_test.h"

#include <dlfcn.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "content.h"

#define DEVICES_MAX 8

static struct {
    int (*init)(unsigned flags);
    int (*retain)(void **context, int device);
    int (*push)(void *context);
    int (*pop)(void **context);
    int (*alloc)(uint64_t *address, size_t len);
    int (*release)(uint64_t address);
    int (*copy_in)(uint64_t to, const void *from, size_t len);
    int (*copy_out)(void *to, uint64_t from, size_t len);
} driver;
static const struct cuda_stub_control *stub;

static void *symbol(void *library, const char *name)
{
    void *found = dlsym(library, name);

    if (!found)
        print_error("the driver has no %s\n", name);
    return found;
}

static bool load(void)
{
    const char *path = getenv("SHOAL_CUDA_DRIVER");
    void *library = dlopen(path ? path : "libcuda.so.1", RTLD_NOW | RTLD_LOCAL), *entry;
    cuda_stub_control_fn control;

    if (!library)
        return false;
    *(void **)&driver.init = symbol(library, "cuInit");
    *(void **)&driver.retain = symbol(library, "cuDevicePrimaryCtxRetain");
    *(void **)&driver.push = symbol(library, "cuCtxPushCurrent_v2");
    *(void **)&driver.pop = symbol(library, "cuCtxPopCurrent_v2");
    *(void **)&driver.alloc = symbol(library, "cuMemAlloc_v2");
    *(void **)&driver.release = symbol(library, "cuMemFree_v2");
    *(void **)&driver.copy_in = symbol(library, "cuMemcpyHtoD_v2");
    *(void **)&driver.copy_out = symbol(library, "cuMemcpyDtoH_v2");
    entry = dlsym(library, CUDA_STUB_ENTRY);
    if (entry) {
        *(void **)&control = entry;
        stub = control();
    }
    return true;
}

bool cuda_test_start(void)
{
    return (driver.init || load()) && driver.init(0) == 0;
}

const struct cuda_stub_control *cuda_test_stub(void)
{
    return driver.init || load() ? stub : NULL;
}

static void check(int result, const char *what)
{
    if (result != 0)
        fail_msg("%s: CUDA error %d", what, result);
}

/* A context of its own reference, kept to the end of the process; a dead one is replaced. */
static void enter(int device)
{
    static void *contexts[DEVICES_MAX];

    assert_in_range(device, 0, DEVICES_MAX - 1);
    if (contexts[device] && driver.push(contexts[device]) == 0)
        return;
    check(driver.retain(&contexts[device], device), "retaining the context");
    check(driver.push(contexts[device]), "using the context");
}

static void leave(void)
{
    void *popped;

    check(driver.pop(&popped), "leaving the context");
}

uint8_t *cuda_test_alloc(int device, size_t len)
{
    uint64_t address = 0;

    enter(device);
    check(driver.alloc(&address, len), "allocating");
    leave();
    return (uint8_t *)(uintptr_t)address;
}

void cuda_test_free(int device, void *address)
{
    enter(device);
    check(driver.release((uint64_t)(uintptr_t)address), "freeing");
    leave();
}

void cuda_test_write(int device, void *to, const void *from, size_t len)
{
    enter(device);
    check(driver.copy_in((uint64_t)(uintptr_t)to, from, len), "copying in");
    leave();
}

void cuda_test_read(int device, void *to, const void *from, size_t len)
{
    enter(device);
    check(driver.copy_out(to, (uint64_t)(uintptr_t)from, len), "copying out");
    leave();
}

void cuda_test_fill(int device, uint8_t *to, size_t len, uint64_t seed, uint64_t offset)
{
    uint8_t *bytes = malloc(len);

    assert_non_null(bytes);
    content_fill(bytes, len, seed, offset);
    cuda_test_write(device, to, bytes, len);
    free(bytes);
}

int64_t cuda_test_find_difference(int device, const uint8_t *from, size_t len, uint64_t seed, uint64_t offset)
{
    uint8_t *bytes = malloc(len);
    int64_t at;

    assert_non_null(bytes);
    cuda_test_read(device, bytes, from, len);
    at = content_find_difference(bytes, len, seed, offset);
    free(bytes);
    return at;
}
