/* SPDX-License-Identifier: Apache-2.0 */
#include "meta/etcd_codec.h"

#include <inttypes.h>
#include <jansson.h>
#include <openssl/evp.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "meta/meta_ops.h"

/* --- base64 --------------------------------------------------------------------------------------------------------
 */

static bool append_base64(struct buf *out, const void *data, size_t len)
{
    size_t encoded = (len + 2) / 3 * 4;
    if (!buf_reserve(out, encoded))
        return false;
    if (len)
        EVP_EncodeBlock(out->data + out->len, data, (int)len);
    out->len += encoded;
    out->data[out->len] = '\0';
    return true;
}

/* malloc'ed, NUL-terminated. NULL: not base64, or out of memory (is_memory_out). */
static char *base64_decode(const char *text, size_t len, size_t *len_out, bool *is_memory_out)
{
    size_t padding = 0;
    *is_memory_out = false;
    if (len % 4 != 0 || len > INT32_MAX)
        return NULL;
    while (padding < 2 && padding < len && text[len - 1 - padding] == '=')
        padding++;
    /* EVP_DecodeBlock skips white space around the text and takes '=' anywhere. */
    for (size_t i = 0; i < len - padding; i++)
        if (text[i] == '=' || (unsigned char)text[i] <= ' ')
            return NULL;
    char *data = malloc(len / 4 * 3 + 1);
    if (!data) {
        *is_memory_out = true;
        return NULL;
    }
    int decoded = len ? EVP_DecodeBlock((unsigned char *)data, (const unsigned char *)text, (int)len) : 0;
    if (decoded < 0 || (size_t)decoded < padding) {
        free(data);
        return NULL;
    }
    *len_out = (size_t)decoded - padding;
    data[*len_out] = '\0';
    return data;
}

/* --- requests ------------------------------------------------------------------------------------------------------
 */

static bool append_bytes(struct buf *out, const char *name, struct meta_bytes bytes)
{
    return buf_append_format(out, "\"%s\":\"", name) && append_base64(out, bytes.data, bytes.len) &&
           buf_append_str(out, "\"");
}

/* "key" and "range_end". An empty first key is written as one zero byte, the smallest there is; an end of one zero byte
 * means the end of all keys. */
static bool append_prefix_range(struct buf *out, struct meta_bytes prefix, struct meta_bytes from)
{
    uint8_t end[META_KEY_MAX_BYTES];
    size_t end_len;
    bool is_end;
    struct meta_bytes first = from.len ? from : prefix;
    meta_prefix_end(prefix, end, &end_len, &is_end);
    if (!first.len)
        first = (struct meta_bytes){"", 1};
    return append_bytes(out, "key", first) && buf_append_str(out, ",") &&
           append_bytes(out, "range_end", is_end ? (struct meta_bytes){"", 1} : (struct meta_bytes){end, end_len});
}

bool etcd_encode_get(struct buf *out, struct meta_bytes key)
{
    return buf_append_str(out, "{") && append_bytes(out, "key", key) && buf_append_str(out, "}");
}

bool etcd_encode_range(struct buf *out, struct meta_bytes prefix, struct meta_bytes from, size_t limit,
                       int64_t revision)
{
    if (!buf_append_str(out, "{") || !append_prefix_range(out, prefix, from) ||
        !buf_append_format(out, ",\"limit\":\"%zu\"", limit))
        return false;
    if (revision && !buf_append_format(out, ",\"revision\":\"%" PRId64 "\"", revision))
        return false;
    return buf_append_str(out, "}");
}

bool etcd_encode_probe(struct buf *out)
{
    return buf_append_str(out, "{\"key\":\"AA==\",\"limit\":\"1\",\"count_only\":true}");
}

static bool append_compare(struct buf *out, const struct meta_compare *compare)
{
    if (!buf_append_str(out, "{"))
        return false;
    if (compare->kind == META_PREFIX_ABSENT) {
        if (!append_prefix_range(out, compare->key, (struct meta_bytes){0}))
            return false;
    } else if (!append_bytes(out, "key", compare->key)) {
        return false;
    }
    switch (compare->kind) {
    case META_KEY_ABSENT:
    case META_PREFIX_ABSENT: /* holds for every key of the range, so for none */
        return buf_append_str(out, ",\"target\":\"VERSION\",\"result\":\"EQUAL\",\"version\":\"0\"}");
    case META_KEY_PRESENT:
        return buf_append_str(out, ",\"target\":\"VERSION\",\"result\":\"GREATER\",\"version\":\"0\"}");
    case META_MOD_REVISION_IS:
        return buf_append_format(out, ",\"target\":\"MOD\",\"result\":\"EQUAL\",\"mod_revision\":\"%" PRId64 "\"}",
                                 compare->revision);
    }
    return false;
}

