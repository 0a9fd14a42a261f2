/* SPDX-License-Identifier: Apache-2.0 */
#include "transport/topology.h"

#include <dirent.h>
#include <errno.h>
#include <hwloc.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/error.h"

#define PCI_CLASS_DISPLAY 0x03
#define PCI_VENDOR_NVIDIA 0x10de
#define PORTS_MAX 16
#define PORT_ACTIVE 4 /* IBV_PORT_ACTIVE, in the text of the kernel and of hwloc */
#define LATENCY_LOCAL 10
#define LATENCY_UNKNOWN 20 /* between two nodes, where the firmware says nothing: what ACPI takes for twice local */

struct device {
    struct topology_device view;
    hwloc_obj_t object; /* borrowed from hwloc; what its place is told by; the machine itself for a virtual device */
};

struct topology {
    hwloc_topology_t hwloc; /* owned */
    struct topology_node nodes[TOPOLOGY_NODES_MAX];
    size_t node_count;
    struct device devices[TOPOLOGY_DEVICES_MAX];
    size_t device_count;
    unsigned *latencies; /* owned; of nodes[i] to nodes[j] at [i * node_count + j]; NULL: not told */
};

/* --- hwloc -----------------------------------------------------------------------------------------------------------
 */

static hwloc_obj_t pci_of(hwloc_obj_t object)
{
    while (object && object->type != HWLOC_OBJ_PCI_DEVICE)
        object = object->parent;
    return object;
}

static hwloc_const_nodeset_t nodes_of(hwloc_obj_t object)
{
    while (object->parent && !object->nodeset) /* devices have none */
        object = object->parent;
    return object->nodeset;
}

static const char *info_of(hwloc_obj_t object, const char *name)
{
    const char *value = object ? hwloc_obj_get_info_by_name(object, name) : NULL;

    return value ? value : "";
}

static int numa_node_of(const struct topology *topology, hwloc_obj_t object)
{
    hwloc_const_nodeset_t nodes = nodes_of(object);

    if (topology->node_count > 1 && hwloc_bitmap_weight(nodes) >= (int)topology->node_count)
        return -1;
    return hwloc_bitmap_first(nodes);
}

/* NULL: no room. A name that is too long for a matrix is none that could be chosen. */
static struct device *add_device(struct topology *topology, enum topology_kind kind, const char *name,
                                 hwloc_obj_t object)
{
    struct device *device;
    hwloc_obj_t pci = pci_of(object);

    if (topology->device_count == TOPOLOGY_DEVICES_MAX)
        return NULL;
    device = &topology->devices[topology->device_count++];
    *device = (struct device){.object = object, .view = {.kind = kind, .numa_node = numa_node_of(topology, object)}};
    snprintf(device->view.name, sizeof device->view.name, "%s", name);
    if (pci)
        snprintf(device->view.pci, sizeof device->view.pci, "%04x:%02x:%02x.%x", pci->attr->pcidev.domain,
                 pci->attr->pcidev.bus, pci->attr->pcidev.dev, pci->attr->pcidev.func);
    return device;
}

static enum shoal_status too_many_devices(struct shoal_error *error)
{
    return error_set(error, SHOAL_LIMIT, 0, "the machine has more than %d devices", TOPOLOGY_DEVICES_MAX);
}

/* The network device of the same card: what people know it by. */
static const char *net_of(const struct topology *topology, hwloc_obj_t rdma)
{
    hwloc_obj_t pci = pci_of(rdma), other = NULL;

    while (pci && (other = hwloc_get_next_osdev(topology->hwloc, other)))
        if (other->attr->osdev.type == HWLOC_OBJ_OSDEV_NETWORK && pci_of(other) == pci)
            return other->name;
    return NULL;
}

/* "Port1State", "Port2State"...: numbers. */
static enum topology_state ports_in_hwloc(hwloc_obj_t object)
{
    enum topology_state state = TOPOLOGY_STATE_UNKNOWN;
    char name[24];

