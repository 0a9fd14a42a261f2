/* SPDX-License-Identifier: Apache-2.0 */
#include "sysfs.h"

#include <dirent.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define GIDS_MAX 256 /* of one port; longer tables are of virtual functions and hold the same kinds */

/* First line of the file at the formatted path, "" if it cannot be read. */
static void read_text(char *text_out, size_t size, const char *format, ...) __attribute__((format(printf, 3, 4)));

static void read_text(char *text_out, size_t size, const char *format, ...)
{
    char path[PATH_MAX];
    va_list arguments;
    va_start(arguments, format);
    int len = vsnprintf(path, sizeof path, format, arguments);
    va_end(arguments);
    text_out[0] = '\0';
    FILE *file = len > 0 && (size_t)len < sizeof path ? fopen(path, "re") : NULL;
    if (!file)
        return;
    if (!fgets(text_out, (int)size, file))
        text_out[0] = '\0';
    text_out[strcspn(text_out, "\n")] = '\0';
    fclose(file);
}

static uint64_t read_number(const char *root, const char *directory, const char *name)
{
    char text[32];
    read_text(text, sizeof text, "%s/sys/kernel/mm/hugepages/%s/%s", root, directory, name);
    return strtoull(text, NULL, 10);
}

static int is_visible(const struct dirent *entry)
{
    return entry->d_name[0] != '.';
}

/* Entries of a directory in order; -1 if there is none. */
static int list(const char *root, const char *path, struct dirent ***entries_out)
{
    char whole[PATH_MAX];
    int len = snprintf(whole, sizeof whole, "%s%s", root, path);
    return len > 0 && (size_t)len < sizeof whole ? scandir(whole, entries_out, is_visible, versionsort) : -1;
}

static void free_list(struct dirent **entries, int count)
{
    for (int i = 0; i < count; i++)
        free(entries[i]);
    if (count >= 0)
        free(entries);
}

/* "4: ACTIVE" is ACTIVE. */
static void cut_number(char *text)
{
    const char *rest = strstr(text, ": ");
    if (rest)
        memmove(text, rest + 2, strlen(rest + 2) + 1);
}

/* --- the table of addresses --- */

static bool is_unused(const char *gid)
{
    return strspn(gid, "0:") == strlen(gid);
}

/* Better ones are larger: what RDMA over routed Ethernet needs comes first. */
static int rank_of(const char *gid, const char *type)
{
    bool is_ipv4 = strncmp(gid, "0000:0000:0000:0000:0000:ffff:", 30) == 0,
         is_link_local = strncmp(gid, "fe80:", 5) == 0;
    return (strcmp(type, "RoCE v2") == 0 ? 4 : 0) + (is_ipv4 ? 2 : 0) + (is_link_local ? 0 : 1);
}

static void read_gids(struct rdma_port *port, const char *root, const char *base)
{
    int best = -1;
    for (unsigned i = 0; i < GIDS_MAX; i++) {
        char gid[48], type[24];
        read_text(gid, sizeof gid, "%s%s/gids/%u", root, base, i);
        if (!gid[0])
            break; /* the table's end */
        if (is_unused(gid))
            continue;
        port->gid_count++;
        read_text(type, sizeof type, "%s%s/gid_attrs/types/%u", root, base, i);
        if (rank_of(gid, type) <= best)
            continue;
        best = rank_of(gid, type);
        memcpy(port->gid, gid, sizeof gid);
        memcpy(port->gid_type, type, sizeof type);
        read_text(port->netdev, sizeof port->netdev, "%s%s/gid_attrs/ndevs/%u", root, base, i);
    }
}

static void read_port(struct rdma_port *port, const char *root, const char *device, const char *number)
{
    char base[3 * RDMA_NAME_BYTES];
    snprintf(port->device, sizeof port->device, "%.63s", device);
    port->number = (unsigned)strtoul(number, NULL, 10);
    snprintf(base, sizeof base, "/sys/class/infiniband/%.63s/ports/%.15s", device, number);
    read_text(port->state, sizeof port->state, "%s%s/state", root, base);
    read_text(port->physical, sizeof port->physical, "%s%s/phys_state", root, base);
    read_text(port->link_layer, sizeof port->link_layer, "%s%s/link_layer", root, base);
    read_text(port->rate, sizeof port->rate, "%s%s/rate", root, base);
    cut_number(port->state);
    cut_number(port->physical);
    port->is_active = strcmp(port->state, "ACTIVE") == 0;
    read_gids(port, root, base);
}

/* /dev/infiniband/uverbsN: without them the devices are there, but no program can use them. */
static void read_user_files(struct rdma_ports *ports, const char *root)
{
    struct dirent **entries = NULL;
    char path[PATH_MAX];
    int count = list(root, "/dev/infiniband", &entries);
    for (int i = 0; i < count; i++) {
        if (strncmp(entries[i]->d_name, "uverbs", 6) != 0)
            continue;
        ports->user_files++;
        snprintf(path, sizeof path, "%s/dev/infiniband/%s", root, entries[i]->d_name);
        ports->has_user_access |= access(path, R_OK | W_OK) == 0;
    }
    free_list(entries, count);
}

void rdma_ports_read(struct rdma_ports *ports, const char *root)
{
    struct dirent **devices = NULL;
    *ports = (struct rdma_ports){.count = 0};
    int device_count = list(root, "/sys/class/infiniband", &devices);
    for (int i = 0; i < device_count; i++) {
        struct dirent **numbers = NULL;
        char path[2 * RDMA_NAME_BYTES + NAME_MAX];
        ports->device_count++;
        snprintf(path, sizeof path, "/sys/class/infiniband/%s/ports", devices[i]->d_name);
        int port_count = list(root, path, &numbers);
        for (int j = 0; j < port_count; j++) {
            if (ports->count < RDMA_PORTS_MAX)
                read_port(&ports->items[ports->count++], root, devices[i]->d_name, numbers[j]->d_name);
            else
                ports->left_out++;
        }
        free_list(numbers, port_count);
    }
    free_list(devices, device_count);
    read_user_files(ports, root);
}

/* --- huge pages --- */

/* "always [madvise] never" is madvise. */
static void take_choice(const char *text, char *choice_out, size_t size)
{
    const char *begin = strchr(text, '['), *end = begin ? strchr(begin, ']') : NULL;
    choice_out[0] = '\0';
    if (end)
        snprintf(choice_out, size, "%.*s", (int)(end - begin - 1), begin + 1);
}

void huge_pages_read(struct huge_pages *pages, const char *root)
{
    struct dirent **entries = NULL;
    char text[64];
    *pages = (struct huge_pages){.count = 0};
    int count = list(root, "/sys/kernel/mm/hugepages", &entries);
    for (int i = 0; i < count && pages->count < HUGE_SIZES_MAX; i++) {
        unsigned long long kib;
        if (sscanf(entries[i]->d_name, "hugepages-%llukB", &kib) != 1)
            continue;
        pages->sizes[pages->count].size_bytes = (uint64_t)kib << 10;
        pages->sizes[pages->count].total = read_number(root, entries[i]->d_name, "nr_hugepages");
        pages->sizes[pages->count++].free = read_number(root, entries[i]->d_name, "free_hugepages");
    }
    free_list(entries, count);
    read_text(text, sizeof text, "%s/sys/kernel/mm/transparent_hugepage/enabled", root);
    take_choice(text, pages->transparent, sizeof pages->transparent);
}
