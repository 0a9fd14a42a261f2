/* SPDX-License-Identifier: Apache-2.0 */
/* NUMA nodes: hwloc is told of a machine of two nodes (and, with "real" as argv[1], that this machine is it, so that
 * system calls are made: node 0 is there everywhere). */
#include "unit.h"

#include <errno.h>
#include <netinet/in.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/syscall.h>

#include "transport/memory.h"
#include "transport/numa.h"

#define BYTES ((size_t)1 << 20)

/* Of linux/mempolicy.h, which libnuma's package ships. */
#define OF_ADDRESS 2
#define POLICY_DEFAULT 0

static void nodes(void **state)
{
    (void)state;
    struct shoal_error error;

    assert_int_equal(numa_node_count(), 2);
    assert_int_equal(numa_check_node(0, &error), SHOAL_OK);
    assert_int_equal(numa_check_node(1, &error), SHOAL_OK);
    assert_int_equal(numa_check_node(2, &error), SHOAL_INVALID_ARGUMENT);
    assert_string_equal(error.message, "this machine has no NUMA node 2 (there is: 0-1)");
    assert_int_equal(numa_bind_memory(&error, 1, 7, &error), SHOAL_INVALID_ARGUMENT);
    assert_int_equal(numa_bind_thread(1023, &error), SHOAL_INVALID_ARGUMENT);
}

static void locations_of_memory(void **state)
{
    (void)state;
    static const struct {
        const char *location;
        enum shoal_status status;
        const char *message;
    } cases[] = {
        {"cpu:0", SHOAL_OK, NULL},
        {"cpu:1", SHOAL_OK, NULL},
        {"*", SHOAL_OK, NULL},
        {"cpu:2", SHOAL_INVALID_ARGUMENT, "location \"cpu:2\": this machine has no NUMA node 2 (there is: 0-1)"},
        {"cpu:01", SHOAL_INVALID_ARGUMENT, "location \"cpu:01\" is neither"},
    };
    struct memory_table *table;
    struct shoal_error error;
    static char bytes[64];

    assert_int_equal(memory_table_create(&table, &error), SHOAL_OK);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        assert_int_equal(memory_register(table, bytes, sizeof bytes, cases[i].location, 0, NULL, &error),
                         cases[i].status);
        if (cases[i].status == SHOAL_OK)
            assert_int_equal(memory_unregister(table, bytes, sizeof bytes, 0, NULL, NULL, &error), SHOAL_OK);
        else
            assert_non_null(strstr(error.message, cases[i].message));
    }
    memory_table_destroy(table);
}

static void addresses(void **state)
{
    (void)state;
    struct sockaddr_in v4 = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    struct sockaddr_in6 v6 = {.sin6_family = AF_INET6, .sin6_addr = IN6ADDR_LOOPBACK_INIT};

    /* Loopback belongs to no node; an address of nobody neither. */
    assert_int_equal(numa_node_of_address((struct sockaddr *)&v4), -1);
    assert_int_equal(numa_node_of_address((struct sockaddr *)&v6), -1);
    v4.sin_addr.s_addr = htonl(0xc0000201);
    assert_int_equal(numa_node_of_address((struct sockaddr *)&v4), -1);
}

static long policy_of(void *addr, unsigned long *nodes_out)
{
    int policy = -1;
    unsigned long mask[16] = {0};

    if (syscall(SYS_get_mempolicy, &policy, mask, 8 * sizeof mask, addr, OF_ADDRESS) != 0)
        return -errno;
    *nodes_out = mask[0];
    return policy;
}

/* With node 0 bound for real, the kernel knows. */
static void memory_is_bound(void **state)
{
    (void)state;
    void *memory = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    unsigned long nodes = 0;
    struct shoal_error error = {0};
    long policy;

    assert_true(memory != MAP_FAILED);
    policy = policy_of(memory, &nodes);
    if (policy != POLICY_DEFAULT) {
        munmap(memory, BYTES);
        print_message("this kernel has no memory policies\n");
        skip();
    }
    if (numa_bind_memory(memory, BYTES, 0, &error) != SHOAL_OK)
        fail_msg("%s", error.message);
    assert_true(policy_of(memory, &nodes) > POLICY_DEFAULT);
    assert_int_equal(nodes, 1);
    memset(memory, 1, BYTES);
    /* The second node is made up, unless this machine has it. */
    if (access("/sys/devices/system/node/node1", F_OK) != 0) {
        assert_int_equal(numa_bind_memory(memory, BYTES, 1, &error), SHOAL_UNSUPPORTED);
        assert_non_null(strstr(error.message, "cannot take memory from NUMA node 1: "));
    }
    munmap(memory, BYTES);
}

static void *run_at_node_0(void *arg)
{
    cpu_set_t *cpus = arg;
    struct shoal_error error;

    if (numa_bind_thread(0, &error) != SHOAL_OK || sched_getaffinity(0, sizeof *cpus, cpus) != 0)
        CPU_ZERO(cpus);
    return NULL;
}

static void *run_where_nothing_is_left(void *arg)
{
    cpu_set_t *cpus = arg;
    struct shoal_error error;

    /* CPU 1 is node 1's: what a user asked for stays. */
    CPU_ZERO(cpus);
    CPU_SET(1, cpus);
    if (sched_setaffinity(0, sizeof *cpus, cpus) != 0 || numa_bind_thread(0, &error) != SHOAL_OK ||
        sched_getaffinity(0, sizeof *cpus, cpus) != 0)
        CPU_ZERO(cpus);
    return NULL;
}

static void threads_are_bound(void **state)
{
    (void)state;
    cpu_set_t allowed, cpus;

    assert_int_equal(sched_getaffinity(0, sizeof allowed, &allowed), 0);
    if (!CPU_ISSET(0, &allowed) || !CPU_ISSET(1, &allowed)) {
        print_message("this process may not run on CPUs 0 and 1\n");
        skip();
    }
    join_thread(start_thread(run_at_node_0, &cpus));
    assert_int_equal(CPU_COUNT(&cpus), 1);
    assert_true(CPU_ISSET(0, &cpus));
    join_thread(start_thread(run_where_nothing_is_left, &cpus));
    assert_int_equal(CPU_COUNT(&cpus), 1);
    assert_true(CPU_ISSET(1, &cpus));
}

int main(int argc, char **argv)
{
    const struct CMUnitTest made_up[] = {
        cmocka_unit_test(nodes),
        cmocka_unit_test(locations_of_memory),
        cmocka_unit_test(addresses),
    };
    const struct CMUnitTest real[] = {
        cmocka_unit_test(memory_is_bound),
        cmocka_unit_test(threads_are_bound),
    };

    (void)argv;
    if (setenv("HWLOC_SYNTHETIC", "numa:2 core:1 pu:1", 1) != 0)
        return 1;
    if (argc < 2)
        return cmocka_run_group_tests_name("made up", made_up, NULL, NULL);
    if (setenv("HWLOC_THISSYSTEM", "1", 1) != 0)
        return 1;
    return cmocka_run_group_tests_name("real", real, NULL, NULL);
}
