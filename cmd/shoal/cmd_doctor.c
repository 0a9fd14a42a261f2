/* SPDX-License-Identifier: Apache-2.0 */
/* Looks at what most often goes wrong, says how it is and what to do. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <netdb.h>
#include <poll.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "app.h"
#include "base/call.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/hostport.h"
#include "meta/meta.h"
#include "terminal.h"
#include "units.h"

#define CONNECT_TIMEOUT_MS 2000
#define CHECKED_SOURCES 32
#define ADVISED_OPEN_FILES 4096
#define ADVISED_MEMLOCK_BYTES (UINT64_C(1) << 30)
#define ADVISED_TCP_BUFFER_BYTES (4 << 20)
#define ADVISED_FREE_BYTES (UINT64_C(1) << 30)
#define SLOW_METADATA_US 50000

enum state { STATE_OK, STATE_WARN, STATE_FAIL };

struct doctor {
    struct app *app;
    json_t *checks; /* owned; NULL without --json */
    unsigned warnings, failures;
    bool has_metadata, is_cluster_wide; /* is_cluster_wide: the metadata service is on another machine */
};

/* advice NULL: none. */
static void tell(struct doctor *doctor, enum state state, const char *check, const char *advice, const char *format,
                 ...) __attribute__((format(printf, 5, 6)));

static void tell(struct doctor *doctor, enum state state, const char *check, const char *advice, const char *format,
                 ...)
{
    static const char *const names[] = {"OK", "WARN", "FAIL"};
    static const char *const colors[] = {"\033[32m", "\033[33m", "\033[31m"};
    char text[700], shown[700];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    units_printable(text, shown, sizeof shown);
    doctor->warnings += state == STATE_WARN;
    doctor->failures += state == STATE_FAIL;
    if (doctor->checks) {
        json_array_append_new(doctor->checks,
                              json_pack("{s:s, s:s, s:o, s:o?}", "check", check, "state", names[state], "text",
                                        json_text(shown), "advice", advice ? json_text(advice) : NULL));
        return;
    }
    bool has_color = isatty(STDOUT_FILENO) && terminal_is_live();
    printf("%s%-4s%s  %-14s %s\n", has_color ? colors[state] : "", names[state], has_color ? "\033[0m" : "", check,
           shown);
    if (advice)
        printf("      %-14s do: %s\n", "", advice);
    fflush(stdout);
}

static bool is_loopback(const struct sockaddr_storage *addr)
{
    if (addr->ss_family == AF_INET)
        return ntohl(((const struct sockaddr_in *)addr)->sin_addr.s_addr) >> 24 == 127;
    return addr->ss_family == AF_INET6 && IN6_IS_ADDR_LOOPBACK(&((const struct sockaddr_in6 *)addr)->sin6_addr);
}

static void check_metadata(struct doctor *doctor)
{
    struct app *app = doctor->app;
    struct shoal_error error;
    struct meta *meta = NULL;
    struct shoal_call outer = app_call(app);
    struct call call;
    char version[128];
    int64_t rtt_us = 0;
    if (meta_open(app->metadata_uri, &meta, &error) != SHOAL_OK) {
        tell(doctor, STATE_FAIL, "metadata", "give --metadata sqlite:PATH or --metadata etcd://HOST:PORT", "%s",
             error.message);
        return;
    }
    if (call_init(&call, &outer, 5000, &error) != SHOAL_OK ||
        meta_ping(meta, &call, version, sizeof version, &rtt_us, &error) != SHOAL_OK) {
        tell(doctor, STATE_FAIL, "metadata",
             strcmp(meta_backend_name(meta), "etcd") == 0
                 ? "start etcd, or correct the address, the credentials or the firewall"
                 : "check that the file's directory exists and can be written, and that it is on a local disk",
             "%s: %s", app->metadata_uri, error.message);
    } else if (rtt_us > SLOW_METADATA_US) {
        tell(doctor, STATE_WARN, "metadata", "give etcd a faster disk or network; each get makes a few requests",
             "%s: %s, %.1f ms a request: slow", app->metadata_uri, version, (double)rtt_us / 1000);
        doctor->has_metadata = true;
    } else {
        tell(doctor, STATE_OK, "metadata", NULL, "%s: %s, %.1f ms a request", app->metadata_uri, version,
             (double)rtt_us / 1000);
        doctor->has_metadata = true;
    }
    doctor->is_cluster_wide = strcmp(meta_backend_name(meta), "etcd") == 0 && !strstr(app->metadata_uri, "127.0.0.1") &&
                              !strstr(app->metadata_uri, "localhost") && !strstr(app->metadata_uri, "[::1]");
    meta_close(meta);
}

