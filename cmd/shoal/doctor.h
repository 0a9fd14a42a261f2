/* SPDX-License-Identifier: Apache-2.0 */
/* shoal doctor: one file per area (doctor_*.c), each of which looks at one thing and tells in one line or a few. */
#ifndef SHOAL_CMD_DOCTOR_H
#define SHOAL_CMD_DOCTOR_H

#include <jansson.h>
#include <stdbool.h>
#include <sys/socket.h>

#include <shoal/status.h>

#include "app.h"

enum doctor_state {
    DOCTOR_OK,
    DOCTOR_WARN, /* works, but worse than it could, or not for everybody */
    DOCTOR_FAIL, /* something that a node needs does not work */
    DOCTOR_SKIP, /* was not looked at; the text says why */
};

struct doctor {
    struct app *app;
    json_t *checks; /* owned; NULL without --json */
    unsigned warnings, failures, skipped;
    bool has_metadata;
    bool is_cluster_wide; /* the metadata service is on another machine */
    bool has_rdma;        /* an RDMA device with an active port */
};

/* One line of the report. advice: what to do; NULL: nothing. */
void doctor_tell(struct doctor *doctor, enum doctor_state state, const char *check, const char *advice,
                 const char *format, ...) __attribute__((format(printf, 5, 6)));
/* Adds a member to the JSON object of the line that was told last; takes the reference. Without --json: nothing. */
void doctor_add(struct doctor *doctor, const char *name, json_t *value);

/* Whether only this machine reaches it. */
bool doctor_is_loopback(const struct sockaddr_storage *addr);

/* Number field (from 0) in a file of numbers, as below /proc/sys; -1: it cannot be read or has fewer. */
long long doctor_read_number(const char *path, int field);
/* First line of a file without its end. false: it cannot be read. */
bool doctor_read_line(const char *path, char *text_out, size_t size);

/* --- the areas, in the order of the report --- */

void doctor_check_metadata(struct doctor *doctor);
void doctor_check_address(struct doctor *doctor);
void doctor_check_cluster(struct doctor *doctor);
void doctor_check_rdma(struct doctor *doctor);
void doctor_check_transports(struct doctor *doctor);
void doctor_check_cuda(struct doctor *doctor);
void doctor_check_local(struct doctor *doctor);
void doctor_check_limits(struct doctor *doctor); /* after rdma: it needs locked memory */
void doctor_check_network(struct doctor *doctor);
void doctor_check_memory(struct doctor *doctor);
void doctor_check_directory(struct doctor *doctor);

/* Only with --peer. */
void doctor_check_peer(struct doctor *doctor);

#endif
