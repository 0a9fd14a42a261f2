/* SPDX-License-Identifier: Apache-2.0 */
#include "transport/device_driver.h"

#include <dlfcn.h>
#include <link.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"

#define LOG_MODULE "cuda"
#include "base/log.h"

#define CUDA_TEXT_BYTES 160

static pthread_mutex_t driver_mutex = PTHREAD_MUTEX_INITIALIZER; /* guards what follows; the driver starts under it */
static struct device_driver driver;
static bool is_loaded;

typedef cuda_result (*pointer_attributes_fn)(unsigned count, const int *attributes, void **values,
                                             cuda_pointer pointer);
static pointer_attributes_fn peeked;   /* atomic; NULL: not found yet */
static unsigned long long peeked_adds; /* atomic: libraries that had been loaded when it was not found */

const char *device_driver_text(const struct device_driver *table, cuda_result result, char *buffer, size_t len)
{
    const char *name = NULL, *text = NULL;

    if (table->error_name(result, &name) != CUDA_OK || !name)
        snprintf(buffer, len, "CUDA error %d", result);
    else if (table->error_string(result, &text) != CUDA_OK || !text)
        snprintf(buffer, len, "%s", name);
    else
        snprintf(buffer, len, "%s (%s)", name, text);
    return buffer;
}

/* dlsym gives an object pointer; ISO C has no conversion to a function's, POSIX says that the bytes are the same. */
static bool find_symbol(void *library, const char *symbol, void *function_out)
{
    void *found = dlsym(library, symbol);

    if (found)
        memcpy(function_out, &found, sizeof found);
    return found != NULL;
}

static enum shoal_status load(struct shoal_error *error)
{
    const char *path = secure_getenv(DEVICE_DRIVER_VARIABLE), *missing = NULL;
    struct device_driver loaded = {0};
    char text[CUDA_TEXT_BYTES];
    int version = 0;
    cuda_result result;
    void *library;

    if (!path || !path[0])
        path = DEVICE_DRIVER_LIBRARY;
    library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!library) {
        const char *why = dlerror();
        return error_set(error, SHOAL_UNSUPPORTED, 0, "no CUDA driver: %s", why ? why : path);
    }
#define CUDA_FIND(member, symbol, parameters)                                                                          \
    if (!find_symbol(library, symbol, &loaded.member))                                                                 \
        missing = symbol;
    CUDA_FUNCTIONS(CUDA_FIND)
#undef CUDA_FIND
    if (missing) {
        dlclose(library);
        return error_set(error, SHOAL_IO, 0, "%s is no CUDA driver that can be used: it has no %s", path, missing);
    }
#define CUDA_FIND(member, symbol, parameters) (void)find_symbol(library, symbol, &loaded.member);
    CUDA_OPTIONAL_FUNCTIONS(CUDA_FIND)
#undef CUDA_FIND
    result = loaded.init(0);
    if (result != CUDA_OK) {
        /* It stays mapped: a driver that has started threads cannot be unloaded. */
        return error_set(error, SHOAL_IO, 0, "the CUDA driver does not start: %s",
                         device_driver_text(&loaded, result, text, sizeof text));
    }
    if (loaded.driver_version(&version) == CUDA_OK)
        LOG_INFO("CUDA driver %s, version %d.%d", path, version / 1000, version % 1000 / 10);
    driver = loaded;
    is_loaded = true;
    return SHOAL_OK;
}

static int note_adds(struct dl_phdr_info *info, size_t size, void *arg)
{
    (void)size;
    *(unsigned long long *)arg = info->dlpi_adds;
    return 1; /* the first says it */
}

pointer_attributes_fn device_driver_peek(void)
{
    pointer_attributes_fn found = __atomic_load_n(&peeked, __ATOMIC_ACQUIRE);
    unsigned long long adds = 0;
    const char *path;
    void *library;

    if (found)
        return found;
    /* A search that finds nothing goes through the file system: once for each change of what is loaded. */
    (void)dl_iterate_phdr(note_adds, &adds);
    if (adds == __atomic_load_n(&peeked_adds, __ATOMIC_RELAXED))
        return NULL;
    path = secure_getenv(DEVICE_DRIVER_VARIABLE);
    library = dlopen(path && path[0] ? path : DEVICE_DRIVER_LIBRARY, RTLD_NOW | RTLD_LOCAL | RTLD_NOLOAD);
    if (!library) {
        __atomic_store_n(&peeked_adds, adds, __ATOMIC_RELAXED);
        return NULL;
    }
    if (find_symbol(library, "cuPointerGetAttributes", &found))
        __atomic_store_n(&peeked, found,
                         __ATOMIC_RELEASE); /* the reference to the library stays: it is used for good */
    else
        dlclose(library);
    return found;
}

enum shoal_status device_driver_get(const struct device_driver **out, struct shoal_error *error)
{
    enum shoal_status status = SHOAL_OK;

    pthread_mutex_lock(&driver_mutex);
    if (!is_loaded)
        status = load(error);
    pthread_mutex_unlock(&driver_mutex);
    if (status == SHOAL_OK)
        *out = &driver;
    return status;
}