static void check_name(struct doctor *doctor)
{
    struct hostport name;
    struct sockaddr_storage addr;
    socklen_t len;
    struct shoal_error error;
    char text[HOSTPORT_TEXT_BYTES];
    const char *advice = "give an address of this machine that the others reach, as --name 10.0.0.5:0";
    if (hostport_parse(&name, doctor->app->settings.name, &error) != SHOAL_OK ||
        hostport_resolve(name.host, name.has_port ? name.port : 0, &addr, &len, &error) != SHOAL_OK) {
        tell(doctor, STATE_FAIL, "name", advice, "%s", error.message);
        return;
    }
    sockaddr_format((const struct sockaddr *)&addr, text);
    int fd = socket(addr.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0), one = 1;
    if (fd >= 0)
        setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    if (fd < 0 || bind(fd, (const struct sockaddr *)&addr, len) != 0) {
        int number = errno;
        if (number == EADDRINUSE)
            tell(doctor, STATE_WARN, "name", "that is fine while a shoal serves there; a second one needs another port",
                 "%s: the port is in use", text);
        else
            tell(doctor, STATE_FAIL, "name", advice, "%s cannot be bound: %s", text, strerror(number));
    } else if (is_loopback(&addr) && doctor->is_cluster_wide) {
        tell(doctor, STATE_WARN, "name", advice,
             "%s: only this machine reaches it, but the metadata service serves a cluster", text);
    } else {
        tell(doctor, STATE_OK, "name", NULL, "%s can be bound%s", text,
             is_loopback(&addr) ? " (loopback: only this machine reaches it)" : "");
    }
    if (fd >= 0)
        close(fd);
}

static bool can_connect(const char *address, struct shoal_error *error)
{
    struct hostport target;
    struct sockaddr_storage addr;
    socklen_t len;
    if (hostport_parse(&target, address, error) != SHOAL_OK ||
        hostport_resolve(target.host, target.port, &addr, &len, error) != SHOAL_OK)
        return false;
    int fd = socket(addr.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0), number = 0;
    socklen_t number_len = sizeof number;
    if (fd < 0 || (connect(fd, (const struct sockaddr *)&addr, len) != 0 && errno != EINPROGRESS)) {
        number = errno;
    } else {
        struct pollfd ready = {.fd = fd, .events = POLLOUT};
        if (poll(&ready, 1, CONNECT_TIMEOUT_MS) <= 0)
            number = ETIMEDOUT;
        else if (getsockopt(fd, SOL_SOCKET, SO_ERROR, &number, &number_len) != 0)
            number = errno;
    }
    if (fd >= 0)
        close(fd);
    if (number)
        error_set(error, SHOAL_UNREACHABLE, number, "%s", strerror(number));
    return number == 0;
}

