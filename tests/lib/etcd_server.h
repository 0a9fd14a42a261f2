/* SPDX-License-Identifier: Apache-2.0 */
/* Real etcd members on free loopback ports with throw-away data. They die with the test process.
 *
 *     if (!etcd_is_available())
 *         skip();                                     // the reason has been printed
 *     struct etcd_cluster *etcd = etcd_cluster_start(3);
 *     ... meta_open(etcd_cluster_uri(etcd), ...);
 *     etcd_member_pause(etcd, 0);                     // SIGSTOP: accepts connections, never answers
 *     etcd_cluster_stop(etcd);
 *
 * Member indexes are 0 ... count - 1. A failure that is no fault of the code under test (no port, no start) prints
 * etcd's log and aborts the test program. Use it from the thread that called etcd_cluster_start. */
#ifndef SHOAL_TESTS_ETCD_SERVER_H
#define SHOAL_TESTS_ETCD_SERVER_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

struct etcd_cluster;

/* False, with a line on stderr that says why, when this machine has no etcd. $SHOAL_TEST_ETCD overrides /usr/bin/etcd.
 */
bool etcd_is_available(void);

/* Starts 1 or 3 members and waits until all are healthy. */
struct etcd_cluster *etcd_cluster_start(size_t members);
/* The same for clients on other hosts: host is an IPv4 address of this one, borrowed. */
struct etcd_cluster *etcd_cluster_start_at(const char *host, size_t members);

/* The same with TLS towards clients, which must have a certificate: directory has ca.pem, server.pem, server.key,
 * client.pem, client.key (etcd_make_certificates). */
struct etcd_cluster *etcd_cluster_start_tls(size_t members, const char *directory);
/* Makes those files with the openssl command. False: the command is missing (said on stderr). */
bool etcd_make_certificates(const char *directory);

/* Kills all members and removes their data. NULL is allowed. */
void etcd_cluster_stop(struct etcd_cluster *cluster);

/* "etcd://127.0.0.1:P1,127.0.0.1:P2,..." or "etcds://..."; lives as long as the cluster. */
const char *etcd_cluster_uri(const struct etcd_cluster *cluster);
/* The directory given to etcd_cluster_start_tls, or NULL. */
const char *etcd_cluster_certificates(const struct etcd_cluster *cluster);
size_t etcd_cluster_size(const struct etcd_cluster *cluster);
/* "127.0.0.1:P" of one member. */
const char *etcd_member_endpoint(const struct etcd_cluster *cluster, size_t member);
pid_t etcd_member_pid(const struct etcd_cluster *cluster, size_t member); /* 0: not running */

void etcd_member_pause(struct etcd_cluster *cluster, size_t member);  /* SIGSTOP */
void etcd_member_resume(struct etcd_cluster *cluster, size_t member); /* SIGCONT */
void etcd_member_kill(struct etcd_cluster *cluster, size_t member);   /* SIGKILL, reaped */
/* Starts a killed member again on the same ports with its data. Does not wait. */
void etcd_member_start(struct etcd_cluster *cluster, size_t member);
/* Removes the data of a killed member. With every member wiped the cluster starts empty. */
void etcd_member_wipe(struct etcd_cluster *cluster, size_t member);

/* Waits until every running, unpaused member says it is healthy (has a leader). False: not within timeout_ms. */
bool etcd_cluster_wait_healthy(struct etcd_cluster *cluster, int timeout_ms);

/* Runs etcdctl-like maintenance through the gateway of a member: POST path with a JSON body. The answer (malloc'ed, may
 * be empty) or NULL when the request failed or the status was not 200. */
char *etcd_post(struct etcd_cluster *cluster, size_t member, const char *path, const char *json);

#endif