    for (int port = 1; port <= PORTS_MAX; port++) {
        snprintf(name, sizeof name, "Port%dState", port);
        const char *text = info_of(object, name);
        if (!*text)
            break;
        if (strtol(text, NULL, 10) == PORT_ACTIVE)
            return TOPOLOGY_STATE_UP;
        state = TOPOLOGY_STATE_DOWN;
    }
    return state;
}

static enum shoal_status add_os_device(struct topology *topology, hwloc_obj_t object, struct shoal_error *error)
{
    struct device *device;
    const char *net;
    unsigned cuda;
    int end = 0;

    if (!object->name || !*object->name || strlen(object->name) > NIC_NAME_MAX_BYTES)
        return SHOAL_OK;
    switch (object->attr->osdev.type) {
    case HWLOC_OBJ_OSDEV_NETWORK:
        device = add_device(topology, TOPOLOGY_NET, object->name, object);
        if (!device)
            return too_many_devices(error);
        snprintf(device->view.detail, sizeof device->view.detail, "%s", info_of(object, "Address"));
        return SHOAL_OK;
    case HWLOC_OBJ_OSDEV_OPENFABRICS:
        device = add_device(topology, TOPOLOGY_RDMA, object->name, object);
        if (!device)
            return too_many_devices(error);
        device->view.state = ports_in_hwloc(object);
        net = net_of(topology, object);
        if (net)
            snprintf(device->view.detail, sizeof device->view.detail, "%s", net);
        return SHOAL_OK;
    case HWLOC_OBJ_OSDEV_COPROC: {
        char name[LOCATION_TEXT_BYTES];

        if (sscanf(object->name, "cuda%u%n", &cuda, &end) != 1 || object->name[end] || cuda > LOCATION_INDEX_MAX)
            return SHOAL_OK;
        location_format(&(struct location){.kind = LOCATION_CUDA, .index = cuda}, name);
        device = add_device(topology, TOPOLOGY_GPU, name, object);
        if (!device)
            return too_many_devices(error);
        snprintf(device->view.detail, sizeof device->view.detail, "%s", info_of(object, "GPUModel"));
        return SHOAL_OK;
    }
    default:
        return SHOAL_OK;
    }
}

static int by_pci(const char *a, const char *b)
{
    size_t a_len = strlen(a), b_len = strlen(b); /* a domain of five digits comes behind those of four */

    if (a_len != b_len)
        return a_len < b_len ? -1 : 1;
    return strcmp(a, b);
}

static int by_place(const void *left, const void *right)
{
    const struct topology_device *a = &((const struct device *)left)->view, *b = &((const struct device *)right)->view;
    int order;

    if (a->kind != b->kind)
        return a->kind < b->kind ? -1 : 1;
    order = by_pci(a->pci, b->pci);
    return order ? order : strcmp(a->name, b->name);
}

/* hwloc names GPUs by CUDA's numbers if it was built with CUDA; else the cards are counted here. */
static enum shoal_status count_gpus(struct topology *topology, struct shoal_error *error)
{
    hwloc_obj_t object = NULL;
    size_t first = topology->device_count;

    for (size_t i = 0; i < topology->device_count; i++)
        if (topology->devices[i].view.kind == TOPOLOGY_GPU)
            return SHOAL_OK;
    while ((object = hwloc_get_next_pcidev(topology->hwloc, object))) {
        const struct hwloc_pcidev_attr_s *pci = &object->attr->pcidev;
        struct device *device;

        if (pci->class_id >> 8 != PCI_CLASS_DISPLAY || pci->vendor_id != PCI_VENDOR_NVIDIA)
            continue;
        device = add_device(topology, TOPOLOGY_GPU, "", object);
        if (!device)
            return too_many_devices(error);
        snprintf(device->view.detail, sizeof device->view.detail, "%s", info_of(object, "PCIDevice"));
    }
    qsort(topology->devices + first, topology->device_count - first, sizeof *topology->devices, by_place);
    for (size_t i = first; i < topology->device_count; i++)
        snprintf(topology->devices[i].view.name, sizeof topology->devices[i].view.name, "cuda:%zu", i - first);
    return SHOAL_OK;
}