/* Joins the cluster as a get would, and knocks at the sources that are listed. */
static void check_cluster(struct doctor *doctor)
{
    struct app *app = doctor->app;
    struct shoal_payload_info *infos = NULL;
    size_t count = 0, sources = 0, unreachable = 0, unreadable = 0;
    struct shoal_error error;
    if (app_open_store(app, true, &error) != SHOAL_OK) {
        tell(doctor, STATE_FAIL, "cluster", "see the lines above", "cannot join: %s", error.message);
        return;
    }
    struct shoal_call call = app_call(app);
    if (shoal_store_list(app->store, "", &call, &infos, &count, &error) != SHOAL_OK) {
        tell(doctor, STATE_FAIL, "cluster", "see the lines above", "cannot list the payloads: %s", error.message);
        return;
    }
    for (size_t i = 0; i < count; i++) {
        unreadable += infos[i].status != SHOAL_OK;
        for (size_t j = 0; j < infos[i].source_count && sources < CHECKED_SOURCES && !signals_received(); j++) {
            const struct shoal_source_info *source = &infos[i].sources[j];
            sources++;
            if (can_connect(source->address, &error))
                continue;
            unreachable++;
            tell(doctor, STATE_WARN, "source",
                 "see whether it runs, and whether its --name is an address that this machine reaches",
                 "%s of \"%s\" is listed at %s, but: %s", source->name, infos[i].name, source->address, error.message);
        }
    }
    tell(doctor, unreadable ? STATE_WARN : STATE_OK, "cluster",
         unreadable ? "a newer or another program wrote them; shoal ls shows which" : NULL,
         "joined \"%s\": %zu payloads (%zu unreadable), %zu of %zu sources tried are reachable", app->settings.cluster,
         count, unreadable, sources - unreachable, sources);
    shoal_payload_infos_free(infos, count);
    shoal_store_close(app->store, NULL);
    app->store = NULL;
}

static void check_limits(struct doctor *doctor)
{
    struct rlimit limit;
    char text[UNITS_TEXT_BYTES];
    if (getrlimit(RLIMIT_NOFILE, &limit) == 0) {
        if (limit.rlim_cur < ADVISED_OPEN_FILES)
            tell(doctor, STATE_WARN, "open files", "ulimit -n 65536 (LimitNOFILE= in a systemd unit)",
                 "%llu allowed, %d advised: each peer needs some", (unsigned long long)limit.rlim_cur,
                 ADVISED_OPEN_FILES);
        else
            tell(doctor, STATE_OK, "open files", NULL, "%llu allowed", (unsigned long long)limit.rlim_cur);
    }
    if (getrlimit(RLIMIT_MEMLOCK, &limit) == 0) {
        if (limit.rlim_cur == RLIM_INFINITY)
            tell(doctor, STATE_OK, "locked memory", NULL, "unlimited");
        else if (limit.rlim_cur < ADVISED_MEMLOCK_BYTES)
            tell(doctor, STATE_OK, "locked memory", NULL,
                 "%s allowed: enough for TCP; RDMA would need ulimit -l unlimited",
                 units_format_size(limit.rlim_cur, text));
        else
            tell(doctor, STATE_OK, "locked memory", NULL, "%s allowed", units_format_size(limit.rlim_cur, text));
    }
}

/* Field 0, 1 or 2 of a file below /proc/sys; -1: cannot be read. */
static long long read_sysctl(const char *path, int field)
{
    long long values[3] = {-1, -1, -1};
    FILE *file = fopen(path, "re");
    if (!file)
        return -1;
    int count = fscanf(file, "%lld %lld %lld", &values[0], &values[1], &values[2]);
    fclose(file);
    return field < count ? values[field] : -1;
}

static void check_kernel(struct doctor *doctor)
{
    static const struct {
        const char *name, *path, *advice;
        int field;
        long long advised;
    } sysctls[] = {
        {"tcp receive", "/proc/sys/net/ipv4/tcp_rmem", "sysctl -w net.ipv4.tcp_rmem='4096 131072 16777216'", 2,
         ADVISED_TCP_BUFFER_BYTES},
        {"tcp send", "/proc/sys/net/ipv4/tcp_wmem", "sysctl -w net.ipv4.tcp_wmem='4096 65536 16777216'", 2,
         ADVISED_TCP_BUFFER_BYTES},
    };
    char have[UNITS_TEXT_BYTES], want[UNITS_TEXT_BYTES];
    for (size_t i = 0; i < sizeof sysctls / sizeof *sysctls; i++) {
        long long value = read_sysctl(sysctls[i].path, sysctls[i].field);
        if (value < 0)
            tell(doctor, STATE_OK, sysctls[i].name, NULL, "%s cannot be read here", sysctls[i].path);
        else if (value < sysctls[i].advised)
            tell(doctor, STATE_WARN, sysctls[i].name, sysctls[i].advice,
                 "a connection's buffer grows to %s, %s advised for fast networks",
                 units_format_size((uint64_t)value, have), units_format_size((uint64_t)sysctls[i].advised, want));
        else
            tell(doctor, STATE_OK, sysctls[i].name, NULL, "a connection's buffer grows to %s",
                 units_format_size((uint64_t)value, have));
    }
    long long maps = read_sysctl("/proc/sys/vm/max_map_count", 0);
    if (maps > 0)
        tell(doctor, STATE_OK, "memory maps", NULL, "vm.max_map_count %lld: payloads of up to about %lld files", maps,
             maps > 2000 ? maps - 2000 : 0);
}

