/* SPDX-License-Identifier: Apache-2.0 */
#include "lib/bench.h"

#include <errno.h>
#include <ftw.h>
#include <getopt.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdarg.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define RAW_CHUNK_BYTES ((size_t)1 << 20)
#define DIGEST_BLOCK_BYTES ((uint64_t)64 << 20)

void bench_die(const char *format, ...)
{
    va_list args;

    fflush(stdout);
    fputs("bench: ", stderr);
    va_start(args, format);
    vfprintf(stderr, format, args);
    va_end(args);
    fputc('\n', stderr);
    exit(1);
}

void bench_check(enum shoal_status status, const struct shoal_error *error, const char *what)
{
    if (status != SHOAL_OK)
        bench_die("%s: %s: %s", what, shoal_status_name(status), error ? error->message : shoal_status_text(status));
}

/* --- options --- */

enum { OPTION_MAX = 16 };

static void print_help(const char *name, const char *purpose, const struct bench_option *options)
{
    printf("usage: bench/run %s [OPTIONS]\n\n%s\n\n", name, purpose);
    for (; options->name; options++) {
        char left[64];
        switch (options->kind) {
        case BENCH_SIZE:
            snprintf(left, sizeof left, "--%s BYTES", options->name);
            printf("  %-22s %s (default %.6g MiB; K, M, G are accepted)\n", left, options->help,
                   (double)*(uint64_t *)options->value / (1 << 20));
            break;
        case BENCH_COUNT:
            snprintf(left, sizeof left, "--%s N", options->name);
            printf("  %-22s %s (default %u)\n", left, options->help, *(unsigned *)options->value);
            break;
        case BENCH_TEXT:
            snprintf(left, sizeof left, "--%s TEXT", options->name);
            printf("  %-22s %s\n", left, options->help);
            break;
        case BENCH_FLAG:
            snprintf(left, sizeof left, "--%s", options->name);
            printf("  %-22s %s\n", left, options->help);
            break;
        }
    }
    printf("  %-22s this text\n", "--help");
}

static bool parse_number(const char *text, bool is_size, uint64_t *value_out)
{
    unsigned long long value;
    unsigned shift = 0;
    char *end;

    if (*text < '0' || *text > '9')
        return false;
    errno = 0;
    value = strtoull(text, &end, 10);
    if (errno)
        return false;
    if (is_size && *end) {
        static const char units[] = "KMGT";
        const char *unit = strchr(units, *end);
        if (!unit)
            return false;
        shift = 10 * (unsigned)(unit - units + 1);
        end++;
        if (strcmp(end, "iB") == 0)
            end += 2;
    }
    if (*end || value > UINT64_MAX >> shift)
        return false;
    *value_out = (uint64_t)value << shift;
    return true;
}

static void set_option(const char *name, const struct bench_option *option, const char *text)
{
    uint64_t number = 0;

    switch (option->kind) {
    case BENCH_SIZE:
    case BENCH_COUNT:
        if (!parse_number(text, option->kind == BENCH_SIZE, &number) || number < option->min || number > option->max) {
            fprintf(stderr, "bench %s: --%s: '%s' is not a number in %llu..%llu\n", name, option->name, text,
                    (unsigned long long)option->min, (unsigned long long)option->max);
            exit(2);
        }
        if (option->kind == BENCH_SIZE)
            *(uint64_t *)option->value = number;
        else
            *(unsigned *)option->value = (unsigned)number;
        break;
    case BENCH_TEXT:
        *(const char **)option->value = text;
        break;
    case BENCH_FLAG:
        *(bool *)option->value = true;
        break;
    }
}

void bench_options(int argc, char **argv, const char *name, const char *purpose, const struct bench_option *options)
{
    struct option table[OPTION_MAX + 2] = {{0}};
    int count = 0, found;

    for (; options[count].name && count < OPTION_MAX; count++)
        table[count] = (struct option){
            options[count].name, options[count].kind == BENCH_FLAG ? no_argument : required_argument, NULL, count};
    table[count] = (struct option){"help", no_argument, NULL, OPTION_MAX};
    opterr = 0;
    while ((found = getopt_long(argc, argv, ":", table, NULL)) != -1) {
        if (found == OPTION_MAX) {
            print_help(name, purpose, options);
            exit(0);
        }
        if (found == '?' || found == ':') {
            fprintf(stderr, "bench %s: %s '%s' (see bench/run %s --help)\n", name,
                    found == ':' ? "no value for option" : "unknown option", argv[optind - 1], name);
            exit(2);
        }
        set_option(name, &options[found], optarg);
    }
    if (optind < argc) {
        fprintf(stderr, "bench %s: unexpected argument '%s' (see bench/run %s --help)\n", name, argv[optind], name);
        exit(2);
    }
}

