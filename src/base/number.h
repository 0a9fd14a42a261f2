/* SPDX-License-Identifier: Apache-2.0 */
/* Numbers with a unit behind them, as people write them. Pure functions. */
#ifndef SHOAL_BASE_NUMBER_H
#define SHOAL_BASE_NUMBER_H

#include <stdbool.h>
#include <stdint.h>

/* Reads digits with an optional fraction and moves text behind them; the fraction is kept apart so that whole numbers
 * stay exact to 64 bits. false: no digits, or more than 64 bits. */
bool number_parse(const char **text, uint64_t *whole_out, double *fraction_out);
/* (whole + fraction) * unit, rounded. false: more than max. */
bool number_scale(uint64_t whole, double fraction, uint64_t unit, uint64_t max, uint64_t *out);
/* "67108864", "64M", "64MiB", "64m", "1.5G": powers of 1024; "64MB": powers of 1000. K M G T P. false: malformed,
 * negative or more than 2^63 - 1. */
bool number_parse_size(const char *text, uint64_t *bytes_out);

#endif
