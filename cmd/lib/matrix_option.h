/* SPDX-License-Identifier: Apache-2.0 */
/* The value of --nic-priority-matrix: JSON, or @FILE for a file (or pipe) with it. */
#ifndef SHOAL_CMD_MATRIX_OPTION_H
#define SHOAL_CMD_MATRIX_OPTION_H

#include <shoal/status.h>

/* given NULL: *text_out is NULL. Else free(*text_out). What the text says is not looked at. INVALID_ARGUMENT: no such
 * file, a directory, too long, a NUL in it. Blocks as long as the file does. */
enum shoal_status matrix_option_read(const char *given, char **text_out, struct shoal_error *error);

#endif