static enum shoal_status read_nodes(struct topology *topology, struct shoal_error *error)
{
    hwloc_obj_t object = NULL;

    while ((object = hwloc_get_next_obj_by_type(topology->hwloc, HWLOC_OBJ_NUMANODE, object))) {
        int cpus = object->cpuset ? hwloc_bitmap_weight(object->cpuset) : 0;

        if (topology->node_count == TOPOLOGY_NODES_MAX || object->os_index > LOCATION_INDEX_MAX)
            return error_set(error, SHOAL_LIMIT, 0, "the machine has more than %d NUMA nodes", TOPOLOGY_NODES_MAX);
        topology->nodes[topology->node_count++] =
            (struct topology_node){.index = object->os_index,
                                   .cpus = cpus > 0 ? (unsigned)cpus : 0,
                                   .memory_bytes = object->attr->numanode.local_memory};
    }
    return SHOAL_OK;
}

static size_t node_at(const struct topology *topology, unsigned os_index)
{
    size_t i = 0;

    while (i < topology->node_count && topology->nodes[i].index != os_index)
        i++;
    return i;
}

static enum shoal_status read_latencies(struct topology *topology, struct shoal_error *error)
{
    struct hwloc_distances_s *distances = NULL;
    unsigned found = 1;
    size_t count = topology->node_count;

    if (count < 2 || hwloc_distances_get_by_name(topology->hwloc, "NUMALatency", &found, &distances, 0) != 0 || !found)
        return SHOAL_OK;
    topology->latencies = calloc(count * count, sizeof *topology->latencies);
    if (!topology->latencies) {
        hwloc_distances_release(topology->hwloc, distances);
        return error_no_memory(error);
    }
    for (unsigned from = 0; from < distances->nbobjs; from++) {
        for (unsigned to = 0; to < distances->nbobjs; to++) {
            hwloc_uint64_t value = distances->values[from * distances->nbobjs + to];
            size_t i = distances->objs[from] ? node_at(topology, distances->objs[from]->os_index) : count;
            size_t j = distances->objs[to] ? node_at(topology, distances->objs[to]->os_index) : count;

            if (i < count && j < count)
                topology->latencies[i * count + j] = value > UINT32_MAX ? UINT32_MAX : (unsigned)value;
        }
    }
    hwloc_distances_release(topology->hwloc, distances);
    return SHOAL_OK;
}

/* Everything that hwloc knows; topology->hwloc is configured and not loaded yet. */
static enum shoal_status load(struct topology *topology, struct shoal_error *error)
{
    /* They would start drivers, or talk to an X server, in this process; libpciaccess (pci) leaks, and the kernel's
     * files tell the same. */
    static const char *const unwanted[] = {"cuda", "nvml", "opencl", "gl", "rsmi", "levelzero", "pci"};
    hwloc_obj_t object = NULL;
    enum shoal_status status;

    for (size_t i = 0; i < sizeof unwanted / sizeof *unwanted; i++)
        (void)hwloc_topology_set_components(topology->hwloc, HWLOC_TOPOLOGY_COMPONENTS_FLAG_BLACKLIST, unwanted[i]);
    if (hwloc_topology_set_io_types_filter(topology->hwloc, HWLOC_TYPE_FILTER_KEEP_IMPORTANT) != 0 ||
        hwloc_topology_load(topology->hwloc) != 0)
        return error_set(error, SHOAL_IO, errno, "hwloc cannot make a topology of it: %s", strerror(errno));
    status = read_nodes(topology, error);
    if (status == SHOAL_OK)
        status = read_latencies(topology, error);
    while (status == SHOAL_OK && (object = hwloc_get_next_osdev(topology->hwloc, object)))
        status = add_os_device(topology, object, error);
    return status == SHOAL_OK ? count_gpus(topology, error) : status;
}

