/* SPDX-License-Identifier: Apache-2.0 */
/* Where memory lies: "cpu:N" (NUMA node N as the system numbers them), "cuda:N" (GPU N as the driver numbers them),
 * "*" (anywhere, unknown). Pure functions. */
#ifndef SHOAL_TRANSPORT_LOCATION_H
#define SHOAL_TRANSPORT_LOCATION_H

#include <stdbool.h>

#include <shoal/status.h>

#define LOCATION_INDEX_MAX 1023
#define LOCATION_TEXT_BYTES 16 /* "cuda:1023" NUL, with room */

enum location_kind {
    LOCATION_ANY = 0, /* "*" */
    LOCATION_CPU = 1,
    LOCATION_CUDA = 2,
};

struct location {
    enum location_kind kind;
    unsigned index; /* 0 for LOCATION_ANY */
};

/* Each location has one text: no leading zeros, no blanks. INVALID_ARGUMENT: something else, or an index beyond
 * LOCATION_INDEX_MAX. */
enum shoal_status location_parse(const char *text, struct location *out, struct shoal_error *error);
void location_format(const struct location *location, char text_out[LOCATION_TEXT_BYTES]);
bool location_is_equal(const struct location *a, const struct location *b);

#endif
