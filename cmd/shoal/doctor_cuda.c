/* SPDX-License-Identifier: Apache-2.0 */
/* The CUDA driver, if there is one: loaded only to ask it what there is. */
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

#include "doctor.h"

#define DEVICES_SHOWN 16
#define ATTRIBUTE_DMA_BUF 124 /* CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED */

/* The driver's functions have C's calling convention and answer 0 when all is well. */
struct driver {
    int (*init)(unsigned flags);
    int (*version)(int *version);
    int (*count)(int *count);
    int (*get)(int *device, int number);
    int (*name)(char *name, int len, int device);
    int (*attribute)(int *value, int attribute, int device);
};

static bool load(void *library, struct driver *driver)
{
    const struct {
        const char *name;
        void *function;
    } wanted[] = {
        {"cuInit", &driver->init},
        {"cuDriverGetVersion", &driver->version},
        {"cuDeviceGetCount", &driver->count},
        {"cuDeviceGet", &driver->get},
        {"cuDeviceGetName", &driver->name},
        {"cuDeviceGetAttribute", &driver->attribute},
    };
    for (size_t i = 0; i < sizeof wanted / sizeof *wanted; i++) {
        void *found = dlsym(library, wanted[i].name);
        if (!found)
            return false;
        memcpy(wanted[i].function, &found, sizeof found); /* ISO C has no cast between the two */
    }
    return true;
}

static void check_devices(struct doctor *doctor, const struct driver *driver)
{
    int version = 0, count = 0, result = driver->init(0);
    if (result != 0 || driver->version(&version) != 0 || driver->count(&count) != 0) {
        doctor_tell(doctor, DOCTOR_WARN, "cuda",
                    "see nvidia-smi: driver and kernel module must fit, a container needs the devices",
                    "the CUDA driver is installed and does not start (error %d)", result);
        return;
    }
    doctor_tell(doctor, DOCTOR_OK, "cuda", NULL, "driver of CUDA %d.%d, %d device%s", version / 1000,
                version % 1000 / 10, count, count == 1 ? "" : "s");
    for (int i = 0; i < count && i < DEVICES_SHOWN; i++) {
        char check[24], name[128] = "?";
        int device, has_dmabuf = 0;
        snprintf(check, sizeof check, "cuda:%d", i);
        if (driver->get(&device, i) != 0)
            continue;
        (void)driver->name(name, (int)sizeof name, device);
        (void)driver->attribute(&has_dmabuf, ATTRIBUTE_DMA_BUF, device);
        name[sizeof name - 1] = '\0';
        doctor_tell(doctor, DOCTOR_OK, check, NULL, "%s, %s", name,
                    has_dmabuf ? "its memory can be given to network devices (dmabuf)"
                               : "no dmabuf: its memory travels through buffers of the host");
    }
}

void doctor_check_cuda(struct doctor *doctor)
{
    struct driver driver;
    void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    if (!library)
        doctor_tell(doctor, DOCTOR_OK, "cuda", NULL, "no driver (libcuda.so.1): there is no cuda:N memory here");
    else if (!load(library, &driver))
        doctor_tell(doctor, DOCTOR_WARN, "cuda", "update the driver", "the CUDA driver is too old: it lacks functions");
    else
        check_devices(doctor, &driver);
    if (library)
        dlclose(library);
}
