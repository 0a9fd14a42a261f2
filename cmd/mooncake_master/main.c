/* SPDX-License-Identifier: Apache-2.0 */
/* mooncake_master: the process that knows which client of a KV store holds which key. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "admin.h"
#include "base/error.h"
#include "base/hostport.h"
#include "daemon_log.h"
#include "daemon_options.h"
#include "exit_code.h"
#include "master/election.h"
#include "master/master.h"
#include "master/service.h"
#include "signals.h"
#include "units.h"

#define METRICS_PORT_DEFAULT "9003"
#define HA_SETTLE_MS 2000 /* clients look for the leader about twice a second */
#define CLIENT_TTL_MIN_MS 100
#define CLIENT_TTL_MAX_MS 3600000

struct settings {
    struct daemon_settings daemon; /* first */
    const char *deployment_mode, *rpc_address, *cluster, *metrics_port, *etcd_endpoints;
    bool enable_ha;
    uint64_t rpc_port, rpc_thread_num;
    int64_t client_ttl_ms;
};

static const struct option_spec options[] = {
    {OPTION_TEXT, 0, "deployment_mode", "P2P", NULL, offsetof(struct settings, deployment_mode),
     .help = "P2P: clients own the data. The only mode there is. Default: P2P."},
    {OPTION_UINT, 0, "rpc_port", "PORT", NULL, offsetof(struct settings, rpc_port), .min = 0, .max = 65535,
     .help = "Where clients reach this master; 0 is any free port, which the first line on standard error tells. "
             "Default: 50051."},
    {OPTION_TEXT, 0, "rpc_address", "HOST", NULL, offsetof(struct settings, rpc_address),
     .help = "The address to listen at. Default: 0.0.0.0, every IPv4 address of this machine: clients here reach it as "
             "127.0.0.1, others by the machine's address. 127.0.0.1 keeps others out."},
    {OPTION_UINT, 0, "rpc_thread_num", "N", NULL, offsetof(struct settings, rpc_thread_num), .min = 1, .max = 1024,
     .help = "Accepted for Mooncake's command lines; one thread answers everything, and long requests in slices."},
    {OPTION_TEXT, 0, "metrics_port", "PORT|none", NULL, offsetof(struct settings, metrics_port),
     .help = "Answer HTTP at rpc_address and this port: /metrics for Prometheus, /healthz, and /readyz, which is 200 "
             "while this master answers clients; 0 is any free port. Default: " METRICS_PORT_DEFAULT
             ", and if that is taken there are no metrics, with a warning."},
    {OPTION_DURATION, 0, "client_ttl", "DURATION", NULL, offsetof(struct settings, client_ttl_ms),
     .max = CLIENT_TTL_MAX_MS,
     .help =
         "A client that is silent for so long is dead and its routes go, as 10 (seconds), 10s or 500ms; 100ms to 1h. "
         "Clients say that they live five times as often. Default: 10s."},
    {OPTION_FLAG, 0, "enable_ha", NULL, NULL, offsetof(struct settings, enable_ha),
     .help = "One of several masters that stand in for each other: the one that etcd knows as the leader answers, the "
             "others tell clients who it is. Needs etcd_endpoints and, in rpc_address, the address at which clients "
             "reach this one."},
    {OPTION_TEXT, 0, "etcd_endpoints", "HOST:PORT,...", NULL, offsetof(struct settings, etcd_endpoints),
     .help = "Where the leader is chosen: etcd's members, or a metadata URI (etcd://..., or sqlite:PATH for masters of "
             "one machine)."},
    {OPTION_TEXT, 0, "cluster", "NAME", NULL, offsetof(struct settings, cluster),
     .help = "Nodes of different clusters refuse each other. Default: default."},
    {OPTION_END},
};

