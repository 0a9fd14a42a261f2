/* SPDX-License-Identifier: Apache-2.0 */
/* One table of options per command: parsing, --help, shell completion, man page and reference are all made from it
 * (the idea is git's parse-options). */
#ifndef SHOAL_CMD_OPTIONS_H
#define SHOAL_CMD_OPTIONS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include <shoal/engine.h>

#include "option_spec.h"

/* The values of all options of all commands; a command reads those of its own table. */
struct settings {
    /* common */
    const char *metadata; /* NULL: the default file */
    const char *name;
    const char *cluster; /* options_default_cluster, that very pointer: none was given */
    int64_t timeout_ms;  /* 0: each step's own default; < 0: none */
    bool is_json;
    int verbosity; /* -1: errors only, 0: warnings, 1: info, 2: debug, 3: trace */
    bool wants_help;
    /* seed, get */
    const char *metrics; /* NULL: none */
    /* seed */
    uint64_t max_shard_size, piece_size; /* 0: chosen */
    bool is_forced, follows_links;
    /* get */
    bool keeps_seeding, skips_verify, skips_share, skips_resume, waits, keeps_existing, syncs;
    uint64_t max_sources;
    /* seed and get */
    uint64_t upload_limit, download_limit; /* bytes per second; 0: none */
    uint64_t upload_slots;                 /* 0: chosen */
    uint64_t io_threads;                   /* 0: chosen */
    /* all that take part in transfers */
    const char *protocol, *nic_priority_matrix; /* NULL: chosen, none */
    /* stat */
    bool lists_files, lists_receivers;
    /* doctor */
    const char *dir; /* NULL: the current one, whose speed is not measured */
    uint64_t probe_bytes;
    const char *peer; /* NULL: none */
    /* topo */
    bool prints_matrix;
    const char *xml; /* NULL: this machine */
    /* man */
    bool is_markdown;
    /* kv commands */
    const char *kv_client, *kv_master, *kv_host;
    /* kv put */
    uint64_t replicas;
    const char *prefer; /* NULL: chosen */
    /* kv rm */
    const char *pattern; /* NULL: none */
    bool removes_all;
    /* kv bench */
    uint64_t value_bytes, threads, keys;
    int64_t duration_ms;
};

struct app;

struct command {
    const char *name;                  /* one word, or two as "kv put" */
    const char *arguments;             /* for the synopsis */
    const char *summary;               /* a few words */
    const char *text;                  /* what it does, in paragraphs */
    const struct option_spec *options; /* its own; NULL: none */
    bool has_serving_options;          /* those of a node that others take from: --upload-limit and so on */
    bool has_common_options;           /* those of a node: --metadata and so on */
    bool has_kv_options;               /* those of a command of the KV store: --client and so on */
    int min_arguments, max_arguments;  /* max < 0: any number */
    int (*run)(struct app *app, int count, char **arguments);
};

extern const char options_default_cluster[];
extern const struct option_spec options_common[], options_kv[];
extern const struct command *const commands[]; /* ends with NULL */

const struct command *command_find(const char *name);

/* Environment first, then argv (argv[0] is the command). Arguments that are no options are moved to the end; first_out
 * is the index of the first one. false: a message has been printed to stderr. */
bool options_parse(const struct command *command, int argc, char **argv, struct settings *settings, int *first_out);
void options_set_defaults(struct settings *settings);

/* "  -f, --force           text": written with wrapping, width columns. */
void options_print(FILE *to, const struct command *command, int width);
/* Calls fn for each option of the command, its own first. */
void options_for_each(const struct command *command, void (*fn)(void *arg, const struct option_spec *spec), void *arg);

#endif
