/* SPDX-License-Identifier: Apache-2.0 */
/* What the transport contract tests share: engines on a throw-away metadata file, memory with known content, peers in
 * child processes. */
#ifndef SHOAL_TESTS_TRANSPORT_FIXTURE_H
#define SHOAL_TESTS_TRANSPORT_FIXTURE_H

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <shoal/engine.h>
#include <sys/types.h>

#define PATIENCE_MS 60000 /* for what must happen at last, however slow the machine */

/* Set by main: the transport under test, its arguments, whether it crosses processes, and whether it needs memory that
 * can be shared. */
extern const char *transport_name, *transport_args;
extern bool transport_is_remote, transport_is_shared;

#define assert_ok(expression, error) fixture_check(SHOAL_OK, (expression), (error), #expression, __FILE__, __LINE__)
#define assert_status(expected, expression, error)                                                                     \
    fixture_check((expected), (expression), (error), #expression, __FILE__, __LINE__)
void fixture_check(enum shoal_status expected, enum shoal_status actual, const struct shoal_error *error,
                   const char *what, const char *file, int line);

/* A metadata file of its own; setup and teardown of every test. */
int fixture_setup(void **state);
int fixture_teardown(void **state);
const char *fixture_uri(void);

struct shoal_engine_config fixture_config(void);                            /* "127.0.0.1", short timeouts */
struct shoal_engine *engine_make(const struct shoal_engine_config *config); /* NULL: fixture_config */

/* Page-aligned memory, freed by memory_drop. */
uint8_t *memory_make(size_t len);
void memory_drop(uint8_t *memory, size_t len);

/* The same as the transport under test needs it. engine NULL: it was destroyed, and took shared memory with it. */
uint8_t *memory_make_for(struct shoal_engine *engine, size_t len);
void memory_drop_of(struct shoal_engine *engine, uint8_t *memory, size_t len);

/* One request in a batch of its own, to its end. */
enum shoal_status transfer(struct shoal_engine *engine, struct shoal_segment *segment, enum shoal_op op, void *local,
                           const void *remote, uint64_t key, uint64_t len, struct shoal_error *error);

/* A process with one engine and one registered block of content (seed), readable and writable. */
struct child {
    pid_t pid;
    char name[320];
    void *memory;
    size_t len;
    int control; /* closing it ends the child */
};
/* At the start of main: runs the child, if that is what the arguments say, and does not return then. */
void fixture_run_child(int argc, char **argv);
/* name NULL: a free port. */
struct child child_start(size_t len, uint64_t seed, const char *name);
/* The same on another metadata service and with a short lease; its memory is one page. */
struct child child_start_with(const char *metadata_uri, int64_t lease_ttl_ms);
void child_pause(const struct child *child); /* SIGSTOP; it has stopped when this returns */
void child_stop(struct child *child);        /* kills; a second call does nothing */

/* Value of a sample, "name" or "name{label=...}", which must be there. */
uint64_t engine_metric(struct shoal_engine *engine, const char *sample);

/* Whether Shoal was built with UCX and its library is here; false is explained on stderr. */
bool fixture_has_ucx(void);

#define wait_until(condition)                                                                                          \
    do {                                                                                                               \
        for (int64_t tries_ = 0; !(condition); tries_++) {                                                             \
            if (tries_ > PATIENCE_MS)                                                                                  \
                fail_msg("waited in vain for: %s", #condition);                                                        \
            fixture_breathe();                                                                                         \
        }                                                                                                              \
    } while (0)
#define wait_until_ok(expression, error)                                                                               \
    do {                                                                                                               \
        for (int64_t tries_ = 0; (expression) != SHOAL_OK; tries_++) {                                                 \
            if (tries_ > PATIENCE_MS)                                                                                  \
                fail_msg("waited in vain for: %s: %s", #expression, (error)->message);                                 \
            fixture_breathe();                                                                                         \
        }                                                                                                              \
    } while (0)
void fixture_breathe(void); /* 1 ms */

#endif