static const struct daemon_program program = {
    .name = "mooncake_master",
    .text = "Knows which client holds which key of a KV store in P2P client mode, and nothing else: data never passes "
            "through it. Clients (mooncake_client, or programs that use shoal/kv.h) register here, say five times per "
            "client_ttl that they live, announce what they hold, and ask where to read and write.\n\n"
            "It keeps everything in memory and may be restarted at any time: clients come back within a second and "
            "announce what they hold; until then questions about unknown keys wait, so that a restart loses nothing "
            "and overwrites nothing.",
    .epilog =
        "On one machine:\n"
        "  mooncake_master --deployment_mode P2P --rpc_port 50051\n"
        "  mooncake_client --master_server_address 127.0.0.1:50051 --port 50052 --client_rpc_port 12345 \\\n"
        "    --deployment_mode P2P \\\n"
        "    --tiered_backend_config '{\"tiers\":[{\"type\":\"DRAM\",\"capacity\":536870912,\"priority\":100,"
        "\"allocator_type\":\"OFFSET\"}]}'\n"
        "  shoal kv put KEY FILE\n\n"
        "exit codes: 0 ended by SIGTERM, SIGINT or SIGHUP; 1 failure; 2 wrong usage; 9 the address or port is in\n"
        "use or not of this machine\n",
    .options = options,
    .settings_size = sizeof(struct settings),
};

/* What the table cannot check. 0: fine. */
static int check(const struct settings *settings)
{
    uint64_t port;
    if (strcasecmp(settings->deployment_mode, "P2P") != 0)
        return daemon_usage_error(&program,
                                  "option --deployment_mode is \"%s\": only P2P is there, where clients own "
                                  "the data",
                                  settings->deployment_mode);
    if (settings->client_ttl_ms < CLIENT_TTL_MIN_MS || settings->client_ttl_ms > CLIENT_TTL_MAX_MS)
        return daemon_usage_error(&program, "option --client_ttl must be from 100ms to 1h");
    if (settings->metrics_port && strcmp(settings->metrics_port, "none") != 0 &&
        !units_parse_uint(settings->metrics_port, 0, 65535, &port))
        return daemon_usage_error(&program, "option --metrics_port is \"%s\": it must be a port, or none",
                                  settings->metrics_port);
    if (settings->enable_ha && !settings->etcd_endpoints)
        return daemon_usage_error(&program, "option --enable_ha needs --etcd_endpoints");
    if (settings->enable_ha &&
        (strcmp(settings->rpc_address, "0.0.0.0") == 0 || strcmp(settings->rpc_address, "::") == 0))
        return daemon_usage_error(&program,
                                  "option --enable_ha needs --rpc_address HOST: the address that clients are told "
                                  "to reach this master at");
    return 0;
}

/* --- several masters --- */

/* "h:p;h:p" as Mooncake writes it, "h:p,h:p", "http://h:p", or a URI. NULL: out of memory. */
static char *metadata_uri(const char *endpoints)
{
    char *uri;
    if (strncmp(endpoints, "sqlite:", 7) == 0 || strncmp(endpoints, "etcd", 4) == 0)
        return strdup(endpoints);
    if (strncmp(endpoints, "http://", 7) == 0)
        endpoints += 7;
    if (asprintf(&uri, "etcd://%s", endpoints) < 0)
        return NULL;
    for (char *at = uri; (at = strchr(at, ';'));)
        *at = ',';
    return uri;
}

static int join_election(const struct settings *settings, struct master *master, struct election **election_out)
{
    struct shoal_error error;
    char *uri;
    int code = 0;
    if (!settings->enable_ha || !settings->etcd_endpoints) /* both or none: see check */
        return 0;
    uri = metadata_uri(settings->etcd_endpoints);
    struct election_config config = {.uri = uri,
                                     .cluster = settings->cluster,
                                     .address = master_address(master),
                                     .service = master_service_of(master)};
    if (!uri)
        code = daemon_fail(&(struct shoal_error){.status = SHOAL_NO_MEMORY}, NULL, "cannot start");
    else if (election_create(&config, election_out, &error) != SHOAL_OK)
        code = daemon_fail(&error, "give --etcd_endpoints HOST:PORT[,HOST:PORT...]", "cannot use %s",
                           settings->etcd_endpoints);
    free(uri);
    return code;
}

/* --- metrics --- */

static char *metrics_of(void *arg)
{
    return master_metrics(arg);
}

static bool look(void *arg, bool *is_ready_out)
{
    *is_ready_out = master_service_is_ready(master_service_of(arg));
    return true;
}

