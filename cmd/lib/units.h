/* SPDX-License-Identifier: Apache-2.0 */
/* Sizes, durations and rates as people write and read them. Pure functions. */
#ifndef SHOAL_CMD_UNITS_H
#define SHOAL_CMD_UNITS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define UNITS_TEXT_BYTES 32

/* "67108864", "64M", "64MiB", "64m", "1.5G": powers of 1024; "64MB": powers of 1000. K M G T P. false: malformed,
 * negative or more than 2^63 - 1. */
bool units_parse_size(const char *text, uint64_t *bytes_out);
/* Bytes per second: "100M", "100MB", "100MB/s": powers of 1000, as networks are sold; "80Mi", "80MiB": powers of 1024;
 * "400mbit", "1gbit": bits. K M G T. "Mb" is refused: some mean bits by it. false: malformed, negative or more than
 * 2^63 - 1. */
bool units_parse_rate(const char *text, uint64_t *bytes_per_s_out);
/* "500ms", "30s", "30" (seconds), "5m", "1.5h"; "none": -1. At least 1 ms, at most 365 days. false: malformed. */
bool units_parse_duration(const char *text, int64_t *ms_out);
/* Decimal digits only, min..max. */
bool units_parse_uint(const char *text, uint64_t min, uint64_t max, uint64_t *value_out);

/* "0 B", "1023 B", "1.50 KiB", "64.0 MiB": three significant digits. Returns text_out. */
const char *units_format_size(uint64_t bytes, char text_out[UNITS_TEXT_BYTES]);
/* "3.91 GB/s": powers of 1000, as networks are sold. */
const char *units_format_rate(double bytes_per_s, char text_out[UNITS_TEXT_BYTES]);
/* "0:07", "12:34", "1:02:03", "2d 03:00". */
const char *units_format_seconds(uint64_t seconds, char text_out[UNITS_TEXT_BYTES]);

/* Copies text so that it can be shown on a terminal: control characters and bytes that are not UTF-8 become '?'.
 * Truncates to size. Returns to. */
const char *units_printable(const char *text, char *to, size_t size);

bool units_is_utf8(const char *text, size_t len);

#endif