/* --- what the kernel tells -------------------------------------------------------------------------------------------
 */

/* The first line of a file below sysfs; "" if there is none. */
static void read_line(char *text_out, size_t size, const char *sysfs, const char *format, ...)
    __attribute__((format(printf, 4, 5)));

static void read_line(char *text_out, size_t size, const char *sysfs, const char *format, ...)
{
    char path[512];
    va_list arguments;
    int len = snprintf(path, sizeof path, "%s/", sysfs), more;
    FILE *file = NULL;

    text_out[0] = '\0';
    va_start(arguments, format);
    more =
        len > 0 && (size_t)len < sizeof path ? vsnprintf(path + len, sizeof path - (size_t)len, format, arguments) : -1;
    va_end(arguments);
    if (more >= 0 && (size_t)(len + more) < sizeof path)
        file = fopen(path, "re");
    if (!file)
        return;
    if (!fgets(text_out, (int)size, file))
        text_out[0] = '\0';
    text_out[strcspn(text_out, "\n")] = '\0';
    fclose(file);
}

static void ask_ports(struct topology_device *device, const char *sysfs)
{
    char state[32], link[32], rate[40], net[NIC_NAME_MAX_BYTES + 1];
    int active = 0;

    for (int port = 1; port <= PORTS_MAX; port++) {
        read_line(state, sizeof state, sysfs, "class/infiniband/%s/ports/%d/state", device->name, port);
        if (!*state)
            break;
        if (device->state != TOPOLOGY_STATE_UP)
            device->state = strtol(state, NULL, 10) == PORT_ACTIVE ? TOPOLOGY_STATE_UP : TOPOLOGY_STATE_DOWN;
        if (!active && (device->state == TOPOLOGY_STATE_UP || port == 1)) {
            active = device->state == TOPOLOGY_STATE_UP ? port : 0;
            read_line(link, sizeof link, sysfs, "class/infiniband/%s/ports/%d/link_layer", device->name, port);
            read_line(rate, sizeof rate, sysfs, "class/infiniband/%s/ports/%d/rate", device->name, port);
            snprintf(net, sizeof net, "%.*s", NIC_NAME_MAX_BYTES, device->detail);
            snprintf(device->detail, sizeof device->detail, "%s%s%s%s%s", net, *net ? ", " : "", link,
                     *rate ? ", " : "", rate);
        }
    }
}

static void ask_link(struct topology_device *device, const char *sysfs)
{
    char state[32], speed[32];
    long mbit;
    size_t used = strlen(device->detail);

    read_line(state, sizeof state, sysfs, "class/net/%s/operstate", device->name);
    read_line(speed, sizeof speed, sysfs, "class/net/%s/speed", device->name);
    if (strcmp(state, "up") == 0)
        device->state = TOPOLOGY_STATE_UP;
    else if (strcmp(state, "down") == 0 || strcmp(state, "lowerlayerdown") == 0)
        device->state = TOPOLOGY_STATE_DOWN;
    mbit = strtol(speed, NULL, 10);
    if (mbit > 0)
        snprintf(device->detail + used, sizeof device->detail - used, "%s%ld Mb/s", used ? ", " : "", mbit);
}

/* RDMA devices without a PCI address (over a software network, say) are unknown to hwloc. */
static enum shoal_status add_virtual_rdma(struct topology *topology, const char *sysfs, struct shoal_error *error)
{
    enum shoal_status status = SHOAL_OK;
    const struct dirent *entry;
    char path[512];
    DIR *folder;

