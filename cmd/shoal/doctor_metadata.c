/* SPDX-License-Identifier: Apache-2.0 */
/* The metadata service: reachable, how fast, what time it has, and may we write there? */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/vfs.h>

#include "base/call.h"
#include "base/clock.h"
#include "doctor.h"
#include "meta/meta.h"

#define CALL_TIMEOUT_MS 5000
#define ENDPOINT_TIMEOUT_MS 3000
#define SAMPLES 5
#define SLOW_US 50000
#define CLOCK_TOLERANCE_MS 5000
#define TEST_LEASE_MS 5000 /* if it cannot be given back it ends by itself */

static const char advice_etcd[] = "start etcd, or correct the address, the credentials or the firewall";
static const char advice_file[] =
    "check that the file's directory exists and can be written, and that it is on a local disk";

static bool is_etcd(const struct meta *meta)
{
    return strcmp(meta_backend_name(meta), "etcd") == 0;
}

static enum shoal_status begin(struct doctor *doctor, int64_t timeout_ms, struct call *call, struct shoal_error *error)
{
    struct shoal_call outer = app_call(doctor->app);
    enum shoal_status status = call_init(call, &outer, timeout_ms, error);
    if (status == SHOAL_OK)
        *call = call_with_timeout(call, timeout_ms);
    return status;
}

static int by_time(const void *a, const void *b)
{
    int64_t left = *(const int64_t *)a, right = *(const int64_t *)b;
    return left < right ? -1 : left > right;
}

/* --- each endpoint of several --- */

/* Opens "SCHEME ENDPOINT ?PARAMETERS" and asks it. */
static bool ask_endpoint(struct doctor *doctor, const char *uri, struct shoal_error *error)
{
    struct meta *meta = NULL;
    struct meta_health health;
    struct call call;
    bool is_good = meta_open(uri, &meta, error) == SHOAL_OK &&
                   begin(doctor, ENDPOINT_TIMEOUT_MS, &call, error) == SHOAL_OK &&
                   meta_ping(meta, &call, &health, error) == SHOAL_OK;
    meta_close(meta);
    return is_good;
}

/* One that is down costs nothing until the others are, too: nobody would see it otherwise. */
static void check_endpoints(struct doctor *doctor)
{
    const char *uri = doctor->app->metadata_uri, *scheme_end = strstr(uri, "://");
    int scheme_len = scheme_end ? (int)(scheme_end + 3 - uri) : 0;
    char *list = strdup(uri + scheme_len), *position = NULL;
    if (!list)
        return;
    char *query = strchr(list, '?'), *slash;
    if (query)
        *query++ = '\0';
    if ((slash = strchr(list, '/')))
        *slash = '\0';
    if (strchr(list, ',')) {
        unsigned count = 0, answering = 0;
        for (char *part = strtok_r(list, ",", &position); part; part = strtok_r(NULL, ",", &position)) {
            char *one = NULL;
            struct shoal_error error;
            if (asprintf(&one, "%.*s%s%s%s%s", scheme_len, uri, scheme_len ? "" : "etcd://", part, query ? "?" : "",
                         query ? query : "") < 0)
                break;
            count++;
            if (ask_endpoint(doctor, one, &error))
                answering++;
            else
                doctor_tell(doctor, DOCTOR_WARN, "endpoint", "start that member of etcd, or take it out of --metadata",
                            "%s: %s", part, error.message);
            free(one);
        }
        doctor_tell(doctor, answering == count ? DOCTOR_OK : DOCTOR_WARN, "endpoints",
                    answering == count ? NULL : "see the lines above", "%u of %u answer", answering, count);
    }
    free(list);
}

/* --- what it says of itself --- */

/* false: it does not answer, which has been told. */
static bool check_answer(struct doctor *doctor, struct meta *meta, struct meta_health *health)
{
    const char *uri = doctor->app->metadata_uri;
    int uri_len = (int)strcspn(uri, "?"); /* a password may follow */
    struct shoal_error error;
    struct call call;
    int64_t times_us[SAMPLES];
    int count = 0;
    enum shoal_status status = begin(doctor, CALL_TIMEOUT_MS, &call, &error);
    /* The first one connects. */
    if (status == SHOAL_OK)
        status = meta_ping(meta, &call, health, &error);
    while (status == SHOAL_OK && count < SAMPLES) {
        status = meta_ping(meta, &call, health, &error);
        if (status == SHOAL_OK)
            times_us[count++] = health->rtt_us;
    }
    if (status != SHOAL_OK) {
        doctor_tell(doctor, DOCTOR_FAIL, "metadata", is_etcd(meta) ? advice_etcd : advice_file, "%.*s: %s", uri_len,
                    uri, error.message);
        return false;
    }
    qsort(times_us, SAMPLES, sizeof *times_us, by_time);
    int64_t median_us = times_us[SAMPLES / 2];
    bool is_slow = median_us > SLOW_US;
    doctor_tell(doctor, is_slow ? DOCTOR_WARN : DOCTOR_OK, "metadata",
                is_slow ? "give it a faster disk or network; each get makes a few requests" : NULL,
                "%.*s: %s, %.1f ms a request (%.1f at most)%s", uri_len, uri, health->version, (double)median_us / 1000,
                (double)times_us[SAMPLES - 1] / 1000, is_slow ? ": slow" : "");
    doctor_add(doctor, "version", json_text(health->version));
    doctor_add(doctor, "request_us", json_integer(median_us));
    return true;
}

