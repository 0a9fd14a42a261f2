/* SPDX-License-Identifier: Apache-2.0 */
#include "base/pattern.h"

#include <fnmatch.h>
#include <locale.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"

struct element {
    enum { ELEMENT_STAR, ELEMENT_ANY, ELEMENT_BYTE, ELEMENT_SET } kind;
    unsigned char byte;
    uint32_t set; /* number in sets */
};

/* Bytes that a bracket expression accepts. */
struct byte_set {
    uint32_t bits[8];
};

struct pattern {
    struct element *elements; /* owned */
    struct byte_set *sets;    /* owned */
    size_t count, set_count, prefix_len;
    char *prefix; /* owned */
};

/* Length of the bracket expression at text; 0: it never ends. */
static size_t bracket_len(const char *text)
{
    size_t at = 1;

    if (text[at] == '!' || text[at] == '^')
        at++;
    if (text[at] == ']')
        at++;
    while (text[at] && text[at] != ']') {
        if (text[at] == '[' && (text[at + 1] == ':' || text[at + 1] == '.' || text[at + 1] == '=')) {
            char ending[] = {text[at + 1], ']', '\0'};
            const char *end = strstr(text + at + 2, ending);
            if (end) {
                at = (size_t)(end - text) + 2;
                continue;
            }
        }
        if (text[at] == '\\' && text[at + 1])
            at++;
        at++;
    }
    return text[at] == ']' ? at + 1 : 0;
}

/* What is in the brackets is the C library's to say, byte by byte. false: nothing. */
static bool fill_set(struct byte_set *set, const char *text, size_t len)
{
    char expression[PATTERN_MAX_BYTES + 1];
    bool is_any = false;

    memcpy(expression, text, len);
    expression[len] = '\0';
    for (unsigned byte = 1; byte < 256; byte++) {
        char subject[] = {(char)byte, '\0'};
        if (fnmatch(expression, subject, 0) == 0) {
            set->bits[byte / 32] |= 1u << byte % 32;
            is_any = true;
        }
    }
    return is_any;
}

static enum shoal_status malformed(struct shoal_error *error, const char *whole, const char *problem)
{
    return error_set(error, SHOAL_INVALID_ARGUMENT, 0, "malformed pattern '%.200s': %s", whole, problem);
}

static enum shoal_status compile(struct pattern *pattern, const char *whole, struct shoal_error *error)
{
    for (const char *text = whole; *text;) {
        struct element *element = &pattern->elements[pattern->count];
        size_t len = 1;
        element->kind = ELEMENT_BYTE;
        element->byte = (unsigned char)*text;
        if (*text == '*') {
            element->kind = ELEMENT_STAR;
            if (pattern->count && element[-1].kind == ELEMENT_STAR) {
                text++;
                continue;
            }
        } else if (*text == '?') {
            element->kind = ELEMENT_ANY;
        } else if (*text == '\\') {
            if (!text[1])
                return malformed(error, whole,
                                 "the backslash at its end stands before nothing; write \\\\ for the character itself");
            element->byte = (unsigned char)text[1];
            len = 2;
        } else if (*text == '[') {
            len = bracket_len(text);
            if (!len)
                return malformed(error, whole, "no ']' ends its '['; write \\[ for the character itself");
            element->kind = ELEMENT_SET;
            element->set = (uint32_t)pattern->set_count;
            if (!fill_set(&pattern->sets[pattern->set_count++], text, len))
                return malformed(error, whole,
                                 "nothing is in one of its [...]: a range that runs backwards, or a class "
                                 "that does not exist");
        }
        pattern->count++;
        text += len;
    }
    while (pattern->prefix_len < pattern->count && pattern->elements[pattern->prefix_len].kind == ELEMENT_BYTE) {
        pattern->prefix[pattern->prefix_len] = (char)pattern->elements[pattern->prefix_len].byte;
        pattern->prefix_len++;
    }
    return SHOAL_OK;
}

enum shoal_status pattern_create(const char *text, struct pattern **pattern_out, struct shoal_error *error)
{
    size_t len = strlen(text), brackets = 0;
    struct pattern *pattern;
    enum shoal_status status;
    locale_t c_locale, callers;

    if (len > PATTERN_MAX_BYTES)
        return error_set(error, SHOAL_INVALID_ARGUMENT, 0, "a pattern has at most %u bytes", PATTERN_MAX_BYTES);
    if (!len)
        text = "*";
    for (const char *at = text; (at = strchr(at, '[')); at++)
        brackets++;
    pattern = calloc(1, sizeof *pattern);
    c_locale = newlocale(LC_ALL_MASK, "C", (locale_t)0);
    if (!pattern || !c_locale)
        goto no_memory;
    pattern->elements = calloc(len + 1, sizeof *pattern->elements);
    pattern->prefix = malloc(len + 1);
    pattern->sets = calloc(brackets + 1, sizeof *pattern->sets);
    if (!pattern->elements || !pattern->prefix || !pattern->sets)
        goto no_memory;
    callers = uselocale(c_locale);
    status = compile(pattern, text, error);
    uselocale(callers);
    freelocale(c_locale);
    if (status)
        pattern_destroy(pattern);
    else
        *pattern_out = pattern;
    return status;

no_memory:
    if (c_locale)
        freelocale(c_locale);
    pattern_destroy(pattern);
    return error_no_memory(error);
}

void pattern_destroy(struct pattern *pattern)
{
    if (!pattern)
        return;
    free(pattern->elements);
    free(pattern->prefix);
    free(pattern->sets);
    free(pattern);
}

static bool accepts(const struct pattern *pattern, const struct element *element, unsigned char byte)
{
    switch (element->kind) {
    case ELEMENT_ANY:
        return true;
    case ELEMENT_BYTE:
        return element->byte == byte;
    case ELEMENT_SET:
        return pattern->sets[element->set].bits[byte / 32] >> byte % 32 & 1;
    case ELEMENT_STAR:
        break;
    }
    return false;
}

/* Only the last star ever needs to take more. */
bool pattern_matches(const struct pattern *pattern, const char *key, size_t key_len)
{
    size_t at = 0, element = 0, star = SIZE_MAX, star_at = 0;

    while (at < key_len) {
        if (element < pattern->count && pattern->elements[element].kind == ELEMENT_STAR) {
            star = element++;
            star_at = at;
        } else if (element < pattern->count && accepts(pattern, &pattern->elements[element], (unsigned char)key[at])) {
            element++;
            at++;
        } else if (star != SIZE_MAX) {
            element = star + 1;
            at = ++star_at;
        } else {
            return false;
        }
    }
    while (element < pattern->count && pattern->elements[element].kind == ELEMENT_STAR)
        element++;
    return element == pattern->count;
}

const char *pattern_prefix(const struct pattern *pattern, size_t *len_out)
{
    *len_out = pattern->prefix_len;
    return pattern->prefix;
}