/* --- measuring --- */

double bench_now_s(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

double bench_cpu_s(void)
{
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    return (double)(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
           (double)(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) * 1e-6;
}

static int compare_doubles(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

double bench_median(const double *values, size_t count)
{
    double *sorted = malloc(count * sizeof *sorted), median;
    if (!sorted)
        bench_die("out of memory");
    memcpy(sorted, values, count * sizeof *sorted);
    qsort(sorted, count, sizeof *sorted, compare_doubles);
    median = count % 2 ? sorted[count / 2] : (sorted[count / 2 - 1] + sorted[count / 2]) / 2;
    free(sorted);
    return median;
}

/* A "Name:   N kB" line of a file in /proc; 0: not there. */
static uint64_t proc_kib(const char *path, const char *name)
{
    char line[256];
    unsigned long long kib = 0;
    size_t name_len = strlen(name);
    FILE *file = fopen(path, "re");

    if (!file)
        return 0;
    while (fgets(line, sizeof line, file)) {
        if (strncmp(line, name, name_len) == 0 && line[name_len] == ':') {
            kib = strtoull(line + name_len + 1, NULL, 10);
            break;
        }
    }
    fclose(file);
    return kib;
}

uint64_t bench_peak_rss(void)
{
    return proc_kib("/proc/self/status", "VmHWM") << 10;
}

bool bench_reset_peak_rss(void)
{
    FILE *file = fopen("/proc/self/clear_refs", "we");
    bool is_done;

    if (!file)
        return false;
    is_done = fputs("5", file) >= 0;
    return fclose(file) == 0 && is_done;
}

void bench_require_memory(uint64_t bytes)
{
    uint64_t available = proc_kib("/proc/meminfo", "MemAvailable") << 10;
    if (available && available < bytes + (256u << 20))
        bench_die("needs %.1f GiB of memory, %.1f GiB are available: choose a smaller --size",
                  (double)bytes / (1 << 30), (double)available / (1 << 30));
}

unsigned bench_cpu_count(void)
{
    long count = sysconf(_SC_NPROCESSORS_ONLN);
    return count > 0 ? (unsigned)count : 1;
}

/* --- memory --- */

void *bench_alloc(uint64_t bytes)
{
    void *memory =
        mmap(NULL, bytes ? bytes : 1, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
    if (memory == MAP_FAILED)
        bench_die("cannot map %llu bytes: %s", (unsigned long long)bytes, strerror(errno));
    memset(memory, 0xa5, bytes); /* populated pages may still be the shared zero page */
    return memory;
}

void bench_free(void *memory, uint64_t bytes)
{
    munmap(memory, bytes ? bytes : 1);
}

void bench_fill(void *memory, uint64_t bytes, uint64_t seed)
{
    uint8_t *to = memory;
    /* splitmix64 of the position */
    for (uint64_t at = 0; at < bytes; at += 8) {
        uint64_t z = seed + (at / 8 + 1) * 0x9e3779b97f4a7c15u;
        z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
        z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
        z ^= z >> 31;
        memcpy(to + at, &z, bytes - at < 8 ? (size_t)(bytes - at) : 8);
    }
}

struct digest bench_digest(const void *memory, uint64_t bytes)
{
    struct digest_stream *stream = digest_stream_create();
    struct digest digest;

    if (!stream)
        bench_die("out of memory");
    for (uint64_t at = 0; at < bytes; at += DIGEST_BLOCK_BYTES) {
        uint64_t len = bytes - at < DIGEST_BLOCK_BYTES ? bytes - at : DIGEST_BLOCK_BYTES;
        digest = digest_of((const uint8_t *)memory + at, (size_t)len);
        digest_stream_update(stream, digest.bytes, sizeof digest.bytes);
    }
    digest = digest_stream_final(stream);
    digest_stream_destroy(stream);
    return digest;
}

/* --- places --- */

static char temp_dir[256];
static pid_t temp_dir_owner;

static int remove_entry(const char *path, const struct stat *info, int type, struct FTW *position)
{
    (void)info;
    (void)type;
    (void)position;
    return remove(path);
}

static void remove_temp_dir(void)
{
    if (temp_dir[0] && temp_dir_owner == getpid())
        nftw(temp_dir, remove_entry, 16, FTW_DEPTH | FTW_PHYS);
}

/* A benchmark that is told to end leaves no folder, either. Only calls that are safe in a handler: rm does it. Children
 * have the handler, too, and go as they would without. */
static void on_end_signal(int number)
{
    if (temp_dir[0] && temp_dir_owner == getpid()) {
        pid_t pid = _Fork();

        if (pid == 0) {
            execl("/bin/rm", "rm", "-rf", "--", temp_dir, (char *)NULL);
            _exit(127);
        }
        while (pid > 0 && waitpid(pid, NULL, 0) < 0 && errno == EINTR)
            ;
    }
    signal(number, SIG_DFL);
    raise(number);
}

static void catch_end_signals(void)
{
    static const int numbers[] = {SIGTERM, SIGINT, SIGHUP};
    struct sigaction action = {.sa_handler = on_end_signal};

    sigfillset(&action.sa_mask);
    for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++)
        sigaction(numbers[i], &action, NULL);
}

const char *bench_temp_dir(void)
{
    const char *base = getenv("TMPDIR");

    if (temp_dir[0])
        return temp_dir;
    snprintf(temp_dir, sizeof temp_dir, "%s/shoal-bench-XXXXXX", base && *base ? base : "/tmp");
    if (!mkdtemp(temp_dir))
        bench_die("cannot make a folder %s: %s", temp_dir, strerror(errno));
    temp_dir_owner = getpid();
    atexit(remove_temp_dir);
    catch_end_signals();
    return temp_dir;
}

/* --- processes and pipes --- */

struct bench_side bench_side_start(void (*run)(int control), const struct bench_side *others, size_t other_count)
{
    int ends[2];
    pid_t parent = getpid();
    struct bench_side side;

    if (socketpair(AF_UNIX, SOCK_STREAM, 0, ends) != 0)
        bench_die("socketpair: %s", strerror(errno));
    fflush(stdout);
    side.pid = fork();
    if (side.pid < 0)
        bench_die("fork: %s", strerror(errno));
    if (side.pid == 0) {
        /* A benchmark that is interrupted leaves nothing running. */
        prctl(PR_SET_PDEATHSIG, SIGTERM);
        if (getppid() != parent)
            _exit(1);
        close(ends[0]);
        for (size_t i = 0; i < other_count; i++)
            close(others[i].control);
        run(ends[1]);
        _exit(0);
    }
    close(ends[1]);
    side.control = ends[0];
    return side;
}

void bench_send(int fd, const void *data, size_t len)
{
    for (const char *from = data; len;) {
        ssize_t put = write(fd, from, len);
        if (put < 0 && errno == EINTR)
            continue;
        if (put <= 0)
            bench_die("a process of the benchmark is gone: %s", strerror(errno));
        from += put;
        len -= (size_t)put;
    }
}

void bench_receive(int fd, void *data, size_t len)
{
    for (char *to = data; len;) {
        ssize_t got = read(fd, to, len);
        if (got < 0 && errno == EINTR)
            continue;
        if (got <= 0)
            bench_die("a process of the benchmark ended early");
        to += got;
        len -= (size_t)got;
    }
}

/* --- raw sockets --- */

int bench_tcp_socket(const char *congestion_control)
{
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

    if (fd < 0)
        bench_die("socket: %s", strerror(errno));
    if (congestion_control &&
        setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, congestion_control, (socklen_t)strlen(congestion_control)) != 0)
        bench_die("congestion control '%s': %s", congestion_control, strerror(errno));
    return fd;
}

void bench_raw_send(int fd, const void *memory, uint64_t bytes)
{
    for (const uint8_t *from = memory; bytes;) {
        ssize_t sent = send(fd, from, bytes < RAW_CHUNK_BYTES ? (size_t)bytes : RAW_CHUNK_BYTES, MSG_NOSIGNAL);
        if (sent <= 0)
            bench_die("send: %s", strerror(errno));
        from += sent;
        bytes -= (uint64_t)sent;
    }
}

void bench_raw_receive(int fd, void *memory, uint64_t bytes)
{
    for (uint8_t *to = memory; bytes;) {
        ssize_t got = recv(fd, to, bytes < RAW_CHUNK_BYTES ? (size_t)bytes : RAW_CHUNK_BYTES, 0);
        if (got <= 0)
            bench_die("receive: %s", got ? strerror(errno) : "the other side closed early");
        to += got;
        bytes -= (uint64_t)got;
    }
}
