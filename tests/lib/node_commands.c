/* SPDX-License-Identifier: Apache-2.0 */
#include "node_commands.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/digest.h"
#include "content.h"
#include "guarded.h"
#include "pace.h"

#define MAX_STORES 64
#define MAX_BUFFERS 512
#define MAX_REGIONS 256

/* One payload's memory: its regions, each guarded. Used by the main thread, and by one blocking call that got its
 * regions at the start. */
struct buffer {
    char name[64]; /* empty: unused */
    size_t count;
    struct guarded guarded[MAX_REGIONS];
    struct shoal_region regions[MAX_REGIONS];
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* stores, buffers: the arrays, not what is in them */
static struct shoal_store *stores[MAX_STORES];
static struct buffer *buffers[MAX_BUFFERS];

static enum shoal_status fail(struct shoal_error *error, enum shoal_status status, const char *message)
{
    error->status = status;
    snprintf(error->message, sizeof error->message, "%s", message);
    return status;
}

static struct shoal_store *store_of(const struct command *command)
{
    pthread_mutex_lock(&lock);
    struct shoal_store *store = stores[command_number(command, "store", 0) % MAX_STORES];
    pthread_mutex_unlock(&lock);
    return store;
}

static struct buffer *buffer_named(const char *name)
{
    struct buffer *found = NULL;
    pthread_mutex_lock(&lock);
    for (size_t i = 0; i < MAX_BUFFERS && !found; i++)
        if (buffers[i] && strcmp(buffers[i]->name, name) == 0)
            found = buffers[i];
    pthread_mutex_unlock(&lock);
    return found;
}

static struct buffer *buffer_of(const struct command *command)
{
    return buffer_named(command_text(command, "buf", ""));
}

static struct shoal_call call_of(const struct command *command)
{
    return (struct shoal_call){.struct_size = sizeof(struct shoal_call),
                               .timeout_ms = (int64_t)command_number(command, "timeout", 0),
                               .cancel = command->cancel};
}

/* Buffers ------------------------------------------------------------------------------------------------------------
 */

static void buffer_destroy(struct buffer *buffer)
{
    if (!buffer)
        return;
    for (size_t i = 0; i < buffer->count; i++)
        guarded_release(&buffer->guarded[i]);
    free(buffer);
}

static void buffer_fill(struct buffer *buffer, uint64_t seed)
{
    uint64_t offset = 0;
    for (size_t i = 0; i < buffer->count; i++) {
        content_fill(buffer->regions[i].addr, buffer->regions[i].len_bytes, seed, offset);
        offset += buffer->regions[i].len_bytes;
    }
}

static enum shoal_status run_buf(struct command *command, json_t *reply, struct shoal_error *error)
{
    (void)reply;
    struct buffer *buffer = calloc(1, sizeof *buffer);
    char *rest = NULL, *sizes = strdup(command_text(command, "sizes", ""));
    enum shoal_status status = SHOAL_OK;

    if (!buffer || !sizes)
        abort();
    snprintf(buffer->name, sizeof buffer->name, "%s", command_text(command, "buf", ""));
    for (char *word = strtok_r(sizes, ",", &rest); word; word = strtok_r(NULL, ",", &rest)) {
        struct guarded *guarded = &buffer->guarded[buffer->count];
        if (buffer->count == MAX_REGIONS || !guarded_init(guarded, strtoull(word, NULL, 0))) {
            buffer_destroy(buffer);
            status = fail(error, SHOAL_NO_MEMORY, "no memory for the buffer");
            goto out;
        }
        buffer->regions[buffer->count++] = (struct shoal_region){guarded->data, guarded->len};
    }
    /* Without a seed: pages are touched, and nothing is right by accident. */
    buffer_fill(buffer, command_number(command, "seed", UINT64_MAX));
    pthread_mutex_lock(&lock);
    size_t at = 0;
    while (at < MAX_BUFFERS - 1 && buffers[at] && strcmp(buffers[at]->name, buffer->name) != 0)
        at++;
    buffer_destroy(buffers[at]);
    buffers[at] = buffer;
    pthread_mutex_unlock(&lock);
out:
    free(sizes);
    return status;
}

static enum shoal_status run_fill(struct command *command, json_t *reply, struct shoal_error *error)
{
    (void)reply;
    struct buffer *buffer = buffer_of(command);
    if (!buffer)
        return fail(error, SHOAL_NOT_FOUND, "no such buffer");
    buffer_fill(buffer, command_number(command, "seed", 0));
    return SHOAL_OK;
}

/* bad: offset in the payload of the first wrong byte, or -1. intact: nothing was written beside the regions. */
static enum shoal_status run_check(struct command *command, json_t *reply, struct shoal_error *error)
{
    struct buffer *buffer = buffer_of(command);
    uint64_t seed = command_number(command, "seed", 0), offset = 0;
    int64_t bad = -1;
    bool is_intact = true;

