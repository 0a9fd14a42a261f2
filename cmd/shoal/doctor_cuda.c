/* SPDX-License-Identifier: Apache-2.0 */
/* The CUDA driver and its devices, as cuda:N locations see them. */
#include <stdio.h>

#include "transport/device.h"

#include "doctor.h"

#define DEVICES_SHOWN 16

static void tell_device(struct doctor *doctor, const struct device_info *info)
{
    char check[24];
    snprintf(check, sizeof check, "cuda:%u", info->number);
    doctor_tell(doctor, DOCTOR_OK, check, NULL, "%s, %.1f GiB%s%s; %s", info->name,
                (double)info->memory_bytes / (1024.0 * 1024.0 * 1024.0), info->pci_bus_id[0] ? ", PCI " : "",
                info->pci_bus_id,
                info->has_dmabuf ? "its memory could be given to network devices (dmabuf)" : "no dmabuf");
    doctor_add(doctor, "memory_bytes", json_integer((json_int_t)info->memory_bytes));
    doctor_add(doctor, "has_dmabuf", json_boolean(info->has_dmabuf));
}

void doctor_check_cuda(struct doctor *doctor)
{
    struct device_info infos[DEVICES_SHOWN];
    unsigned count = 0;
    int version = 0;
    struct shoal_error error;
    enum shoal_status status = device_list(infos, DEVICES_SHOWN, &count, &version, &error);
    if (status == SHOAL_UNSUPPORTED) {
        doctor_tell(doctor, DOCTOR_OK, "cuda", NULL, "there is no cuda:N memory here: %s", error.message);
    } else if (status != SHOAL_OK) {
        doctor_tell(doctor, DOCTOR_WARN, "cuda",
                    "see nvidia-smi: driver and kernel module must fit, a container needs the devices", "%s",
                    error.message);
    } else {
        doctor_tell(doctor, DOCTOR_OK, "cuda", NULL,
                    "driver of CUDA %d.%d, %u device%s; transfers go through buffers of the host", version / 1000,
                    version % 1000 / 10, count, count == 1 ? "" : "s");
        for (unsigned i = 0; i < count && i < DEVICES_SHOWN; i++)
            tell_device(doctor, &infos[i]);
    }
}