static bool append_op(struct buf *out, const struct meta_op *op)
{
    switch (op->kind) {
    case META_PUT:
        if (!buf_append_str(out, "{\"request_put\":{") || !append_bytes(out, "key", op->key) ||
            !buf_append_str(out, ",") || !append_bytes(out, "value", op->value))
            return false;
        if (op->lease && !buf_append_format(out, ",\"lease\":\"%" PRId64 "\"", op->lease))
            return false;
        break;
    case META_DELETE:
        if (!buf_append_str(out, "{\"request_delete_range\":{") || !append_bytes(out, "key", op->key))
            return false;
        break;
    case META_DELETE_PREFIX:
        if (!buf_append_str(out, "{\"request_delete_range\":{") ||
            !append_prefix_range(out, op->key, (struct meta_bytes){0}))
            return false;
        break;
    }
    return buf_append_str(out, "}}");
}

bool etcd_encode_txn(struct buf *out, const struct meta_compare *compares, size_t compare_count,
                     const struct meta_op *ops, size_t op_count)
{
    if (!buf_append_str(out, "{\"compare\":["))
        return false;
    for (size_t i = 0; i < compare_count; i++)
        if ((i && !buf_append_str(out, ",")) || !append_compare(out, &compares[i]))
            return false;
    if (!buf_append_str(out, "],\"success\":["))
        return false;
    for (size_t i = 0; i < op_count; i++)
        if ((i && !buf_append_str(out, ",")) || !append_op(out, &ops[i]))
            return false;
    return buf_append_str(out, "]}");
}

bool etcd_encode_lease_grant(struct buf *out, int64_t lease, int64_t ttl_s)
{
    return buf_append_format(out, "{\"ID\":\"%" PRId64 "\",\"TTL\":\"%" PRId64 "\"}", lease, ttl_s);
}

bool etcd_encode_lease(struct buf *out, int64_t lease)
{
    return buf_append_format(out, "{\"ID\":\"%" PRId64 "\"}", lease);
}

bool etcd_encode_watch(struct buf *out, struct meta_bytes prefix, int64_t start_revision)
{
    if (!buf_append_str(out, "{\"create_request\":{") || !append_prefix_range(out, prefix, (struct meta_bytes){0}))
        return false;
    if (start_revision && !buf_append_format(out, ",\"start_revision\":\"%" PRId64 "\"", start_revision))
        return false;
    return buf_append_str(out, ",\"progress_notify\":true,\"fragment\":true}}");
}

bool etcd_encode_authenticate(struct buf *out, const char *user, const char *password)
{
    json_t *object = json_pack("{s:s, s:s}", "name", user, "password", password);
    char *text = object ? json_dumps(object, JSON_COMPACT) : NULL;
    bool is_done = text && buf_append_str(out, text);
    if (text) /* the password shall not linger in freed memory */
        explicit_bzero(text, strlen(text));
    free(text);
    json_decref(object);
    return is_done;
}

/* --- reading JSON --------------------------------------------------------------------------------------------------
 */

static enum shoal_status nonsense(struct shoal_error *error, const char *what)
{
    return error_set(error, SHOAL_METADATA, 0, "answer is not what etcd v3 says: %s", what);
}

static json_t *parse(const char *text, size_t len, struct shoal_error *error, enum shoal_status *status_out)
{
    json_error_t problem;
    json_t *root = json_loadb(text, len, 0, &problem);
    if (!root) {
        *status_out = json_error_code(&problem) == json_error_out_of_memory
                          ? error_no_memory(error)
                          : error_set(error, SHOAL_METADATA, 0, "answer is no JSON: %s", problem.text);
        return NULL;
    }
    if (!json_is_object(root)) {
        *status_out = nonsense(error, "no object");
        json_decref(root);
        return NULL;
    }
    *status_out = SHOAL_OK;
    return root;
}

