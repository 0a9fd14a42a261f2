/* SPDX-License-Identifier: Apache-2.0 */
/* Standard error: lines that stay, and below them a progress display that is redrawn. Any thread. */
#ifndef SHOAL_CMD_TERMINAL_H
#define SHOAL_CMD_TERMINAL_H

#include <stdbool.h>
#include <stddef.h>

/* Standard error is a terminal that can move its cursor. */
bool terminal_is_live(void);
int terminal_width(void);
/* Ends line (a buffer of size bytes) before column width; UTF-8 is not torn. */
void terminal_cut(char *line, size_t size, int width);

/* Writes one line (newline is added) above the display. */
void terminal_say(const char *line);
/* Replaces the display by line_count lines (each ended by a newline). */
void terminal_draw(const char *lines, int line_count);
void terminal_clear(void);

#endif
