/* SPDX-License-Identifier: Apache-2.0 */
#ifndef SHOAL_CMD_EXIT_CODE_H
#define SHOAL_CMD_EXIT_CODE_H

#include <shoal/status.h>

/* Documented in `shoal help exit-codes` and docs/cli.md; never renumbered. A signal adds 128. */
enum exit_code {
    EXIT_CODE_OK = 0,
    EXIT_CODE_FAILURE = 1,
    EXIT_CODE_USAGE = 2,
    EXIT_CODE_NOT_FOUND = 3,
    EXIT_CODE_EXISTS = 4,
    EXIT_CODE_CORRUPTED = 5,
    EXIT_CODE_TIMED_OUT = 6,
    EXIT_CODE_METADATA = 7,
    EXIT_CODE_NO_SOURCE = 8,
    EXIT_CODE_ADDRESS = 9,
    EXIT_CODE_REPLACED = 10,
    EXIT_CODE_NO_SPACE = 11,
    EXIT_CODE_UNREACHABLE = 12,
};

enum exit_code exit_code_of(enum shoal_status status);

#endif