/* Absent: 0. false: no number. */
static bool read_u64(const json_t *object, const char *name, uint64_t *value_out)
{
    const json_t *value = json_object_get(object, name);
    *value_out = 0;
    if (!value)
        return true;
    if (json_is_integer(value)) {
        *value_out = (uint64_t)json_integer_value(value);
        return json_integer_value(value) >= 0;
    }
    if (!json_is_string(value))
        return false;
    const char *text = json_string_value(value);
    size_t len = json_string_length(value);
    if (len == 0 || len > 20)
        return false;
    for (size_t i = 0; i < len; i++) {
        if (text[i] < '0' || text[i] > '9')
            return false;
        if (__builtin_mul_overflow(*value_out, 10u, value_out) ||
            __builtin_add_overflow(*value_out, (uint64_t)(text[i] - '0'), value_out))
            return false;
    }
    return true;
}

/* Absent: 0. false: not a number from 0 to INT64_MAX. */
static bool read_count(const json_t *object, const char *name, int64_t *value_out)
{
    uint64_t value;
    if (!read_u64(object, name, &value) || value > INT64_MAX)
        return false;
    *value_out = (int64_t)value;
    return true;
}

static bool read_bool(const json_t *object, const char *name, bool *value_out)
{
    const json_t *value = json_object_get(object, name);
    *value_out = json_is_true(value);
    return !value || json_is_boolean(value);
}

static enum shoal_status read_header(const json_t *object, struct etcd_header *header, struct shoal_error *error)
{
    const json_t *value = json_object_get(object, "header");
    if (!json_is_object(value))
        return nonsense(error, "no header");
    if (!read_u64(value, "cluster_id", &header->cluster_id) || !read_count(value, "revision", &header->revision) ||
        !read_u64(value, "raft_term", &header->raft_term))
        return nonsense(error, "a number in the header");
    return SHOAL_OK;
}

static enum shoal_status read_revision_header(const json_t *object, struct etcd_header *header,
                                              struct shoal_error *error)
{
    enum shoal_status status = read_header(object, header, error);
    if (status == SHOAL_OK && header->revision == 0)
        status = nonsense(error, "no revision in the header");
    return status;
}

/* A base64 member; absent: empty. */
static enum shoal_status read_bytes(const json_t *object, const char *name, size_t max, char **data_out,
                                    size_t *len_out, struct shoal_error *error)
{
    const json_t *value = json_object_get(object, name);
    bool is_memory_out;
    if (value && !json_is_string(value))
        return nonsense(error, "a key or value is no string");
    char *data = base64_decode(value ? json_string_value(value) : "", value ? json_string_length(value) : 0, len_out,
                               &is_memory_out);
    if (!data)
        return is_memory_out ? error_no_memory(error) : nonsense(error, "a key or value is not base64");
    if (*len_out > max) {
        free(data);
        return nonsense(error, "a key or value is too large");
    }
    *data_out = data;
    return SHOAL_OK;
}

#define FOREIGN_VALUE_MAX_BYTES (8u << 20) /* other programs' values are not bound by our limit, but by etcd's */

static enum shoal_status read_entry(const json_t *object, struct meta_entry *entry, struct shoal_error *error)
{
    *entry = (struct meta_entry){0};
    if (!json_is_object(object))
        return nonsense(error, "a key-value pair is no object");
    enum shoal_status status = read_bytes(object, "key", FOREIGN_VALUE_MAX_BYTES, &entry->key, &entry->key_len, error);
    if (status == SHOAL_OK && entry->key_len == 0)
        status = nonsense(error, "an empty key");
    if (status == SHOAL_OK)
        status = read_bytes(object, "value", FOREIGN_VALUE_MAX_BYTES, &entry->value, &entry->value_len, error);
    if (status == SHOAL_OK && (!read_count(object, "create_revision", &entry->create_revision) ||
                               !read_count(object, "mod_revision", &entry->mod_revision) ||
                               !read_count(object, "lease", &entry->lease) || entry->mod_revision == 0))
        status = nonsense(error, "a number of a key-value pair");
    if (status != SHOAL_OK)
        meta_entry_release(entry);
    return status;
}

/* --- answers -------------------------------------------------------------------------------------------------------
 */

void etcd_range_release(struct etcd_range *range)
{
    for (size_t i = 0; i < range->count; i++)
        meta_entry_release(&range->entries[i]);
    free(range->entries);
    *range = (struct etcd_range){0};
}

