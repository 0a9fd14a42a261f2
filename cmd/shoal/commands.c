/* SPDX-License-Identifier: Apache-2.0 */
#include "app.h"

const struct command *const commands[] = {&command_seed,
                                          &command_get,
                                          &command_ls,
                                          &command_stat,
                                          &command_doctor,
                                          &command_topo,
                                          &command_kv_put,
                                          &command_kv_get,
                                          &command_kv_ls,
                                          &command_kv_rm,
                                          &command_kv_stat,
                                          &command_kv_bench,
                                          &command_version,
                                          &command_help,
                                          &command_completion,
                                          &command_man,
                                          NULL};