    if (!buffer)
        return fail(error, SHOAL_NOT_FOUND, "no such buffer");
    for (size_t i = 0; i < buffer->count; i++) {
        const struct shoal_region *region = &buffer->regions[i];
        if (bad < 0) {
            bad = content_find_difference(region->addr, region->len_bytes, seed, offset);
            if (bad >= 0)
                bad += (int64_t)offset;
        }
        is_intact = is_intact && guarded_is_intact(&buffer->guarded[i]);
        offset += region->len_bytes;
    }
    json_object_set_new(reply, "bad", json_integer(bad));
    json_object_set_new(reply, "intact", json_boolean(is_intact));
    return SHOAL_OK;
}

/* Memory that peers read meanwhile: a race, on purpose. */
__attribute__((no_sanitize("thread"))) static void flip(uint8_t *byte)
{
    *byte ^= 0x10;
}

/* Flips a bit of the byte at offset, and of every byte a multiple of every behind it; the second time puts it right. */
static enum shoal_status run_corrupt(struct command *command, json_t *reply, struct shoal_error *error)
{
    (void)reply;
    struct buffer *buffer = buffer_of(command);
    uint64_t next = command_number(command, "offset", 0), every = command_number(command, "every", UINT64_MAX);
    uint64_t start = 0;
    if (!buffer)
        return fail(error, SHOAL_NOT_FOUND, "no such buffer");
    for (size_t i = 0; i < buffer->count; i++) {
        uint8_t *data = buffer->regions[i].addr;
        while (next - start < buffer->regions[i].len_bytes) {
            flip(&data[next - start]);
            if (every > UINT64_MAX - next)
                return SHOAL_OK;
            next += every;
        }
        start += buffer->regions[i].len_bytes;
    }
    return SHOAL_OK;
}

static enum shoal_status run_hash(struct command *command, json_t *reply, struct shoal_error *error)
{
    struct buffer *buffer = buffer_of(command);
    struct digest_stream *stream = digest_stream_create();
    char hex[DIGEST_HEX_BYTES];
    if (!buffer || !stream) {
        digest_stream_destroy(stream);
        return fail(error, SHOAL_NOT_FOUND, "no such buffer");
    }
    for (size_t i = 0; i < buffer->count; i++)
        digest_stream_update(stream, buffer->regions[i].addr, buffer->regions[i].len_bytes);
    struct digest digest = digest_stream_final(stream);
    digest_stream_destroy(stream);
    digest_to_hex(&digest, hex);
    json_object_set_new(reply, "hash", json_string(hex));
    return SHOAL_OK;
}

static enum shoal_status run_unmap(struct command *command, json_t *reply, struct shoal_error *error)
{
    (void)reply;
    struct buffer *buffer = buffer_of(command);
    if (!buffer)
        return fail(error, SHOAL_NOT_FOUND, "no such buffer");
    for (size_t i = 0; i < buffer->count; i++)
        guarded_release(&buffer->guarded[i]);
    buffer->name[0] = '\0';
    return SHOAL_OK;
}

/* Store calls --------------------------------------------------------------------------------------------------------
 */

static enum shoal_status run_create(struct command *command, json_t *reply, struct shoal_error *error)
{
    struct shoal_store_config config = {
        .struct_size = sizeof config,
        .metadata_uri = command_text(command, "uri", NULL),
        .server_name = command_text(command, "name", "127.0.0.1:0"),
        .nic_priority_matrix = command_text(command, "nic", NULL),
        .cluster = command_text(command, "cluster", NULL),
        .io_threads = (unsigned)command_number(command, "io_threads", 0),
        .digest_threads = (unsigned)command_number(command, "digest_threads", 2),
        .lease_ttl_ms = (int64_t)command_number(command, "lease", 0),
        .connect_timeout_ms = (int64_t)command_number(command, "connect", 0),
        .progress_timeout_ms = (int64_t)command_number(command, "stall", 0),
        .upload_limit_bytes_per_s = command_number(command, "upload", 0),
        .download_limit_bytes_per_s = command_number(command, "download", 0),
        .upload_slots = (unsigned)command_number(command, "slots", 0),
        .protocol = command_text(command, "protocol", getenv("SHOAL_TEST_PROTOCOL")),
    };
    struct shoal_call call = call_of(command);
    struct shoal_store *store = NULL;
    enum shoal_status status = shoal_store_create(&config, &call, &store, error);
    if (status != SHOAL_OK)
        return status;
    pthread_mutex_lock(&lock);
    stores[command_number(command, "store", 0) % MAX_STORES] = store;
    pthread_mutex_unlock(&lock);
    json_object_set_new(reply, "server_name", json_string(shoal_store_server_name(store)));
    return SHOAL_OK;
}

static enum shoal_status run_close(struct command *command, json_t *reply, struct shoal_error *error)
{
    (void)reply;
    (void)error;
    struct shoal_call call = call_of(command);
    uint64_t index = command_number(command, "store", 0) % MAX_STORES;
    pthread_mutex_lock(&lock);
    struct shoal_store *store = stores[index];
    stores[index] = NULL;
    pthread_mutex_unlock(&lock);
    shoal_store_close(store, &call);
    return SHOAL_OK;
}

/* What a progress callback remembers of its call. */
struct progress {
    unsigned id;
    bool is_printed;
    json_t *last; /* owned */
};

static void on_progress(void *arg, const struct shoal_progress *progress)
{
    struct progress *into = arg;
    json_t *sources = json_array();
    for (uint32_t i = 0; i < progress->source_count; i++) {
        const struct shoal_source_stats *source = &progress->sources[i];
        json_array_append_new(sources, json_pack("{s:s, s:I, s:b, s:b, s:I, s:I}", "name", source->name, "bytes",
                                                 (json_int_t)source->bytes, "gold", (int)source->is_gold, "connected",
                                                 (int)source->is_connected, "bad", (json_int_t)source->bad_pieces,
                                                 "failures", (json_int_t)source->failures));
    }
    json_decref(into->last);
    into->last = json_pack("{s:I, s:I, s:I, s:I, s:I, s:o}", "progress", (json_int_t)into->id, "done",
                           (json_int_t)progress->done_bytes, "total", (json_int_t)progress->total_bytes, "reused",
                           (json_int_t)progress->reused_bytes, "checked", (json_int_t)progress->checked_bytes,
                           "sources", sources);
    if (into->is_printed)
        node_print(json_incref(into->last));
}

/* The last progress becomes part of the answer. */
static void progress_finish(struct progress *progress, json_t *reply)
{
    if (progress->last) {
        json_object_set(reply, "done", json_object_get(progress->last, "done"));
        json_object_set(reply, "reused", json_object_get(progress->last, "reused"));
        json_object_set(reply, "sources", json_object_get(progress->last, "sources"));
    }
    json_decref(progress->last);
}

/* SHOAL_TEST_PIECE_MIN: over the local transport pieces of up to 64 KiB are copied on the loop, where nobody should be
 * slow (pace.h). */
static uint64_t piece_size(const struct command *command)
{
    const char *least = getenv("SHOAL_TEST_PIECE_MIN");
    uint64_t size = command_number(command, "piece", 0), min = least ? strtoull(least, NULL, 10) : 0;

    return size && size < min ? min : size;
}

static enum shoal_status run_register(struct command *command, json_t *reply, struct shoal_error *error)
{
    struct buffer *buffer = buffer_of(command);
    struct progress progress = {.id = command->id, .is_printed = command_text(command, "progress", NULL) != NULL};
    const char *attachment = command_text(command, "attachment", NULL);
    struct shoal_register_options options = {
        .struct_size = sizeof options,
        .max_shard_size = command_number(command, "shard", 0),
        .piece_size = piece_size(command),
        .location = command_text(command, "location", NULL),
        .force = (int)command_number(command, "force", 0),
        .attachment = attachment,
        .attachment_len_bytes = attachment ? strlen(attachment) : 0,
        .progress = on_progress,
        .progress_arg = &progress,
        .progress_interval_ms = (int64_t)command_number(command, "progress", 0),
    };
    struct shoal_call call = call_of(command);
    struct shoal_store *store = store_of(command);
    if (!buffer || !store)
        return fail(error, SHOAL_INTERNAL, "no such buffer or store");
    enum shoal_status status = shoal_store_register(store, command_text(command, "payload", ""), buffer->regions,
                                                    buffer->count, &options, &call, error);
    progress_finish(&progress, reply);
    return status;
}

static enum shoal_status run_get(struct command *command, json_t *reply, struct shoal_error *error)
{
    struct buffer *buffer = buffer_of(command);
    struct progress progress = {.id = command->id, .is_printed = command_text(command, "progress", NULL) != NULL};
    struct buffer *previous = buffer_named(command_text(command, "previous", "-"));
    struct shoal_get_options options = {
        .struct_size = sizeof options,
        .reuse = (int)command_number(command, "reuse", 0),
        .previous = previous ? previous->regions : NULL,
        .generation = command_number(command, "generation", 0),
        .location = command_text(command, "location", NULL),
        .no_share = (int)command_number(command, "no_share", 0),
        .no_verify = (int)command_number(command, "no_verify", 0),
        .max_sources = (uint32_t)command_number(command, "max_sources", 0),
        .progress = on_progress,
        .progress_arg = &progress,
        .progress_interval_ms = (int64_t)command_number(command, "progress", 0),
    };
    struct shoal_call call = call_of(command);
    struct shoal_store *store = store_of(command);
    if (!buffer || !store)
        return fail(error, SHOAL_INTERNAL, "no such buffer or store");
    enum shoal_status status = shoal_store_get_replica(store, command_text(command, "payload", ""), buffer->regions,
                                                       buffer->count, &options, &call, error);
    /* Unmapped at the moment of return, as a caller may: whoever still writes there is found out. */
    if (command_number(command, "then_unmap", 0))
        for (size_t i = 0; i < buffer->count; i++)
            guarded_release(&buffer->guarded[i]);
    progress_finish(&progress, reply);
    return status;
}

static void then_unmap(struct command *command)
{
    struct buffer *buffer = buffer_of(command);
    for (size_t i = 0; buffer && i < buffer->count; i++)
        guarded_release(&buffer->guarded[i]);
}

/* With buf=B the memory is unmapped as soon as the call has returned. */
static enum shoal_status run_unregister(struct command *command, json_t *reply, struct shoal_error *error)
{
    (void)reply;
    struct shoal_call call = call_of(command);
    enum shoal_status status =
        shoal_store_unregister(store_of(command), command_text(command, "payload", ""), &call, error);
    then_unmap(command);
    return status;
}

static enum shoal_status run_delete_replica(struct command *command, json_t *reply, struct shoal_error *error)
{
    (void)reply;
    struct shoal_call call = call_of(command);
    enum shoal_status status =
        shoal_store_delete_replica(store_of(command), command_text(command, "payload", ""), &call, error);
    then_unmap(command);
    return status;
}

static json_t *info_to_json(const struct shoal_payload_info *info)
{
    json_t *sizes = json_array(), *sources = json_array();
    for (size_t i = 0; info->size_list && i < info->size_count; i++)
        json_array_append_new(sizes, json_integer((json_int_t)info->size_list[i]));
    for (size_t i = 0; i < info->source_count; i++)
        json_array_append_new(sources, json_pack("{s:s, s:s, s:b}", "name", info->sources[i].name, "address",
                                                 info->sources[i].address, "gold", (int)info->sources[i].is_gold));
    return json_pack("{s:s, s:I, s:I, s:I, s:I, s:I, s:I, s:o, s:I, s:o, s:s}", "name", info->name, "generation",
                     (json_int_t)info->generation, "total", (json_int_t)info->total_size, "shard",
                     (json_int_t)info->max_shard_size, "piece", (json_int_t)info->piece_size, "pieces",
                     (json_int_t)info->piece_count, "attachment_len", (json_int_t)info->attachment_len_bytes, "sizes",
                     sizes, "size_count", (json_int_t)info->size_count, "sources", sources, "entry_status",
                     shoal_status_name(info->status));
}

static enum shoal_status run_list(struct command *command, json_t *reply, struct shoal_error *error)
{
    struct shoal_call call = call_of(command);
    struct shoal_payload_info *infos = NULL;
    size_t count = 0;
    enum shoal_status status =
        shoal_store_list(store_of(command), command_text(command, "prefix", ""), &call, &infos, &count, error);
    if (status != SHOAL_OK)
        return status;
    json_t *list = json_array();
    for (size_t i = 0; i < count; i++)
        json_array_append_new(list, info_to_json(&infos[i]));
    json_object_set_new(reply, "payloads", list);
    shoal_payload_infos_free(infos, count);
    return SHOAL_OK;
}

static enum shoal_status run_stat(struct command *command, json_t *reply, struct shoal_error *error)
{
    struct shoal_call call = call_of(command);
    struct shoal_payload_info *info = NULL;
    enum shoal_status status =
        shoal_store_stat(store_of(command), command_text(command, "payload", ""), &call, &info, error);
    if (status != SHOAL_OK)
        return status;
    json_object_set_new(reply, "info", info_to_json(info));
    shoal_payload_infos_free(info, 1);
    return SHOAL_OK;
}

static enum shoal_status run_index(struct command *command, json_t *reply, struct shoal_error *error)
{
    struct shoal_call call = call_of(command);
    void *attachment = NULL;
    uint64_t *sizes = NULL;
    size_t len = 0, count = 0;
    enum shoal_status status = shoal_store_fetch_index(store_of(command), command_text(command, "payload", ""),
                                                       command_number(command, "generation", 0), &call, &attachment,
                                                       &len, &sizes, &count, error);
    if (status != SHOAL_OK)
        return status;
    json_t *list = json_array();
    for (size_t i = 0; i < count; i++)
        json_array_append_new(list, json_integer((json_int_t)sizes[i]));
    json_object_set_new(reply, "sizes", list);
    json_object_set_new(reply, "attachment", json_stringn(attachment ? attachment : "", len));
    free(attachment);
    free(sizes);
    return SHOAL_OK;
}

static enum shoal_status run_served(struct command *command, json_t *reply, struct shoal_error *error)
{
    struct shoal_served_info *infos = NULL;
    size_t count = 0;
    enum shoal_status status = shoal_store_served(store_of(command), &infos, &count, error);
    if (status != SHOAL_OK)
        return status;
    json_t *list = json_array();
    for (size_t i = 0; i < count; i++)
        json_array_append_new(
            list, json_pack("{s:s, s:b, s:b, s:I, s:I, s:I, s:I}", "name", infos[i].name, "gold", (int)infos[i].is_gold,
                            "published", (int)infos[i].is_published, "have", (json_int_t)infos[i].pieces_have, "pieces",
                            (json_int_t)infos[i].pieces_total, "bytes", (json_int_t)infos[i].bytes_served, "receivers",
                            (json_int_t)infos[i].receivers));
    json_object_set_new(reply, "served", list);
    free(infos);
    return SHOAL_OK;
}

static json_t *receivers_to_json(const struct shoal_receiver_info *infos, size_t count)
{
    static const char *const states[] = {"taking", "done", "left"};
    json_t *list = json_array();
    for (size_t i = 0; i < count; i++)
        json_array_append_new(list,
                              json_pack("{s:s, s:s, s:I, s:I, s:I}", "name", infos[i].name, "state",
                                        states[infos[i].state], "bytes", (json_int_t)infos[i].bytes, "have",
                                        (json_int_t)infos[i].pieces_have, "silent_ms", (json_int_t)infos[i].silent_ms));
    return list;
}

static enum shoal_status run_receivers(struct command *command, json_t *reply, struct shoal_error *error)
{
    struct shoal_receiver_info *infos = NULL;
    size_t count = 0;
    enum shoal_status status =
        shoal_store_receivers(store_of(command), command_text(command, "payload", ""), &infos, &count, error);
    if (status != SHOAL_OK)
        return status;
    json_object_set_new(reply, "receivers", receivers_to_json(infos, count));
    free(infos);
    return SHOAL_OK;
}

static enum shoal_status run_source_status(struct command *command, json_t *reply, struct shoal_error *error)
{
    struct shoal_call call = call_of(command);
    struct shoal_source_status *infos = NULL;
    size_t count = 0;
    enum shoal_status status = shoal_store_source_status(
        store_of(command), command_text(command, "payload", ""), command_number(command, "generation", 0),
        (uint32_t)command_number(command, "max_receivers", 0), &call, &infos, &count, error);
    if (status != SHOAL_OK)
        return status;
    json_t *list = json_array();
    for (size_t i = 0; i < count; i++) {
        const struct shoal_source_status *info = &infos[i];
        json_array_append_new(
            list, json_pack("{s:s, s:b, s:s, s:s, s:I, s:I, s:I, s:I, s:I, s:o}", "name", info->source.name, "gold",
                            (int)info->source.is_gold, "status", shoal_status_name(info->error.status), "message",
                            info->error.status ? info->error.message : "", "have", (json_int_t)info->pieces_have,
                            "pieces", (json_int_t)info->pieces_total, "bytes", (json_int_t)info->bytes_served, "now",
                            (json_int_t)info->receivers_now, "known", (json_int_t)info->receivers_known, "receivers",
                            receivers_to_json(info->receivers, info->receiver_count)));
    }
    json_object_set_new(reply, "sources", list);
    shoal_source_statuses_free(infos, count);
    return SHOAL_OK;
}

static enum shoal_status run_metrics(struct command *command, json_t *reply, struct shoal_error *error)
{
    char *text = shoal_store_metrics(store_of(command));
    if (!text)
        return fail(error, SHOAL_NO_MEMORY, "no metrics");
    json_object_set_new(reply, "metrics", json_string(text));
    free(text);
    return SHOAL_OK;
}

/* The process
 * ---------------------------------------------------------------------------------------------------------*/

static enum shoal_status run_cancel(struct command *command, json_t *reply, struct shoal_error *error)
{
    (void)reply;
    if (!node_cancel((unsigned)command_number(command, "id", 0)))
        return fail(error, SHOAL_NOT_FOUND, "no such running command");
    return SHOAL_OK;
}

static enum shoal_status run_pace(struct command *command, json_t *reply, struct shoal_error *error)
{
    (void)reply;
    (void)error;
    pace_set(command_number(command, "rate", 0));
    return SHOAL_OK;
}

static int64_t status_kib(const char *field)
{
    FILE *file = fopen("/proc/self/status", "r");
    char line[256];
    int64_t value = -1;
    while (file && fgets(line, sizeof line, file))
        if (strncmp(line, field, strlen(field)) == 0)
            value = strtoll(line + strlen(field) + 1, NULL, 10);
    if (file)
        fclose(file);
    return value;
}

static enum shoal_status run_process(struct command *command, json_t *reply, struct shoal_error *error)
{
    (void)command;
    (void)error;
    int fds = 0;
    DIR *dir = opendir("/proc/self/fd");
    while (dir && readdir(dir))
        fds++;
    if (dir)
        closedir(dir);
    json_object_set_new(reply, "rss_kib", json_integer(status_kib("VmRSS")));
    json_object_set_new(reply, "peak_rss_kib", json_integer(status_kib("VmHWM")));
    json_object_set_new(reply, "threads", json_integer(status_kib("Threads")));
    json_object_set_new(reply, "fds", json_integer(fds));
    return SHOAL_OK;
}

void commands_release(void)
{
    for (size_t i = 0; i < MAX_STORES; i++)
        shoal_store_close(stores[i], NULL);
    for (size_t i = 0; i < MAX_BUFFERS; i++)
        buffer_destroy(buffers[i]);
}

const struct command_verb command_verbs[] = {
    {"create", true, run_create},
    {"close", true, run_close},
    {"register", true, run_register},
    {"get", true, run_get},
    {"unregister", true, run_unregister},
    {"delete_replica", true, run_delete_replica},
    {"list", true, run_list},
    {"stat", true, run_stat},
    {"index", true, run_index},
    {"served", false, run_served},
    {"receivers", false, run_receivers},
    {"source_status", true, run_source_status},
    {"metrics", false, run_metrics},
    {"buf", false, run_buf},
    {"fill", false, run_fill},
    {"check", false, run_check},
    {"corrupt", false, run_corrupt},
    {"hash", false, run_hash},
    {"unmap", false, run_unmap},
    {"cancel", false, run_cancel},
    {"pace", false, run_pace},
    {"process", false, run_process},
    {NULL, false, NULL},
};
