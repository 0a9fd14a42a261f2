/* SPDX-License-Identifier: Apache-2.0 */
#include "terminal.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "base/utf8.h"

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static int drawn_lines;

bool terminal_is_live(void)
{
    const char *term = getenv("TERM");
    return isatty(STDERR_FILENO) && term && *term && strcmp(term, "dumb") != 0;
}

int terminal_width(void)
{
    struct winsize size;
    if (ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col >= 20)
        return size.ws_col < 200 ? size.ws_col : 200;
    return 80;
}

void terminal_cut(char *line, size_t size, int width)
{
    size_t len = strnlen(line, size), i = 0, columns = 0;
    while (i < len && columns + 1 < (size_t)width) {
        uint32_t code;
        size_t step = utf8_decode(line + i, len - i, &code);
        i += step ? step : 1;
        columns++;
    }
    line[i < size ? i : size - 1] = '\0';
}

static void erase(void)
{
    if (drawn_lines)
        fprintf(stderr, "\r\033[%dA\033[J", drawn_lines);
    drawn_lines = 0;
}

void terminal_say(const char *line)
{
    pthread_mutex_lock(&lock);
    erase();
    fprintf(stderr, "%s\n", line);
    fflush(stderr);
    pthread_mutex_unlock(&lock);
}

void terminal_draw(const char *lines, int line_count)
{
    pthread_mutex_lock(&lock);
    erase();
    fputs(lines, stderr);
    drawn_lines = line_count;
    fflush(stderr);
    pthread_mutex_unlock(&lock);
}

void terminal_clear(void)
{
    pthread_mutex_lock(&lock);
    erase();
    fflush(stderr);
    pthread_mutex_unlock(&lock);
}