    snprintf(path, sizeof path, "%s/class/infiniband", sysfs);
    folder = opendir(path);
    if (!folder)
        return SHOAL_OK; /* no RDMA in this kernel */
    while (status == SHOAL_OK && (entry = readdir(folder))) {
        if (entry->d_name[0] == '.' || strlen(entry->d_name) > NIC_NAME_MAX_BYTES ||
            topology_find(topology, TOPOLOGY_RDMA, entry->d_name))
            continue;
        if (!add_device(topology, TOPOLOGY_RDMA, entry->d_name, hwloc_get_root_obj(topology->hwloc)))
            status = too_many_devices(error);
    }
    closedir(folder);
    return status;
}

static enum shoal_status ask_kernel(struct topology *topology, const char *sysfs, struct shoal_error *error)
{
    enum shoal_status status = add_virtual_rdma(topology, sysfs, error);

    for (size_t i = 0; i < topology->device_count && status == SHOAL_OK; i++) {
        if (topology->devices[i].view.kind == TOPOLOGY_RDMA)
            ask_ports(&topology->devices[i].view, sysfs);
        if (topology->devices[i].view.kind == TOPOLOGY_NET)
            ask_link(&topology->devices[i].view, sysfs);
    }
    return status;
}

/* --- making ----------------------------------------------------------------------------------------------------------
 */

static enum shoal_status create(struct topology **out, struct shoal_error *error)
{
    *out = calloc(1, sizeof **out);
    if (*out && hwloc_topology_init(&(*out)->hwloc) != 0) {
        free(*out);
        *out = NULL;
    }
    return *out ? SHOAL_OK : error_no_memory(error);
}

void topology_destroy(struct topology *topology)
{
    if (!topology)
        return;
    hwloc_topology_destroy(topology->hwloc);
    free(topology->latencies);
    free(topology);
}

static void sort(struct topology *topology)
{
    qsort(topology->devices, topology->device_count, sizeof *topology->devices, by_place);
}

enum shoal_status topology_discover(const char *sysfs, struct topology **out, struct shoal_error *error)
{
    struct topology *topology;
    enum shoal_status status = create(&topology, error);

    if (status != SHOAL_OK)
        return status;
    status = load(topology, error);
    if (status == SHOAL_OK)
        status = ask_kernel(topology, sysfs, error);
    if (status != SHOAL_OK) {
        topology_destroy(topology);
        return status;
    }
    sort(topology);
    *out = topology;
    return SHOAL_OK;
}

static enum shoal_status read_xml(const char *path, struct buf *text, struct shoal_error *error)
{
    enum shoal_status status = SHOAL_OK;
    FILE *file = fopen(path, "re");
    size_t len;

    if (!file)
        return error_set(error, SHOAL_INVALID_ARGUMENT, errno, "cannot open it: %s", strerror(errno));
    do {
        const size_t step = 64 << 10;

        if (!buf_reserve(text, step)) {
            status = error_no_memory(error);
            break;
        }
        len = fread(text->data + text->len, 1, step, file);
        text->len += len;
        if (text->len > TOPOLOGY_XML_MAX_BYTES)
            status = error_set(error, SHOAL_INVALID_ARGUMENT, 0, "it is longer than %zu bytes", TOPOLOGY_XML_MAX_BYTES);
    } while (len > 0 && status == SHOAL_OK);
    if (status == SHOAL_OK && ferror(file))
        status = error_set(error, SHOAL_INVALID_ARGUMENT, errno, "cannot read it: %s", strerror(errno));
    if (status == SHOAL_OK && text->len == 0)
        status = error_set(error, SHOAL_INVALID_ARGUMENT, 0, "it is empty");
    fclose(file);
    return status;
}

enum shoal_status topology_load_xml(const char *path, struct topology **out, struct shoal_error *error)
{
    struct topology *topology;
    struct buf text;
    enum shoal_status status = create(&topology, error);

