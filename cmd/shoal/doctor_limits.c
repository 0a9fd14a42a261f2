/* SPDX-License-Identifier: Apache-2.0 */
/* What the kernel allows this process, and what TCP connections may use. */
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "doctor.h"
#include "units.h"

#define ADVISED_OPEN_FILES 4096
#define ADVISED_MEMLOCK_BYTES (UINT64_C(1) << 30)
#define ADVISED_TCP_BUFFER_BYTES (4 << 20)
/* A node has a few threads per CPU for I/O, digests and disks, and one per watch of the metadata service. */
#define ADVISED_THREADS 512
#define MAPS_RESERVE 2000

static void check_open_files(struct doctor *doctor)
{
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit) != 0)
        doctor_tell(doctor, DOCTOR_SKIP, "open files", NULL, "the limit cannot be read");
    else if (limit.rlim_cur == RLIM_INFINITY)
        doctor_tell(doctor, DOCTOR_OK, "open files", NULL, "unlimited");
    else if (limit.rlim_cur < ADVISED_OPEN_FILES && limit.rlim_max >= ADVISED_OPEN_FILES)
        doctor_tell(doctor, DOCTOR_WARN, "open files", "ulimit -n 65536 (LimitNOFILE= in a systemd unit)",
                    "%llu allowed, %d advised: each peer needs some", (unsigned long long)limit.rlim_cur,
                    ADVISED_OPEN_FILES);
    else if (limit.rlim_cur < ADVISED_OPEN_FILES)
        doctor_tell(doctor, DOCTOR_WARN, "open files",
                    "raise the hard limit: nofile in /etc/security/limits.conf, LimitNOFILE= in a systemd unit, "
                    "--ulimit nofile= of a container",
                    "%llu allowed and no more than %llu can be asked for, %d advised: each peer needs some",
                    (unsigned long long)limit.rlim_cur, (unsigned long long)limit.rlim_max, ADVISED_OPEN_FILES);
    else
        doctor_tell(doctor, DOCTOR_OK, "open files", NULL, "%llu allowed", (unsigned long long)limit.rlim_cur);
}

static void check_locked_memory(struct doctor *doctor)
{
    struct rlimit limit;
    char text[UNITS_TEXT_BYTES];
    if (getrlimit(RLIMIT_MEMLOCK, &limit) != 0)
        doctor_tell(doctor, DOCTOR_SKIP, "locked memory", NULL, "the limit cannot be read");
    else if (limit.rlim_cur == RLIM_INFINITY)
        doctor_tell(doctor, DOCTOR_OK, "locked memory", NULL, "unlimited");
    else if (limit.rlim_cur >= ADVISED_MEMLOCK_BYTES)
        doctor_tell(doctor, DOCTOR_OK, "locked memory", NULL, "%s allowed", units_format_size(limit.rlim_cur, text));
    else if (doctor->has_rdma)
        doctor_tell(doctor, DOCTOR_WARN, "locked memory",
                    "ulimit -l unlimited (memlock in /etc/security/limits.conf, LimitMEMLOCK=infinity in a systemd "
                    "unit, --ulimit memlock=-1 of a container)",
                    "%s allowed: the RDMA devices here can register no more memory than that",
                    units_format_size(limit.rlim_cur, text));
    else
        doctor_tell(doctor, DOCTOR_OK, "locked memory", NULL,
                    "%s allowed: enough for TCP and the same host; RDMA would need ulimit -l unlimited",
                    units_format_size(limit.rlim_cur, text));
}

