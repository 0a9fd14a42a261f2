/* SPDX-License-Identifier: Apache-2.0 */
/* Joins the cluster as a get would, and knocks at the sources that are listed. */
#include <unistd.h>

#include "doctor.h"
#include "greet.h"

#define CONNECT_TIMEOUT_MS 2000
#define CHECKED_SOURCES 32

struct tally {
    size_t payloads, unreadable, sources, unreachable;
};

static void knock(struct doctor *doctor, const struct shoal_payload_info *payload,
                  const struct shoal_source_info *source, struct tally *tally)
{
    struct shoal_error error;
    int fd = greet_connect_to(source->address, CONNECT_TIMEOUT_MS, &error);
    tally->sources++;
    if (fd >= 0) {
        close(fd);
        return;
    }
    tally->unreachable++;
    doctor_tell(doctor, DOCTOR_WARN, "source",
                "see whether it runs, and whether its --name is an address that this machine reaches",
                "%s of \"%s\" is listed at %s, but: %s", source->name, payload->name, source->address, error.message);
}

void doctor_check_cluster(struct doctor *doctor)
{
    struct app *app = doctor->app;
    struct shoal_payload_info *infos = NULL;
    struct tally tally = {0};
    struct shoal_error error;
    if (!doctor->has_metadata) {
        doctor_tell(doctor, DOCTOR_SKIP, "cluster", NULL, "without the metadata service nobody can be found");
        return;
    }
    if (app_open_store(app, true, &error) != SHOAL_OK) {
        doctor_tell(doctor, DOCTOR_FAIL, "cluster", "see the lines above", "cannot join: %s", error.message);
        return;
    }
    struct shoal_call call = app_call(app);
    if (shoal_store_list(app->store, "", &call, &infos, &tally.payloads, &error) != SHOAL_OK) {
        doctor_tell(doctor, DOCTOR_FAIL, "cluster", "see the lines above", "cannot list the payloads: %s",
                    error.message);
        return;
    }
    for (size_t i = 0; i < tally.payloads; i++) {
        tally.unreadable += infos[i].status != SHOAL_OK;
        for (size_t j = 0; j < infos[i].source_count && tally.sources < CHECKED_SOURCES && !signals_received(); j++)
            knock(doctor, &infos[i], &infos[i].sources[j], &tally);
    }
    doctor_tell(doctor, tally.unreadable ? DOCTOR_WARN : DOCTOR_OK, "cluster",
                tally.unreadable ? "a newer or another program wrote them; shoal ls shows which" : NULL,
                "joined \"%s\": %zu payloads (%zu unreadable), %zu of %zu sources tried are reachable",
                app->settings.cluster, tally.payloads, tally.unreadable, tally.sources - tally.unreachable,
                tally.sources);
    shoal_payload_infos_free(infos, tally.payloads);
}
