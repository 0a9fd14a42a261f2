/* SPDX-License-Identifier: Apache-2.0 */
/* Deterministic content: byte i of seed s is the same in every process, at any offset. Seed 0 is all zeros. */
#ifndef SHOAL_TESTS_LIB_CONTENT_H
#define SHOAL_TESTS_LIB_CONTENT_H

#include <stddef.h>
#include <stdint.h>

/* Writes bytes offset .. offset+len of seed's content. */
void content_fill(void *to, size_t len_bytes, uint64_t seed, uint64_t offset);

/* Index of the first byte that differs, -1 if none does. */
int64_t content_find_difference(const void *data, size_t len_bytes, uint64_t seed, uint64_t offset);

#endif