static void check_write(struct doctor *doctor, struct meta *meta)
{
    struct shoal_error error;
    struct call call;
    int64_t lease, start_ns = clock_now_ns();
    enum shoal_status status = begin(doctor, CALL_TIMEOUT_MS, &call, &error);
    if (status == SHOAL_OK)
        status = meta_lease_grant(meta, TEST_LEASE_MS, &call, &lease, &error);
    if (status == SHOAL_OK)
        status = meta_lease_revoke(meta, lease, &call, &error);
    if (status != SHOAL_OK)
        doctor_tell(doctor, DOCTOR_FAIL, "metadata write",
                    is_etcd(meta)
                        ? "see the disk and the alarms of etcd (etcdctl alarm list), and the rights of the user"
                        : advice_file,
                    "it answers, but a change fails: %s", error.message);
    else
        doctor_tell(doctor, DOCTOR_OK, "metadata write", NULL, "a lease was made and given back in %.1f ms",
                    (double)(clock_now_ns() - start_ns) / 1e6);
}

static void check_clock(struct doctor *doctor, const struct meta_health *health)
{
    if (!health->has_clock) {
        doctor_tell(doctor, DOCTOR_SKIP, "clock", NULL, "the metadata service does not say what time it has");
        return;
    }
    int64_t apart_ms = health->clock_ahead_ms < 0 ? -health->clock_ahead_ms : health->clock_ahead_ms;
    if (apart_ms > CLOCK_TOLERANCE_MS)
        doctor_tell(doctor, DOCTOR_WARN, "clock",
                    "let chrony or systemd-timesyncd set the clocks; transfers do not depend on them, logs do",
                    "this machine's is %.0f s %s that of etcd", (double)apart_ms / 1000,
                    health->clock_ahead_ms > 0 ? "behind" : "ahead of");
    else
        doctor_tell(doctor, DOCTOR_OK, "clock", NULL, "%.1f s from that of etcd, as exactly as can be told (1 s)",
                    (double)apart_ms / 1000);
    doctor_add(doctor, "service_ahead_ms", json_integer(health->clock_ahead_ms));
}

/* --- the file --- */

static const char *network_file_system(long type)
{
    switch ((unsigned long)type & 0xffffffffu) {
    case 0x6969:
        return "NFS";
    case 0xff534d42:
    case 0xfe534d42:
    case 0x517b:
        return "SMB";
    case 0x00c36400:
        return "Ceph";
    case 0x0bd00bd0:
    case 0x0bd00bd3:
        return "Lustre";
    case 0x47504653:
        return "GPFS";
    case 0x01021997:
        return "9P";
    case 0x65735546:
        return "FUSE";
    default:
        return NULL;
    }
}

static void check_file_system(struct doctor *doctor)
{
    const char *path = doctor->app->metadata_uri + strlen("sqlite:");
    struct statfs info;
    if (statfs(path, &info) != 0) {
        doctor_tell(doctor, DOCTOR_SKIP, "metadata file", NULL, "%s: its file system cannot be looked at", path);
        return;
    }
    const char *network = network_file_system(info.f_type);
    if (network)
        doctor_tell(
            doctor, DOCTOR_WARN, "metadata file", "put it on a local disk; use etcd://HOST:PORT between machines",
            "%s is on %s: SQLite needs locks and shared memory that work, between machines they do not", path, network);
    else
        doctor_tell(doctor, DOCTOR_OK, "metadata file", NULL,
                    "%s is on a local file system: nodes of this machine meet", path);
}

void doctor_check_metadata(struct doctor *doctor)
{
    const char *uri = doctor->app->metadata_uri;
    struct shoal_error error;
    struct meta *meta = NULL;
    struct meta_health health = {.has_clock = false};
    if (meta_open(uri, &meta, &error) != SHOAL_OK) {
        doctor_tell(doctor, DOCTOR_FAIL, "metadata", "give --metadata sqlite:PATH or --metadata etcd://HOST:PORT", "%s",
                    error.message);
        return;
    }
    doctor->has_metadata = check_answer(doctor, meta, &health);
    doctor->is_cluster_wide =
        is_etcd(meta) && !strstr(uri, "127.0.0.1") && !strstr(uri, "localhost") && !strstr(uri, "[::1]");
    if (doctor->has_metadata)
        check_write(doctor, meta);
    if (is_etcd(meta)) {
        check_endpoints(doctor);
        if (doctor->has_metadata)
            check_clock(doctor, &health);
    } else if (doctor->has_metadata) {
        check_file_system(doctor);
    }
    meta_close(meta);
}