static void check_space(struct doctor *doctor)
{
    const char *path = doctor->app->settings.dir;
    struct statvfs info;
    char text[UNITS_TEXT_BYTES];
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0 || fstatvfs(fd, &info) != 0) {
        tell(doctor, STATE_FAIL, "directory", "make it, or give another with --dir", "%s: %s", path, strerror(errno));
    } else if (faccessat(AT_FDCWD, path, W_OK | X_OK, AT_EACCESS) != 0) {
        tell(doctor, STATE_FAIL, "directory", "change its owner or mode, or give another with --dir", "%s: %s", path,
             strerror(errno));
    } else {
        uint64_t bytes = (uint64_t)(geteuid() == 0 ? info.f_bfree : info.f_bavail) * info.f_frsize;
        bool is_little = bytes < ADVISED_FREE_BYTES;
        tell(doctor, is_little ? STATE_WARN : STATE_OK, "directory",
             is_little ? "free some space, or give another directory with --dir" : NULL, "%s: %s free", path,
             units_format_size(bytes, text));
    }
    if (fd >= 0)
        close(fd);
}

static void check_rdma(struct doctor *doctor)
{
    DIR *directory = opendir("/sys/class/infiniband");
    size_t count = 0;
    for (const struct dirent *entry; directory && (entry = readdir(directory));)
        count += entry->d_name[0] != '.';
    if (directory)
        closedir(directory);
    if (count)
        tell(doctor, STATE_OK, "rdma", NULL, "%zu devices; this version transfers over TCP", count);
    else
        tell(doctor, STATE_OK, "rdma", NULL, "no device: TCP is used");
}

static int run_doctor(struct app *app, int count, char **arguments)
{
    struct doctor doctor = {.app = app, .checks = app->settings.is_json ? json_array() : NULL};
    (void)count;
    (void)arguments;
    check_metadata(&doctor);
    check_name(&doctor);
    if (doctor.has_metadata)
        check_cluster(&doctor);
    check_limits(&doctor);
    check_kernel(&doctor);
    check_space(&doctor);
    check_rdma(&doctor);
    if (app->settings.is_json)
        json_print(json_pack("{s:s, s:s, s:b, s:i, s:i, s:o}", "event", "result", "command", "doctor", "healthy",
                             doctor.failures == 0, "failures", (int)doctor.failures, "warnings", (int)doctor.warnings,
                             "checks", doctor.checks));
    else
        printf("%u failure%s, %u warning%s\n", doctor.failures, doctor.failures == 1 ? "" : "s", doctor.warnings,
               doctor.warnings == 1 ? "" : "s");
    if (signals_received())
        return 128 + signals_received();
    return doctor.failures ? EXIT_CODE_FAILURE : EXIT_CODE_OK;
}

static const struct option_spec options[] = {
    {OPTION_TEXT, 'd', "dir", "DIR", "SHOAL_DIR", offsetof(struct settings, dir), .complete = "dir",
     .help = "The directory that payloads will be written to. Default: the current one."},
    {OPTION_END},
};

const struct command command_doctor = {
    .name = "doctor",
    .arguments = "",
    .summary = "check this machine and the metadata service",
    .text =
        "Checks the metadata service, the address of this node, the sources that are listed, limits, kernel settings "
        "and disk space, and says what to do. Exits with 1 if a check fails, with 0 if there are only warnings.",
    .options = options,
    .has_common_options = true,
    .min_arguments = 0,
    .max_arguments = 0,
    .run = run_doctor,
};