    if (status != SHOAL_OK)
        return status;
    buf_init(&text, TOPOLOGY_XML_MAX_BYTES + (128 << 10));
    status = read_xml(path, &text, error);
    if (status == SHOAL_OK) {
        text.data[text.len] = '\0'; /* hwloc counts it */
        if (hwloc_topology_set_xmlbuffer(topology->hwloc, (const char *)text.data, (int)text.len + 1) == 0)
            status = load(topology, error);
        else
            status = SHOAL_IO;
        /* Which of the two fails depends on the parser: hwloc's own or its plugin for libxml2. */
        if (status == SHOAL_IO)
            status = error_set(error, SHOAL_INVALID_ARGUMENT, EINVAL,
                               "it is not the XML of hwloc (lstopo --whole-io FILE.xml makes it)");
    }
    buf_release(&text);
    if (status != SHOAL_OK) {
        topology_destroy(topology);
        error_prefix(error, "topology \"%.200s\"", path);
        return status;
    }
    sort(topology);
    *out = topology;
    return SHOAL_OK;
}

/* --- asking ----------------------------------------------------------------------------------------------------------
 */

size_t topology_node_count(const struct topology *topology)
{
    return topology->node_count;
}

const struct topology_node *topology_node(const struct topology *topology, size_t index)
{
    return &topology->nodes[index];
}

size_t topology_device_count(const struct topology *topology)
{
    return topology->device_count;
}

const struct topology_device *topology_device(const struct topology *topology, size_t index)
{
    return &topology->devices[index].view;
}

const struct topology_device *topology_find(const struct topology *topology, enum topology_kind kind, const char *name)
{
    for (size_t i = 0; i < topology->device_count; i++)
        if (topology->devices[i].view.kind == kind && strcmp(topology->devices[i].view.name, name) == 0)
            return &topology->devices[i].view;
    return NULL;
}

const char *topology_class_name(enum topology_class class)
{
    static const char *const names[] = {"switch", "root", "node", "far"};

    return names[class];
}

static hwloc_obj_t object_of(const struct topology_device *device)
{
    return ((const struct device *)(const void *)device)->object; /* its first member */
}

/* The shortest way from one of the nodes to one of the others. */
static unsigned least_latency(const struct topology *topology, hwloc_const_nodeset_t from, hwloc_const_nodeset_t to)
{
    size_t count = topology->node_count;
    unsigned least = UINT32_MAX;

    for (size_t i = 0; i < count; i++) {
        if (!hwloc_bitmap_isset(from, topology->nodes[i].index))
            continue;
        for (size_t j = 0; j < count; j++) {
            unsigned latency;

            if (!hwloc_bitmap_isset(to, topology->nodes[j].index))
                continue;
            latency = topology->latencies ? topology->latencies[i * count + j]
                      : i == j            ? LATENCY_LOCAL
                                          : LATENCY_UNKNOWN;
            least = latency < least ? latency : least;
        }
    }
    return least;
}

static struct topology_distance between_nodes(const struct topology *topology, hwloc_const_nodeset_t a,
                                              hwloc_const_nodeset_t b)
{
    if (hwloc_bitmap_intersects(a, b))
        return (struct topology_distance){TOPOLOGY_SAME_NODE, 0};
    return (struct topology_distance){TOPOLOGY_FAR, least_latency(topology, a, b)};
}

static bool is_above(hwloc_obj_t above, hwloc_obj_t object)
{
    while (object && object != above)
        object = object->parent;
    return object != NULL;
}

static unsigned bridges_below(hwloc_obj_t above, hwloc_obj_t object)
{
    unsigned count = 0;

    for (; object != above; object = object->parent)
        count += object->type == HWLOC_OBJ_BRIDGE;
    return count;
}

struct topology_distance topology_distance(const struct topology *topology, const struct topology_device *a,
                                           const struct topology_device *b)
{
    hwloc_obj_t from = object_of(a), to = object_of(b), common = from;
    unsigned steps;

    while (!is_above(common, to))
        common = common->parent;
    if (!hwloc_obj_type_is_io(common->type))
        return between_nodes(topology, nodes_of(from), nodes_of(to));
    steps = bridges_below(common, from) + bridges_below(common, to);
    if (common->type == HWLOC_OBJ_BRIDGE && common->attr->bridge.upstream_type == HWLOC_OBJ_BRIDGE_HOST)
        return (struct topology_distance){TOPOLOGY_SAME_ROOT, steps};
    return (struct topology_distance){TOPOLOGY_SAME_SWITCH, steps};
}

