/* SPDX-License-Identifier: Apache-2.0 */
/* A node for the tests of the command line: registers what `shoal seed` never would.
 *
 * usage: cli_node METADATA NAME [--attachment FILE] [--damage] [--piece SIZE] [--pace RATE] [--file FILE | SIZE]...
 *
 * Regions with the content of files, or of the given sizes with bytes that count up (without one: 5 bytes); --damage
 * changes them after they are registered; --pace sends RATE bytes per second on each connection, after SIGUSR1 as fast
 * as it can, after SIGUSR2 paced again. Prints "ready", then serves until SIGTERM. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <shoal/store.h>

#include "pace.h"

#define MAX_REGIONS 64

static char *read_file(const char *path, size_t *len_out)
{
    FILE *file = fopen(path, "re");
    if (!file)
        return NULL;
    char *text = malloc(64 << 20);
    *len_out = text ? fread(text, 1, 64 << 20, file) : 0;
    fclose(file);
    return text;
}

int main(int argc, char **argv)
{
    struct shoal_error error = {.status = SHOAL_OK};
    struct shoal_store *store = NULL;
    struct shoal_region regions[MAX_REGIONS] = {{0}};
    size_t count = 0, attachment_len = 0;
    char *attachment = NULL;
    int is_damaged = 0, code = 1;
    unsigned long long piece_size = 0, rate_bps = 0;
    sigset_t set;
    if (argc < 3)
        return 2;
    sigemptyset(&set);
    sigaddset(&set, SIGTERM);
    sigaddset(&set, SIGUSR1);
    sigaddset(&set, SIGUSR2);
    sigprocmask(SIG_BLOCK, &set, NULL);

    for (int i = 3; i < argc; i++) {
        if (strcmp(argv[i], "--damage") == 0) {
            is_damaged = 1;
        } else if (strcmp(argv[i], "--attachment") == 0 && i + 1 < argc) {
            attachment = read_file(argv[++i], &attachment_len);
        } else if (strcmp(argv[i], "--piece") == 0 && i + 1 < argc) {
            piece_size = strtoull(argv[++i], NULL, 10);
        } else if (strcmp(argv[i], "--pace") == 0 && i + 1 < argc) {
            rate_bps = strtoull(argv[++i], NULL, 10);
        } else if (strcmp(argv[i], "--file") == 0 && i + 1 < argc && count < MAX_REGIONS) {
            size_t len = 0;
            if (!(regions[count].addr = read_file(argv[++i], &len)))
                goto out;
            regions[count++].len_bytes = len;
        } else if (count < MAX_REGIONS) {
            regions[count++].len_bytes = strtoull(argv[i], NULL, 10);
        }
    }
    if (count == 0)
        regions[count++].len_bytes = 5;
    for (size_t i = 0; i < count; i++)
        if (!regions[i].addr) {
            if (!(regions[i].addr = malloc(regions[i].len_bytes + 1)))
                goto out;
            for (uint64_t j = 0; j < regions[i].len_bytes; j++)
                ((unsigned char *)regions[i].addr)[j] = (unsigned char)j;
        }

    struct shoal_store_config config = {
        .struct_size = sizeof config, .metadata_uri = argv[1], .server_name = "127.0.0.1:0"};
    struct shoal_register_options options = {.struct_size = sizeof options,
                                             .piece_size = piece_size,
                                             .force = 1,
                                             .attachment = attachment,
                                             .attachment_len_bytes = attachment_len};
    pace_set(rate_bps);
    if (shoal_store_create(&config, NULL, &store, &error) != SHOAL_OK ||
        shoal_store_register(store, argv[2], regions, count, &options, NULL, &error) != SHOAL_OK) {
        fprintf(stderr, "cli_node: %s\n", error.message);
        goto out;
    }
    for (size_t i = 0; i < count && is_damaged; i++)
        memset(regions[i].addr, 0x55, regions[i].len_bytes);
    puts("ready");
    fflush(stdout);
    int number;
    while (sigwait(&set, &number) == 0 && number != SIGTERM)
        pace_set(number == SIGUSR1 ? 0 : rate_bps);
    code = 0;
out:
    shoal_store_close(store, NULL);
    for (size_t i = 0; i < count; i++)
        free(regions[i].addr);
    free(attachment);
    return code;
}