enum shoal_status etcd_decode_range(const char *text, size_t len, struct etcd_range *range_out,
                                    struct shoal_error *error)
{
    struct etcd_range range = {0};
    enum shoal_status status;
    json_t *root = parse(text, len, error, &status);
    if (!root)
        return status;
    status = read_revision_header(root, &range.header, error);
    if (status != SHOAL_OK)
        goto done;
    const json_t *kvs = json_object_get(root, "kvs");
    if ((kvs && !json_is_array(kvs)) || !read_bool(root, "more", &range.has_more)) {
        status = nonsense(error, "kvs or more");
        goto done;
    }
    size_t count = json_array_size(kvs);
    range.entries = calloc(count + 1, sizeof *range.entries);
    if (!range.entries)
        status = error_no_memory(error);
    for (size_t i = 0; i < count && status == SHOAL_OK; i++) {
        status = read_entry(json_array_get(kvs, i), &range.entries[i], error);
        range.count += status == SHOAL_OK;
    }
done:
    json_decref(root);
    if (status == SHOAL_OK)
        *range_out = range;
    else
        etcd_range_release(&range);
    return status;
}

enum shoal_status etcd_decode_txn(const char *text, size_t len, struct etcd_txn *txn_out, struct shoal_error *error)
{
    struct etcd_txn txn = {0};
    enum shoal_status status;
    json_t *root = parse(text, len, error, &status);
    if (!root)
        return status;
    status = read_revision_header(root, &txn.header, error);
    if (status == SHOAL_OK && !read_bool(root, "succeeded", &txn.is_succeeded))
        status = nonsense(error, "succeeded is no boolean");
    json_decref(root);
    if (status == SHOAL_OK)
        *txn_out = txn;
    return status;
}

static enum shoal_status read_lease(const json_t *object, struct etcd_lease *lease, struct shoal_error *error)
{
    enum shoal_status status = read_header(object, &lease->header, error);
    if (status == SHOAL_OK && (!read_count(object, "ID", &lease->id) || !read_count(object, "TTL", &lease->ttl_s)))
        status = nonsense(error, "ID or TTL of a lease");
    return status;
}

enum shoal_status etcd_decode_lease_grant(const char *text, size_t len, struct etcd_lease *lease_out,
                                          struct shoal_error *error)
{
    struct etcd_lease lease = {0};
    enum shoal_status status;
    json_t *root = parse(text, len, error, &status);
    if (!root)
        return status;
    status = read_lease(root, &lease, error);
    if (status == SHOAL_OK && (lease.id == 0 || lease.ttl_s == 0))
        status = nonsense(error, "a granted lease without ID or TTL");
    json_decref(root);
    if (status == SHOAL_OK)
        *lease_out = lease;
    return status;
}

enum shoal_status etcd_decode_keep_alive(const char *text, size_t len, struct etcd_lease *lease_out,
                                         struct shoal_error *error)
{
    struct etcd_lease lease = {0};
    enum shoal_status status;
    json_t *root = parse(text, len, error, &status);
    if (!root)
        return status;
    const json_t *result = json_object_get(root, "result");
    status = json_is_object(result) ? read_lease(result, &lease, error) : nonsense(error, "no result");
    if (status == SHOAL_OK && lease.id == 0)
        status = nonsense(error, "a lease without ID");
    json_decref(root);
    if (status == SHOAL_OK)
        *lease_out = lease;
    return status;
}

enum shoal_status etcd_decode_header(const char *text, size_t len, struct etcd_header *header_out,
                                     struct shoal_error *error)
{
    struct etcd_header header;
    enum shoal_status status;
    json_t *root = parse(text, len, error, &status);
    if (!root)
        return status;
    status = read_header(root, &header, error);
    json_decref(root);
    if (status == SHOAL_OK)
        *header_out = header;
    return status;
}

enum shoal_status etcd_decode_authenticate(const char *text, size_t len, char token_out[ETCD_TOKEN_MAX_BYTES],
                                           struct shoal_error *error)
{
    enum shoal_status status;
    json_t *root = parse(text, len, error, &status);
    if (!root)
        return status;
    const json_t *value = json_object_get(root, "token");
    const char *token = json_string_value(value);
    size_t token_len = json_string_length(value);
    bool is_good = token && token_len > 0 && token_len < ETCD_TOKEN_MAX_BYTES;
    for (size_t i = 0; is_good && i < token_len; i++) /* it becomes a header */
        is_good = token[i] > ' ' && token[i] < 0x7f;
    if (is_good)
        memcpy(token_out, token, token_len + 1);
    else
        status = nonsense(error, "no token");
    json_decref(root);
    return status;
}

