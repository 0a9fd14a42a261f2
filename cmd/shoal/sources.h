/* SPDX-License-Identifier: Apache-2.0 */
/* What the sources of a payload say of themselves, for `shoal stat`. */
#ifndef SHOAL_CMD_SOURCES_H
#define SHOAL_CMD_SOURCES_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>

#include <shoal/store.h>

struct app;

struct sources {
    struct shoal_source_status *infos; /* owned; those that did not answer say why */
    size_t count;
};

/* Asks all of them. If even the attempt fails (the metadata service is gone by now, the payload was replaced), every
 * source of info is an entry with that error. */
void sources_ask(struct sources *sources, struct app *app, const struct shoal_payload_info *info, bool with_receivers);
json_t *sources_to_json(const struct sources *sources);
void sources_print(const struct sources *sources, bool with_receivers);
void sources_release(struct sources *sources);

#endif