struct topology_distance topology_node_distance(const struct topology *topology, const struct topology_node *node,
                                                const struct topology_device *device)
{
    hwloc_obj_t object = hwloc_get_numanode_obj_by_os_index(topology->hwloc, node->index);

    return between_nodes(topology, object->nodeset, nodes_of(object_of(device)));
}

/* --- proposing -------------------------------------------------------------------------------------------------------
 */

struct ranked {
    const char *name;
    struct topology_distance distance;
    size_t order;
};

static int by_distance(const void *left, const void *right)
{
    const struct ranked *a = left, *b = right;

    if (a->distance.class != b->distance.class)
        return a->distance.class < b->distance.class ? -1 : 1;
    if (a->distance.steps != b->distance.steps)
        return a->distance.steps < b->distance.steps ? -1 : 1;
    return a->order < b->order ? -1 : 1;
}

/* near has the usable RDMA devices with their distances. */
static enum shoal_status propose_row(struct nic_matrix *matrix, const struct location *location, struct ranked *near,
                                     size_t count, struct shoal_error *error)
{
    const char *names[NIC_MATRIX_DEVICES_MAX];
    size_t preferred = 0;

    qsort(near, count, sizeof *near, by_distance);
    for (size_t i = 0; i < count; i++) {
        names[i] = near[i].name;
        if (near[i].distance.class == near[0].distance.class && near[i].distance.steps == near[0].distance.steps)
            preferred++;
    }
    return nic_matrix_add(matrix, location, names, preferred, names + preferred, count - preferred, error);
}

enum shoal_status topology_propose_matrix(const struct topology *topology, struct nic_matrix **out,
                                          struct shoal_error *error)
{
    const struct topology_device *usable[NIC_MATRIX_DEVICES_MAX];
    struct ranked near[NIC_MATRIX_DEVICES_MAX];
    struct nic_matrix *matrix;
    struct location location;
    size_t count = 0;
    enum shoal_status status = nic_matrix_create(&matrix, error);

    if (status != SHOAL_OK)
        return status;
    for (size_t i = 0; i < topology->device_count && count < NIC_MATRIX_DEVICES_MAX; i++) {
        const struct topology_device *device = &topology->devices[i].view;

        if (device->kind == TOPOLOGY_RDMA && device->state != TOPOLOGY_STATE_DOWN)
            usable[count++] = device;
    }
    for (size_t i = 0; i < topology->node_count && count && status == SHOAL_OK; i++) {
        for (size_t j = 0; j < count; j++)
            near[j] =
                (struct ranked){usable[j]->name, topology_node_distance(topology, &topology->nodes[i], usable[j]), j};
        location = (struct location){.kind = LOCATION_CPU, .index = topology->nodes[i].index};
        status = propose_row(matrix, &location, near, count, error);
    }
    for (size_t i = 0; i < topology->device_count && count && status == SHOAL_OK; i++) {
        const struct topology_device *device = &topology->devices[i].view;

        if (device->kind != TOPOLOGY_GPU)
            continue;
        for (size_t j = 0; j < count; j++)
            near[j] = (struct ranked){usable[j]->name, topology_distance(topology, device, usable[j]), j};
        status = location_parse(device->name, &location, error);
        if (status == SHOAL_OK)
            status = propose_row(matrix, &location, near, count, error);
    }
    if (status != SHOAL_OK) {
        nic_matrix_destroy(matrix);
        error_prefix(error, "no matrix can be proposed");
        return status;
    }
    *out = matrix;
    return SHOAL_OK;
}