/* The lowest of the limits that apply; each is left out if it cannot be read. */
static void check_threads(struct doctor *doctor)
{
    struct {
        long long value;
        const char *what, *advice;
    } bounds[3] = {
        {-1, "ulimit -u", "raise nproc in /etc/security/limits.conf, or TasksMax= in a systemd unit"},
        {doctor_read_number("/proc/sys/kernel/threads-max", 0), "kernel.threads-max",
         "sysctl -w kernel.threads-max=65536"},
        {doctor_read_number("/sys/fs/cgroup/pids.max", 0), "pids.max of the control group",
         "raise --pids-limit of the container, or TasksMax= of the systemd unit"},
    };
    struct rlimit limit;
    size_t lowest = 0;
    if (getrlimit(RLIMIT_NPROC, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY)
        bounds[0].value = limit.rlim_cur < (rlim_t)INT64_MAX ? (long long)limit.rlim_cur : -1;
    for (size_t i = 1; i < sizeof bounds / sizeof *bounds; i++)
        if (bounds[i].value >= 0 && (bounds[lowest].value < 0 || bounds[i].value < bounds[lowest].value))
            lowest = i;
    if (bounds[lowest].value < 0)
        doctor_tell(doctor, DOCTOR_OK, "threads", NULL, "no limit");
    else if (bounds[lowest].value < ADVISED_THREADS)
        doctor_tell(doctor, DOCTOR_WARN, "threads", bounds[lowest].advice, "%lld allowed (%s), %d advised",
                    bounds[lowest].value, bounds[lowest].what, ADVISED_THREADS);
    else
        doctor_tell(doctor, DOCTOR_OK, "threads", NULL, "%lld allowed (%s)", bounds[lowest].value, bounds[lowest].what);
}

void doctor_check_limits(struct doctor *doctor)
{
    check_open_files(doctor);
    check_locked_memory(doctor);
    check_threads(doctor);
    long long maps = doctor_read_number("/proc/sys/vm/max_map_count", 0);
    if (maps < 0)
        doctor_tell(doctor, DOCTOR_SKIP, "memory maps", NULL, "vm.max_map_count cannot be read here");
    else
        doctor_tell(doctor, DOCTOR_OK, "memory maps", NULL, "vm.max_map_count %lld: payloads of up to about %lld files",
                    maps, maps > MAPS_RESERVE ? maps - MAPS_RESERVE : 0);
}

/* --- TCP --- */

static void check_buffer(struct doctor *doctor, const char *check, const char *path, int field, const char *advice)
{
    char have[UNITS_TEXT_BYTES], want[UNITS_TEXT_BYTES];
    long long value = doctor_read_number(path, field);
    if (value < 0)
        doctor_tell(doctor, DOCTOR_SKIP, check, NULL, "%s cannot be read here", path);
    else if (value < ADVISED_TCP_BUFFER_BYTES)
        doctor_tell(
            doctor, DOCTOR_WARN, check, advice, "a connection's buffer grows to %s, %s advised for fast networks",
            units_format_size((uint64_t)value, have), units_format_size((uint64_t)ADVISED_TCP_BUFFER_BYTES, want));
    else
        doctor_tell(doctor, DOCTOR_OK, check, NULL, "a connection's buffer grows to %s",
                    units_format_size((uint64_t)value, have));
}

static void check_congestion(struct doctor *doctor)
{
    char used[64], available[200];
    if (!doctor_read_line("/proc/sys/net/ipv4/tcp_congestion_control", used, sizeof used)) {
        doctor_tell(doctor, DOCTOR_SKIP, "tcp congestion", NULL, "net.ipv4.tcp_congestion_control cannot be read here");
        return;
    }
    if (!doctor_read_line("/proc/sys/net/ipv4/tcp_available_congestion_control", available, sizeof available))
        snprintf(available, sizeof available, "not known");
    doctor_tell(doctor, DOCTOR_OK, "tcp congestion", NULL, "%s is used; there are: %s", used, available);
}

void doctor_check_network(struct doctor *doctor)
{
    char text[UNITS_TEXT_BYTES];
    check_buffer(doctor, "tcp receive", "/proc/sys/net/ipv4/tcp_rmem", 2,
                 "sysctl -w net.ipv4.tcp_rmem='4096 131072 16777216'");
    check_buffer(doctor, "tcp send", "/proc/sys/net/ipv4/tcp_wmem", 2,
                 "sysctl -w net.ipv4.tcp_wmem='4096 65536 16777216'");
    /* Not visible in every network namespace. It bounds only what a program asks for itself. */
    long long fixed = doctor_read_number("/proc/sys/net/core/rmem_max", 0);
    if (fixed < 0)
        doctor_tell(doctor, DOCTOR_SKIP, "rmem_max", NULL, "net.core.rmem_max cannot be read here");
    else
        doctor_tell(doctor, DOCTOR_OK, "rmem_max", NULL,
                    "net.core.rmem_max %s: buffers that grow by themselves (the lines above) are not bounded by it",
                    units_format_size((uint64_t)fixed, text));
    check_congestion(doctor);
}