enum shoal_status etcd_decode_status(const char *text, size_t len, char *version_out, size_t version_size,
                                     struct shoal_error *error)
{
    enum shoal_status status;
    json_t *root = parse(text, len, error, &status);
    if (!root)
        return status;
    const char *version = json_string_value(json_object_get(root, "version"));
    if (version && *version)
        snprintf(version_out, version_size, "etcd %s", version);
    else
        status = nonsense(error, "no version");
    json_decref(root);
    return status;
}

/* {"error":"...","message":"...","code":N} or, in a stream, {"error":{"grpc_code":N,"message":"..."}}; newer gateways
 * leave "error" out and send "message" and "code", in a stream inside "error". */
static bool read_failure(const json_t *root, struct etcd_failure *failure)
{
    const json_t *problem = json_object_get(root, "error");
    const json_t *holder = json_is_object(problem) ? problem : root;
    const char *message = json_string_value(json_object_get(holder, "message"));
    int64_t code = 0, grpc_code = 0;
    if (!message)
        message = json_string_value(problem);
    if (!message || !read_count(holder, "code", &code) || !read_count(holder, "grpc_code", &grpc_code))
        return false;
    code = code ? code : grpc_code;
    failure->code = code < 1000 ? (int)code : 0;
    snprintf(failure->message, sizeof failure->message, "%s", message);
    return true;
}

bool etcd_decode_failure(const char *text, size_t len, struct etcd_failure *failure_out)
{
    struct etcd_failure failure;
    json_t *root = json_loadb(text, len, JSON_DISABLE_EOF_CHECK, NULL);
    bool is_failure = json_is_object(root) && read_failure(root, &failure);
    json_decref(root);
    if (is_failure)
        *failure_out = failure;
    return is_failure;
}

void etcd_watch_answer_release(struct etcd_watch_answer *answer)
{
    for (size_t i = 0; i < answer->count; i++)
        meta_entry_release(&answer->events[i].entry);
    free(answer->events);
    *answer = (struct etcd_watch_answer){0};
}

static enum shoal_status read_event(const json_t *object, struct etcd_event *event, struct shoal_error *error)
{
    const json_t *type = json_object_get(object, "type");
    const char *name = json_string_value(type);
    if (!type || (name && strcmp(name, "PUT") == 0))
        event->is_delete = false;
    else if (name && strcmp(name, "DELETE") == 0)
        event->is_delete = true;
    else
        return nonsense(error, "an event of unknown type");
    return read_entry(json_object_get(object, "kv"), &event->entry, error);
}

static enum shoal_status read_watch_result(const json_t *result, struct etcd_watch_answer *answer,
                                           struct shoal_error *error)
{
    const json_t *events = json_object_get(result, "events");
    enum shoal_status status = read_header(result, &answer->header, error);
    if (status != SHOAL_OK)
        return status;
    if (!read_bool(result, "created", &answer->is_created) || !read_bool(result, "canceled", &answer->is_canceled) ||
        !read_bool(result, "fragment", &answer->is_fragment) ||
        !read_count(result, "compact_revision", &answer->compact_revision) || (events && !json_is_array(events)))
        return nonsense(error, "a member of a watch answer");
    const char *reason = json_string_value(json_object_get(result, "cancel_reason"));
    snprintf(answer->failure.message, sizeof answer->failure.message, "%s", reason ? reason : "");
    size_t count = json_array_size(events);
    answer->events = calloc(count + 1, sizeof *answer->events);
    if (!answer->events)
        return error_no_memory(error);
    for (size_t i = 0; i < count && status == SHOAL_OK; i++) {
        status = read_event(json_array_get(events, i), &answer->events[i], error);
        answer->count += status == SHOAL_OK;
    }
    return status;
}

enum shoal_status etcd_decode_watch(const char *text, size_t len, struct etcd_watch_answer *answer_out,
                                    struct shoal_error *error)
{
    struct etcd_watch_answer answer = {0};
    enum shoal_status status;
    json_t *root = parse(text, len, error, &status);
    if (!root)
        return status;
    const json_t *result = json_object_get(root, "result");
    if (json_is_object(result))
        status = read_watch_result(result, &answer, error);
    else if (read_failure(root, &answer.failure))
        answer.is_failure = true;
    else
        status = nonsense(error, "neither result nor error");
    json_decref(root);
    if (status == SHOAL_OK)
        *answer_out = answer;
    else
        etcd_watch_answer_release(&answer);
    return status;
}
