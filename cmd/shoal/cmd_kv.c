/* SPDX-License-Identifier: Apache-2.0 */
/* shoal kv put and get, and what all kv commands share. */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "app.h"
#include "base/clock.h"
#include "base/error.h"
#include "greet.h"
#include "matrix_option.h"
#include "progress.h"
#include "units.h"

#define READ_FIRST_BYTES ((size_t)64 << 10)
#define SIGNAL_POLL_MS 100
#define GREET_TIMEOUT_MS 3000
#define BAR_INTERVAL_MS 200
#define BAR_MIN_BYTES ((uint64_t)16 << 20)
#define FILE_STEP_BYTES ((size_t)4 << 20) /* of a file, between two looks at signals and the clock */

const char *app_kv_peer(const struct app *app)
{
    static char text[256];
    if (app->settings.kv_master)
        snprintf(text, sizeof text, "the master at %s", app->settings.kv_master);
    else
        snprintf(text, sizeof text, "the mooncake_client at %s", app->settings.kv_client);
    return text;
}

/* The port names the mooncake_client; whoever gives no --cluster takes the one it belongs to. "" if it does not say:
 * the attempt to use it finds out why. */
static void find_cluster(const struct app *app, char cluster_out[HELLO_CLUSTER_MAX_BYTES + 1])
{
    struct shoal_error error;
    struct hello hello;
    int64_t left_ms = deadline_left_ms(app->deadline_ms);
    int64_t deadline_ms = deadline_after_ms(left_ms < GREET_TIMEOUT_MS ? left_ms : GREET_TIMEOUT_MS);
    int fd = greet_connect_to(app->settings.kv_client, (int)deadline_left_ms(deadline_ms), &error);
    cluster_out[0] = '\0';
    if (fd < 0)
        return;
    if (greet_ask(fd, options_default_cluster, (int)deadline_left_ms(deadline_ms), &hello))
        memcpy(cluster_out, hello.cluster, sizeof hello.cluster);
    close(fd);
}

enum shoal_status app_open_kv(struct app *app, struct shoal_error *error)
{
    struct shoal_kv_config config = {.struct_size = sizeof config};
    struct shoal_call call;
    char *matrix = NULL, cluster[HELLO_CLUSTER_MAX_BYTES + 1] = "";
    enum shoal_status status = SHOAL_OK;
    if (app->settings.kv_master) {
        config.master = app->settings.kv_master;
        config.host = app->settings.kv_host;
        config.cluster = app->settings.cluster;
        config.protocol = app->settings.protocol;
        status = matrix_option_read(app->settings.nic_priority_matrix, &matrix, error);
        config.nic_priority_matrix = matrix;
    } else {
        config.client = app->settings.kv_client;
        config.cluster = app->settings.cluster;
        if (app->settings.cluster == options_default_cluster) {
            find_cluster(app, cluster);
            if (cluster[0])
                config.cluster = cluster;
            else if (deadline_is_past(app->deadline_ms))
                status = error_set(error, SHOAL_TIMED_OUT, 0, "it does not answer");
        }
    }
    call = app_call(app); /* what is left of the time */
    if (status == SHOAL_OK)
        status = shoal_kv_open(&config, &call, &app->kv, error);
    /* Of another cluster, or no mooncake_client at all: nothing is corrupted, it is the wrong one. */
    if (status == SHOAL_PROTOCOL && !app->settings.kv_master)
        status = error->status = SHOAL_UNREACHABLE;
    free(matrix);
    return status;
}

/* --- progress: of one step, for values that take a while --- */

struct bar {
    struct progress progress;
    int64_t started_ms, next_ms;
    bool is_drawn;
};

static void bar_begin(struct bar *bar, const struct app *app, const char *key, const char *verb)
{
    bar->started_ms = clock_now_ms();
    bar->next_ms = bar->started_ms + BAR_INTERVAL_MS;
    bar->is_drawn = false;
    progress_init(&bar->progress, app, key, verb);
}

/* A shoal_progress_fn. */
static void bar_show(void *arg, const struct shoal_progress *now)
{
    struct bar *bar = arg;
    if (now->total_bytes < BAR_MIN_BYTES)
        return;
    bar->is_drawn = true;
    progress_show(&bar->progress, now);
}

