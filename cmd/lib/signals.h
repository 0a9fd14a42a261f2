/* SPDX-License-Identifier: Apache-2.0 */
/* SIGINT, SIGTERM and SIGHUP of a command, taken by a thread of its own. */
#ifndef SHOAL_CMD_SIGNALS_H
#define SHOAL_CMD_SIGNALS_H

#include <stdbool.h>

#include <shoal/status.h>

/* Blocks the three for all threads that are started later and starts one that waits for them: the first triggers cancel
 * (may be NULL), the second ends the process at once. */
enum shoal_status signals_start(struct shoal_cancel *cancel, struct shoal_error *error);
void signals_stop(void);
int signals_received(void); /* 0: none */
/* Sleeps; true as soon as a signal has been received. timeout_ms < 0: until one is. */
bool signals_wait_ms(int timeout_ms);

#endif
