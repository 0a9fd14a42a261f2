/* SPDX-License-Identifier: Apache-2.0 */
/* Device memory for tests, of the driver that SHOAL_CUDA_DRIVER names: the stub (cuda_stub.h), or a real one. */
#ifndef SHOAL_TESTS_CUDA_TEST_H
#define SHOAL_TESTS_CUDA_TEST_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "cuda_stub.h"

/* Loads and starts the driver, once. false: there is none. */
bool cuda_test_start(void);
/* NULL: the driver is a real one. */
const struct cuda_stub_control *cuda_test_stub(void);
/* Fails the test on error. */
uint8_t *cuda_test_alloc(int device, size_t len);
void cuda_test_free(int device, void *address);
void cuda_test_write(int device, void *to, const void *from, size_t len);
void cuda_test_read(int device, void *to, const void *from, size_t len);
/* The content of content.h, and where memory differs from it; -1: nowhere. */
void cuda_test_fill(int device, uint8_t *to, size_t len, uint64_t seed, uint64_t offset);
int64_t cuda_test_find_difference(int device, const uint8_t *from, size_t len, uint64_t seed, uint64_t offset);

#endif