/* For bytes that are moved here. */
static void bar_at(struct bar *bar, uint64_t done, uint64_t total)
{
    int64_t now_ms = clock_now_ms();
    struct shoal_progress now = {
        .total_bytes = total, .done_bytes = done, .elapsed_ms = (uint64_t)(now_ms - bar->started_ms)};
    if (now_ms < bar->next_ms && done < total)
        return;
    bar_show(bar, &now);
    bar->next_ms = now_ms + BAR_INTERVAL_MS;
}

static void bar_end(struct bar *bar)
{
    if (bar->is_drawn)
        progress_end(&bar->progress);
    progress_release(&bar->progress);
}

/* Only if somebody sees it: a call that tells how far it is goes other ways. */
static void bar_watch(struct bar *bar, struct shoal_call *call)
{
    if (!bar->progress.is_json && !bar->progress.is_live)
        return;
    call->progress = bar_show;
    call->progress_arg = bar;
}

static bool is_dash(const char *path)
{
    return strcmp(path, "-") == 0;
}

/* --- put --- */

/* Waits for input, so that a signal ends a read of a terminal or a pipe. */
static enum shoal_status wait_for_input(int fd, struct shoal_error *error)
{
    for (;;) {
        struct pollfd poll_fd = {.fd = fd, .events = POLLIN};
        int count = poll(&poll_fd, 1, SIGNAL_POLL_MS);
        if (signals_received())
            return error_set(error, SHOAL_CANCELED, 0, "interrupted");
        if (count > 0)
            return SHOAL_OK;
        if (count < 0 && errno != EINTR)
            return error_set(error, SHOAL_IO, errno, "cannot wait for input: %s", strerror(errno));
    }
}

/* Until the end of the file, however long it is: what is given through a pipe says so only then. */
static enum shoal_status read_all(int fd, size_t expected, struct bar *bar, void **data_out, size_t *len_out,
                                  struct shoal_error *error)
{
    size_t size = expected + 1 > READ_FIRST_BYTES ? expected + 1 : READ_FIRST_BYTES, len = 0;
    char *data = malloc(size);
    enum shoal_status status = data ? SHOAL_OK : error_no_memory(error);
    while (status == SHOAL_OK) {
        if (len == size) {
            char *more = size <= SIZE_MAX / 2 ? realloc(data, 2 * size) : NULL;
            if (!more) {
                status = error_no_memory(error);
                break;
            }
            data = more;
            size *= 2;
        }
        status = wait_for_input(fd, error);
        if (status != SHOAL_OK)
            break;
        ssize_t count = read(fd, data + len, size - len < FILE_STEP_BYTES ? size - len : FILE_STEP_BYTES);
        if (count == 0)
            break;
        if (count > 0) {
            len += (size_t)count;
            if (len <= expected)
                bar_at(bar, len, expected);
        } else if (errno != EINTR && errno != EAGAIN) {
            status = error_set(error, SHOAL_IO, errno, "%s", strerror(errno));
        }
    }
    if (status != SHOAL_OK) {
        free(data);
        return status;
    }
    *data_out = data;
    *len_out = len;
    return SHOAL_OK;
}

static enum shoal_status read_value(const char *path, struct bar *bar, void **data_out, size_t *len_out,
                                    struct shoal_error *error)
{
    struct stat info;
    enum shoal_status status;
    int fd = is_dash(path) ? STDIN_FILENO : open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0)
        return error_set(error, errno == ENOENT ? SHOAL_NOT_FOUND : SHOAL_IO, errno, "%s", strerror(errno));
    if (fstat(fd, &info) != 0)
        status = error_set(error, SHOAL_IO, errno, "%s", strerror(errno));
    else if (S_ISDIR(info.st_mode))
        status = error_set(error, SHOAL_INVALID_ARGUMENT, 0, "it is a directory");
    else
        status = read_all(fd, S_ISREG(info.st_mode) ? (size_t)info.st_size : 0, bar, data_out, len_out, error);
    if (!is_dash(path))
        close(fd);
    return status;
}