/* 0: fine; without the default port only a warning. */
static int open_admin(const struct settings *settings, struct master *master, struct admin **admin_out)
{
    static const struct admin_source source = {.metrics = metrics_of, .look = look};
    struct shoal_error error;
    char address[HOSTPORT_TEXT_BYTES];
    uint64_t port = 0;
    if (settings->metrics_port && strcmp(settings->metrics_port, "none") == 0)
        return 0;
    units_parse_uint(settings->metrics_port ? settings->metrics_port : METRICS_PORT_DEFAULT, 0, 65535, &port);
    hostport_format(settings->rpc_address, (uint16_t)port, address);
    enum shoal_status status = admin_open(address, "another master leads\n", admin_out, &error);
    if (status == SHOAL_NAME_IN_USE && !settings->metrics_port) {
        daemon_say(SHOAL_LOG_WARN, "no-metrics", NULL,
                   "port " METRICS_PORT_DEFAULT " is taken: there are no metrics; choose another --metrics_port");
        return 0;
    }
    if (status != SHOAL_OK)
        return daemon_fail(&error, "choose another --metrics_port, 0 for any free one, or none",
                           "cannot serve metrics at port %" PRIu64, port);
    admin_set_source(*admin_out, &source, master);
    return 0;
}

static int run(const struct settings *settings)
{
    struct master_config config = {.host = settings->rpc_address,
                                   .port = (uint16_t)settings->rpc_port,
                                   .cluster = settings->cluster,
                                   .client_ttl_ms = settings->client_ttl_ms,
                                   /* clients have to find out who leads now */
                                   .settle_ms = settings->enable_ha ? HA_SETTLE_MS : 0,
                                   .is_standby = settings->enable_ha};
    struct shoal_error error;
    struct master *master = NULL;
    struct admin *admin = NULL;
    struct election *election = NULL;
    int code;
    if (signals_start(NULL, &error) != SHOAL_OK)
        return daemon_fail(&error, NULL, "cannot start");
    if (master_create(&config, &master, &error) != SHOAL_OK) {
        code = daemon_fail(&error,
                           error.status == SHOAL_NAME_IN_USE
                               ? "choose another --rpc_port (0: any free one), or end the process that has it"
                               : NULL,
                           "cannot listen at %s, port %" PRIu64, settings->rpc_address, settings->rpc_port);
        goto out;
    }
    code = open_admin(settings, master, &admin);
    if (code)
        goto out;
    if (settings->etcd_endpoints && !settings->enable_ha)
        daemon_say(SHOAL_LOG_WARN, "no-ha", NULL,
                   "--etcd_endpoints is not used: this master is alone without --enable_ha");
    daemon_say(
        SHOAL_LOG_INFO, "listening",
        json_pack("{s:s, s:s*}", "address", master_address(master), "metrics", admin ? admin_address(admin) : NULL),
        "listening at %s%s%s", master_address(master), admin ? ", metrics at " : "", admin ? admin_address(admin) : "");
    if (master_is_exposed(master))
        daemon_say(SHOAL_LOG_WARN, "exposed", NULL,
                   "whoever reaches %s can take part: nothing proves who they are. --rpc_address 127.0.0.1 listens to "
                   "this machine only",
                   master_address(master));
    code = join_election(settings, master, &election);
    if (code)
        goto out;
    signals_wait_ms(-1);
    daemon_say(SHOAL_LOG_INFO, "ending", NULL, "ended by a signal");
out:
    election_destroy(election);
    admin_close(admin); /* it asks the master */
    master_destroy(master);
    signals_stop();
    return code;
}

int main(int argc, char **argv)
{
    struct settings settings = {.deployment_mode = "P2P",
                                .rpc_address = "0.0.0.0",
                                .cluster = "default",
                                .rpc_port = 50051,
                                .rpc_thread_num = 4,
                                .client_ttl_ms = 10000};
    struct daemon_options owned;
    int code;
    if (!daemon_options_parse(&program, argc, argv, &settings, &owned, &code))
        return code;
    code = check(&settings);
    if (code == 0) {
        daemon_log_start(program.name, &settings.daemon);
        code = run(&settings);
        daemon_log_stop();
    }
    daemon_options_release(&owned);
    return code;
}
