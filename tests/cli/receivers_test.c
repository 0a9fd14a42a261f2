/* SPDX-License-Identifier: Apache-2.0 */
/* What is told of receivers: each change once, in order, and never a flood of lines. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "app.h"
#include "receivers.h"

#define PIECES 10

static struct app app = {.command = &command_seed, .settings = {.verbosity = 1}};
static struct receiver_watch watch;
static FILE *said; /* standard error of what runs */
static int kept_fd;

static int set_up(void **state)
{
    (void)state;
    said = tmpfile();
    kept_fd = dup(STDERR_FILENO);
    if (!said || kept_fd < 0 || dup2(fileno(said), STDERR_FILENO) < 0)
        return -1;
    app.settings.verbosity = 1;
    receiver_watch_init(&watch, &app, "n");
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    receiver_watch_release(&watch);
    dup2(kept_fd, STDERR_FILENO);
    close(kept_fd);
    fclose(said);
    return 0;
}

/* What was said since the last time; lines in *lines_out. */
static const char *take(unsigned *lines_out)
{
    static char text[1 << 20];
    size_t len;

    rewind(said);
    len = fread(text, 1, sizeof text - 1, said);
    text[len] = '\0';
    *lines_out = 0;
    for (const char *c = text; *c; c++)
        *lines_out += *c == '\n';
    rewind(said);
    assert_int_equal(ftruncate(fileno(said), 0), 0);
    return text;
}

static struct shoal_receiver_info receiver(const char *name, enum shoal_receiver_state state, uint32_t have)
{
    struct shoal_receiver_info info = {.state = state, .pieces_have = have, .bytes = 1024};

    snprintf(info.name, sizeof info.name, "%s", name);
    return info;
}

static void test_changes(void **state)
{
    struct shoal_receiver_info info = receiver("a:1", SHOAL_RECEIVER_TAKING, 3);
    unsigned lines;

    (void)state;
    receiver_watch_tell(&watch, &info, 1, PIECES);
    assert_non_null(strstr(take(&lines), "receiver a:1: joined\n"));
    info.pieces_have = 4; /* progress is no change */
    receiver_watch_tell(&watch, &info, 1, PIECES);
    take(&lines);
    assert_int_equal(lines, 0);
    info.state = SHOAL_RECEIVER_LEFT;
    receiver_watch_tell(&watch, &info, 1, PIECES);
    receiver_watch_tell(&watch, &info, 1, PIECES);
    assert_non_null(strstr(take(&lines), "receiver a:1: 1.00 KiB, left, had 40 %\n"));
    assert_int_equal(lines, 1);
    info.state = SHOAL_RECEIVER_TAKING;
    receiver_watch_tell(&watch, &info, 1, PIECES);
    info = receiver("a:1", SHOAL_RECEIVER_DONE, PIECES);
    receiver_watch_tell(&watch, &info, 1, PIECES);
    assert_non_null(strstr(take(&lines), "joined\nshoal seed: receiver a:1: 1.00 KiB, done\n"));
    assert_int_equal(lines, 2);
}

static void test_came_and_went_between_two_looks(void **state)
{
    struct shoal_receiver_info info = receiver("a:1", SHOAL_RECEIVER_DONE, PIECES);
    unsigned lines;

    (void)state;
    receiver_watch_tell(&watch, &info, 1, PIECES);
    assert_non_null(strstr(take(&lines), "joined\nshoal seed: receiver a:1: 1.00 KiB, done\n"));
}

static void test_no_flood(void **state)
{
    enum { COUNT = 1000 };
    struct shoal_receiver_info *infos = calloc(COUNT, sizeof *infos);
    unsigned lines, all = 0, calls = 0;

    (void)state;
    assert_non_null(infos);
    for (int i = 0; i < COUNT; i++) {
        char name[32];
        snprintf(name, sizeof name, "n:%d", i);
        infos[i] = receiver(name, SHOAL_RECEIVER_TAKING, 1);
    }
    do {
        receiver_watch_tell(&watch, infos, COUNT, PIECES);
        take(&lines);
        assert_true(lines <= 20);
        all += lines;
        calls++;
    } while (lines > 0 && calls < COUNT);
    assert_int_equal(all, COUNT); /* later, but none is lost */
    /* The node has forgotten all but two: so does the watch. */
    receiver_watch_tell(&watch, infos, 2, PIECES);
    assert_int_equal(watch.told.count, 2);
    take(&lines);
    assert_int_equal(lines, 0);
    free(infos);
}

static void test_silent(void **state)
{
    struct shoal_receiver_info info = receiver("a:1", SHOAL_RECEIVER_TAKING, 3);
    unsigned lines;

    (void)state;
    app.settings.verbosity = 0;
    receiver_watch_tell(&watch, &info, 1, PIECES);
    take(&lines);
    assert_int_equal(lines, 0);
}

static void test_names_are_made_printable(void **state)
{
    struct shoal_receiver_info info = receiver("a\033[2J\xff:1", SHOAL_RECEIVER_TAKING, 3);
    unsigned lines;

    (void)state;
    receiver_watch_tell(&watch, &info, 1, PIECES);
    assert_non_null(strstr(take(&lines), "receiver a?[2J?:1: joined\n"));
}

static void test_percent(void **state)
{
    (void)state;
    assert_int_equal(share_percent(0, 0), 100);
    assert_int_equal(share_percent(0, 7), 0);
    assert_int_equal(share_percent(999999, 1000000), 99); /* 100 means everything */
    assert_int_equal(share_percent(UINT64_MAX - 1, UINT64_MAX), 99);
    assert_int_equal(share_percent(9, 7), 100);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_changes, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_came_and_went_between_two_looks, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_no_flood, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_silent, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_names_are_made_printable, set_up, tear_down),
        cmocka_unit_test(test_percent),
    };
    return cmocka_run_group_tests_name("receivers", tests, NULL, NULL);
}
