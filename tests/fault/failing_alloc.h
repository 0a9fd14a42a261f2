/* SPDX-License-Identifier: Apache-2.0 */
/* Allocations that fail on demand, of the whole program. The linker puts these functions in the place of malloc and its
 * like wherever the project's own code calls them (link_args in meson.build). Any thread. */
#ifndef SHOAL_TESTS_FAILING_ALLOC_H
#define SHOAL_TESTS_FAILING_ALLOC_H

#include <stdbool.h>

/* From now on the nth allocation fails, and those that follow until `times` have. */
void failing_alloc_begin(unsigned long nth, unsigned times);
/* Only those of the threads of that name (a constant; NULL: all) count and fail. */
void failing_alloc_begin_in(const char *thread, unsigned long nth, unsigned times);
/* None fails any more. Whether one has. */
bool failing_alloc_end(void);
bool failing_alloc_has_fired(void);

#endif