/* Of one that was asked for there is one; else the master tells. */
static void report_put(const struct app *app, const char *key, size_t len)
{
    unsigned wanted = (unsigned)app->settings.replicas, copies = 1;
    char size[UNITS_TEXT_BYTES];
    struct shoal_error error;
    if (wanted > 1 && app_count_copies(app, key, &copies, &error) != SHOAL_OK) {
        report_warning(app, "how many copies there are is not known: %s", error.message);
        copies = 1;
    } else if (copies < wanted) {
        report_warning(app, "%u of %u copies: no other client has room", copies, wanted);
    }
    if (app->settings.is_json)
        json_print(json_pack("{s:s, s:o, s:I, s:i}", "event", "result", "key", json_text(key), "bytes", (json_int_t)len,
                             "replicas", (int)copies));
    else
        report_note(app, "\"%s\" is there: %s", key, units_format_size(len, size));
}

static int run_put(struct app *app, int count, char **arguments)
{
    const char *key = arguments[0], *path = arguments[1];
    struct shoal_kv_put_options options = {
        .struct_size = sizeof options, .replicas = (unsigned)app->settings.replicas, .prefer = app->settings.prefer};
    struct shoal_error error;
    void *data = NULL;
    size_t len = 0;
    char size[UNITS_TEXT_BYTES];
    int code = EXIT_CODE_OK;
    struct bar bar;
    enum shoal_status status;
    (void)count;
    bar_begin(&bar, app, key, "reading");
    status = read_value(path, &bar, &data, &len, &error);
    bar_end(&bar);
    if (status != SHOAL_OK)
        return report_failure(app, &error, "cannot read %s", is_dash(path) ? "standard input" : path);
    if (app_open_kv(app, &error) != SHOAL_OK) {
        code = report_failure(app, &error, "cannot connect to %s", app_kv_peer(app));
    } else {
        struct shoal_call call = app_call(app);
        bar_begin(&bar, app, key, "putting");
        bar_watch(&bar, &call);
        status = shoal_kv_put(app->kv, key, data, len, &options, &call, &error);
        bar_end(&bar);
        if (status != SHOAL_OK)
            code = report_failure(app, &error, "cannot put \"%s\" (%s)", key, units_format_size(len, size));
        else
            report_put(app, key, len);
    }
    free(data);
    return code;
}

static const struct option_spec put_options[] = {
    {OPTION_UINT, 'r', "replicas", "N", NULL, offsetof(struct settings, replicas), .min = 1, .max = 16,
     .help = "Copies at different clients; fewer, with a warning, if fewer clients have room. Default: 1."},
    {OPTION_TEXT, 0, "prefer", "HOST:PORT", NULL, offsetof(struct settings, prefer),
     .help = "The client (its --host and --client_rpc_port) that shall own it, if it has room. Default: one that has "
             "room is chosen."},
    {OPTION_END},
};

const struct command command_kv_put = {
    .name = "kv put",
    .arguments = "KEY FILE|-",
    .summary = "put a value into the KV store",
    .text =
        "Puts the content of FILE, or of standard input, as the value of KEY. Keys are 1 to 1024 bytes. A key that "
        "exists is not changed: exit code 4. When the command has ended well, every client finds the value. Of a value "
        "from 16 MiB on progress is shown: reading the file, then putting.",
    .options = put_options,
    .has_kv_options = true,
    .min_arguments = 2,
    .max_arguments = 2,
    .run = run_put,
};

/* --- get --- */

static enum shoal_status write_all(int fd, const char *data, uint64_t len, struct bar *bar, struct shoal_error *error)
{
    for (uint64_t done = 0; done < len;) {
        uint64_t left = len - done;
        ssize_t count;
        if (signals_received())
            return error_set(error, SHOAL_CANCELED, 0, "interrupted");
        count = write(fd, data + done, left < FILE_STEP_BYTES ? (size_t)left : FILE_STEP_BYTES);
        if (count < 0 && errno == EINTR)
            continue;
        if (count < 0)
            return error_set(error, errno == ENOSPC || errno == EDQUOT ? SHOAL_NO_SPACE : SHOAL_IO, errno, "%s",
                             strerror(errno));
        done += (uint64_t)count;
        bar_at(bar, done, len);
    }
    return SHOAL_OK;
}

