/* SPDX-License-Identifier: Apache-2.0 */
/* Where the processes of one user on one machine meet when nobody says where: an SQLite file in a directory of theirs
 * alone. */
#ifndef SHOAL_META_DEFAULT_URI_H
#define SHOAL_META_DEFAULT_URI_H

#include <shoal/status.h>

/* "sqlite:PATH"; makes the directory. *uri_out is to be given to free(). INVALID_ARGUMENT: XDG_RUNTIME_DIR is too long;
 * PERMISSION: the directory is somebody else's or others may write to it; IO; NO_MEMORY. */
enum shoal_status meta_default_uri(char **uri_out, struct shoal_error *error);

#endif