/* A file gets its name when all of it is there. */
static enum shoal_status write_file(const char *path, const char *data, uint64_t len, struct bar *bar,
                                    struct shoal_error *error)
{
    char temporary[PATH_MAX];
    mode_t mask;
    enum shoal_status status;
    int fd;
    if ((size_t)snprintf(temporary, sizeof temporary, "%s.shoal-XXXXXX", path) >= sizeof temporary)
        return error_set(error, SHOAL_INVALID_ARGUMENT, ENAMETOOLONG, "%s", strerror(ENAMETOOLONG));
    fd = mkostemp(temporary, O_CLOEXEC);
    if (fd < 0)
        return error_set(error, errno == ENOSPC ? SHOAL_NO_SPACE : SHOAL_IO, errno, "%s", strerror(errno));
    mask = umask(0);
    umask(mask);
    fchmod(fd, 0666 & ~mask);
    status = write_all(fd, data, len, bar, error);
    if (close(fd) != 0 && status == SHOAL_OK)
        status = error_set(error, SHOAL_IO, errno, "%s", strerror(errno));
    if (status == SHOAL_OK && rename(temporary, path) != 0)
        status = error_set(error, SHOAL_IO, errno, "%s", strerror(errno));
    if (status != SHOAL_OK)
        unlink(temporary);
    return status;
}

static enum shoal_status write_value(const char *path, const char *data, uint64_t len, struct bar *bar,
                                     struct shoal_error *error)
{
    struct stat info;
    enum shoal_status status;
    int fd;
    if (is_dash(path))
        return write_all(STDOUT_FILENO, data, len, bar, error);
    if (stat(path, &info) != 0 || S_ISREG(info.st_mode))
        return write_file(path, data, len, bar, error);
    if (S_ISDIR(info.st_mode))
        return error_set(error, SHOAL_INVALID_ARGUMENT, 0, "it is a directory");
    fd = open(path, O_WRONLY | O_CLOEXEC);
    if (fd < 0)
        return error_set(error, SHOAL_IO, errno, "%s", strerror(errno));
    status = write_all(fd, data, len, bar, error);
    close(fd);
    return status;
}

static int run_get(struct app *app, int count, char **arguments)
{
    const char *key = arguments[0], *path = arguments[1];
    struct shoal_error error;
    void *data = NULL;
    uint64_t len = 0;
    char size[UNITS_TEXT_BYTES];
    int code = EXIT_CODE_OK;
    struct bar bar;
    enum shoal_status status;
    (void)count;
    if (app->settings.is_json && is_dash(path)) {
        error_set(&error, SHOAL_INVALID_ARGUMENT, 0, "standard output is for the value or for JSON, not for both");
        return report_failure(app, &error, "--json with -");
    }
    if (app_open_kv(app, &error) != SHOAL_OK)
        return report_failure(app, &error, "cannot connect to %s", app_kv_peer(app));
    struct shoal_call call = app_call(app);
    bar_begin(&bar, app, key, "getting");
    bar_watch(&bar, &call);
    status = shoal_kv_get(app->kv, key, &call, &data, &len, &error);
    bar_end(&bar);
    if (status != SHOAL_OK)
        return report_failure(app, &error, "cannot get \"%s\"", key);
    bar_begin(&bar, app, key, "writing");
    status = write_value(path, data, len, &bar, &error);
    bar_end(&bar);
    if (status != SHOAL_OK)
        code = report_failure(app, &error, "cannot write %s", is_dash(path) ? "to standard output" : path);
    else if (app->settings.is_json)
        json_print(json_pack("{s:s, s:o, s:I, s:o}", "event", "result", "key", json_text(key), "bytes", (json_int_t)len,
                             "file", json_text(path)));
    else if (!is_dash(path))
        report_note(app, "\"%s\": %s", key, units_format_size(len, size));
    free(data);
    return code;
}

const struct command command_kv_get = {
    .name = "kv get",
    .arguments = "KEY FILE|-",
    .summary = "get a value from the KV store",
    .text =
        "Writes the value of KEY to FILE, or to standard output. FILE gets its name when all of the value is there; a "
        "file of that name is replaced. A key that does not exist: exit code 3. Of a value from 16 MiB on progress is "
        "shown: getting, then writing the file.",
    .has_kv_options = true,
    .min_arguments = 2,
    .max_arguments = 2,
    .run = run_get,
};
