/* SPDX-License-Identifier: Apache-2.0 */
/* mooncake_client: a client of the KV store as a process of its own. It owns objects on its tiers and serves them to
 * other clients at --client_rpc_port, and does what processes of its host ask it for at --port. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include <shoal/kv.h>

#include "admin.h"
#include "base/buf.h"
#include "base/error.h"
#include "base/hostport.h"
#include "daemon_log.h"
#include "daemon_options.h"
#include "exit_code.h"
#include "kv/client.h"
#include "kv/local_service.h"
#include "matrix_option.h"
#include "signals.h"

/* An attempt to join ends after this long, each later one after twice as long: the first so that a master that does not
 * answer is told soon, later ones leave time to announce what large disks hold. */
#define JOIN_MIN_MS 2000
#define JOIN_MAX_MS 600000
#define RETRY_MS 500
/* A client that was killed keeps its address at the master until its time is over (10 s unless set otherwise). */
#define ADDRESS_ATTEMPTS 60
#define METRICS_MAX_BYTES (4u << 20)

struct settings {
    struct daemon_settings common; /* first */
    const char *master, *host, *metadata_server, *protocol, *nic_priority_matrix, *deployment_mode, *tiers, *cluster,
        *http_host;
    uint64_t port, client_rpc_port, rpc_thread_num, http_port;
};

static const struct option_spec options[] = {
    {OPTION_TEXT, 0, "master_server_address", "HOST:PORT", NULL, offsetof(struct settings, master),
     .help = "The master; several as HOST:PORT,HOST:PORT, or etcd://HOST:PORT[,HOST:PORT...] where masters choose a "
             "leader among them. Default: 127.0.0.1:50051. While it cannot be reached this process goes on trying and "
             "says so."},
    {OPTION_TEXT, 0, "tiered_backend_config", "JSON|FILE", NULL, offsetof(struct settings, tiers), .complete = "file",
     .help = "Where objects of this client are kept, as JSON or the name of a file with it: {\"tiers\": [{\"type\": "
             "\"DRAM\", \"capacity\": \"512MB\", \"priority\": 100}]}; type STORAGE has \"storage_filepath\": "
             "DIRECTORY. capacity is a number of bytes or a text as \"512MB\" or \"4GiB\". Without it this client owns "
             "nothing and only reads and writes what others own."},
    {OPTION_UINT, 0, "port", "N", NULL, offsetof(struct settings, port), .min = 0, .max = 65535,
     .help = "Where processes of this host ask it (shoal kv --client 127.0.0.1:N, shoal_kv_open with client), on "
             "127.0.0.1 only; 0: any free one. Default: 50052."},
    {OPTION_UINT, 0, "client_rpc_port", "N", NULL, offsetof(struct settings, client_rpc_port), .min = 0, .max = 65535,
     .help = "Where other clients reach it for requests and data; 0: any free one. Default: 12345."},
    {OPTION_TEXT, 0, "host", "HOST", NULL, offsetof(struct settings, host),
     .help = "The address of this machine that other clients reach it at. Default: 127.0.0.1, for clients of one "
             "machine."},
    {OPTION_UINT, 0, "rpc_thread_num", "N", NULL, offsetof(struct settings, rpc_thread_num), .min = 1, .max = 64,
     .help = "Threads for requests that touch a disk. Default: 2."},
    {OPTION_TEXT, 0, "deployment_mode", "P2P", NULL, offsetof(struct settings, deployment_mode),
     .help = "P2P: each client owns its objects. There is no other mode."},
    {OPTION_TEXT, 0, "metadata_server", "URI", NULL, offsetof(struct settings, metadata_server),
     .help = "Where transfer engines meet: sqlite:PATH or etcd://HOST:PORT[,HOST:PORT...]. Default (also as "
             "P2PHANDSHAKE): a file of the user on this machine."},
    {OPTION_TEXT, 0, "protocol", "NAME", NULL, offsetof(struct settings, protocol),
     .help = "How bytes travel between clients: auto (on one machine without a network, else TCP; RDMA with a NIC "
             "priority matrix), tcp, local, rdma or ucx. Default: auto."},
    {OPTION_TEXT, 0, "nic_priority_matrix", "JSON|@FILE", NULL, offsetof(struct settings, nic_priority_matrix),
     .help = "Which RDMA devices serve memory at which location, as {\"cpu:0\": [[\"mlx5_0\"], [\"mlx5_1\"]]}: the "
             "preferred ones, then those that take over; or @ and a file with it. shoal topo --matrix proposes one. "
             "Default: none, no RDMA."},
    {OPTION_TEXT, 0, "cluster", "NAME", NULL, offsetof(struct settings, cluster),
     .help = "Clients and masters of different clusters refuse each other. Default: default."},
    {OPTION_UINT, 0, "http_port", "N", NULL, offsetof(struct settings, http_port), .min = 0, .max = 65535,
     .help = "Where /metrics, /healthz and /readyz are answered over HTTP; 0: any free port, which is said at the "
             "start. Default: 0."},
    {OPTION_TEXT, 0, "http_host", "HOST", NULL, offsetof(struct settings, http_host),
     .help = "The address for --http_port; 0.0.0.0: all of this machine, so that others can read the metrics. Default: "
             "127.0.0.1."},
    {OPTION_END},
};

static const struct daemon_program program = {
    .name = "mooncake_client",
    .text =
        "Takes part in a KV store whose values lie with its clients: owns objects on its tiers, serves them to other "
        "clients, and reads and writes for processes of this host. A mooncake_master knows who has what.",
    .epilog = "examples:\n"
              "  mooncake_master --deployment_mode P2P --rpc_port 50051\n"
              "  mooncake_client --master_server_address 127.0.0.1:50051 --port 50052 --client_rpc_port 12345 \\\n"
              "    --tiered_backend_config '{\"tiers\":[{\"type\":\"DRAM\",\"capacity\":\"512MB\"}]}'\n"
              "  shoal kv put greeting hello.txt; shoal kv get greeting -\n"
              "A second client on the same machine needs its own ports: --port 0 --client_rpc_port 0.\n\n"
              "exit codes: 0 ended by SIGINT or SIGTERM; 2 wrong option, configuration or tiers; 7 the file of\n"
              "--metadata_server cannot be used; 9 an address is in use or not of this machine; 11 no space; 1 "
              "anything else\n",
    .options = options,
    .settings_size = sizeof(struct settings),
};

struct client {
    struct settings settings;
    struct shoal_cancel *cancel;   /* owned; triggered by the first signal */
    struct admin *admin;           /* owned */
    struct shoal_kv *kv;           /* owned */
    struct local_service *service; /* owned */
    char *matrix;                  /* owned; of --nic_priority_matrix */
};

/* --- what is asked over HTTP --- */

static char *metrics_text(void *arg)
{
    const struct client *client = arg;
    struct buf out;
    char *text = NULL;
    bool is_made;
    if (shoal_kv_metrics(client->kv, &text, NULL) != SHOAL_OK)
        return NULL;
    buf_init(&out, METRICS_MAX_BYTES);
    is_made = buf_append_str(&out, text) && local_service_metrics(client->service, &out) && buf_append(&out, "", 1);
    free(text);
    text = is_made ? (char *)buf_take(&out, NULL) : NULL;
    buf_release(&out);
    return text;
}

/* Ready: registered at the master, so that others find what is here. */
static bool look(void *arg, bool *is_ready_out)
{
    const struct client *client = arg;
    *is_ready_out = kv_is_registered(client->kv);
    return true;
}

static const struct admin_source admin_source = {metrics_text, look};

/* --- start --- */

static const char *hint_of(const struct shoal_error *error)
{
    switch (error->status) {
    case SHOAL_NAME_IN_USE:
        return "choose another port (0: any free one), or end the process that has it";
    case SHOAL_ADDRESS:
        return "--host must be an address of this machine, --http_host too";
    case SHOAL_UNSUPPORTED:
        return "another --protocol, or MC_RPC_PROTOCOL: mooncake_client --help; shoal topo shows the devices";
    case SHOAL_INVALID_ARGUMENT:
        return strncmp(error->message, "tier", 4) == 0
                   ? "mooncake_client --help; docs/kv.md has the format of the tiers"
                   : "mooncake_client --help";
    case SHOAL_METADATA:
        return "--metadata_server: another sqlite:PATH on a local disk, or etcd://HOST:PORT";
    case SHOAL_NO_MEMORY:
        return "smaller tiers (capacity), or see free memory and ulimit -v";
    case SHOAL_NO_SPACE:
        return "smaller tiers (capacity), or free some space";
    case SHOAL_PERMISSION:
    case SHOAL_IO:
        return "see who may write to the directories of the tiers (storage_filepath), and ports below 1024";
    default:
        return NULL;
    }
}

static int fail(const struct shoal_error *error, const char *what)
{
    return daemon_fail(error, hint_of(error), "%s", what);
}

static enum shoal_status open_admin(struct client *client, struct shoal_error *error)
{
    char address[HOSTPORT_TEXT_BYTES];
    hostport_format(client->settings.http_host, (uint16_t)client->settings.http_port, address);
    enum shoal_status status = admin_open(address, "the master cannot be reached\n", &client->admin, error);
    if (status != SHOAL_OK)
        return status;
    daemon_say(SHOAL_LOG_INFO, "metrics",
               json_pack("{s:s, s:b}", "address", admin_address(client->admin), "exposed",
                         (int)admin_is_exposed(client->admin)),
               "metrics at http://%s/metrics%s", admin_address(client->admin),
               admin_is_exposed(client->admin) ? ": whoever reaches this address can read them" : "");
    return SHOAL_OK;
}

static enum shoal_status join_once(struct client *client, int64_t timeout_ms, struct shoal_error *error)
{
    const struct settings *settings = &client->settings;
    const char *metadata = settings->metadata_server;
    struct shoal_kv_config config = {
        .struct_size = sizeof config,
        .master = settings->master,
        .cluster = settings->cluster,
        .host = settings->host,
        .client_rpc_port = (uint16_t)settings->client_rpc_port,
        .metadata_uri = metadata && strcmp(metadata, "P2PHANDSHAKE") == 0 ? NULL : metadata,
        .protocol = settings->protocol,
        .nic_priority_matrix = client->matrix,
        .tiers = settings->tiers,
        .rpc_threads = (unsigned)settings->rpc_thread_num,
    };
    struct shoal_call call = {.struct_size = sizeof call, .timeout_ms = timeout_ms, .cancel = client->cancel};
    return shoal_kv_open(&config, &call, &client->kv, error);
}

/* A file that cannot be used stays so; a service comes back. */
static bool has_metadata_service(const struct settings *settings)
{
    const char *uri = settings->metadata_server;

    return strncmp(settings->master, "etcd", 4) == 0 ||
           (uri && strcmp(uri, "P2PHANDSHAKE") != 0 && strncmp(uri, "sqlite:", 7) != 0);
}

/* What may be over in a while: the master is not there yet, or still believes in a client that was killed. */
static bool is_worth_retrying(const struct settings *settings, const struct shoal_error *error,
                              unsigned *address_attempts)
{
    if (error->status == SHOAL_METADATA)
        return has_metadata_service(settings);
    if (error->status == SHOAL_NAME_IN_USE && error->sys_errno != EADDRINUSE)
        return ++*address_attempts < ADDRESS_ATTEMPTS;
    return error->status == SHOAL_UNREACHABLE || error->status == SHOAL_TIMED_OUT;
}

static enum shoal_status join(struct client *client, struct shoal_error *error)
{
    int64_t timeout_ms = JOIN_MIN_MS;
    unsigned address_attempts = 0;
    for (;;) {
        enum shoal_status status = join_once(client, timeout_ms, error);
        if (status == SHOAL_OK || !is_worth_retrying(&client->settings, error, &address_attempts))
            return status;
        daemon_say(SHOAL_LOG_WARN, "retry",
                   json_pack("{s:s, s:s}", "master", client->settings.master, "status", shoal_status_name(status)),
                   "cannot join through the master %s yet: %s; trying again, for as long as it takes",
                   client->settings.master, error->message);
        if (signals_wait_ms(RETRY_MS))
            return error_set(error, SHOAL_CANCELED, 0, "interrupted");
        timeout_ms = timeout_ms * 2 < JOIN_MAX_MS ? timeout_ms * 2 : JOIN_MAX_MS;
    }
}

/* Ends with the reason of the failure, if there is one, in exit_code_out. */
static bool start(struct client *client, int *exit_code_out)
{
    struct shoal_error error;
    if (open_admin(client, &error) != SHOAL_OK) {
        *exit_code_out = fail(&error, "cannot answer HTTP (--http_host, --http_port)");
        return false;
    }
    if (join(client, &error) != SHOAL_OK) {
        *exit_code_out = signals_received() ? EXIT_CODE_OK : fail(&error, "cannot join the KV store");
        return false;
    }
    struct local_service_config local_config = {
        .kv = client->kv, .port = (uint16_t)client->settings.port, .cluster = client->settings.cluster};
    if (local_service_create(&local_config, &client->service, &error) != SHOAL_OK) {
        *exit_code_out = fail(&error, "cannot serve processes of this host (--port)");
        return false;
    }
    admin_set_source(client->admin, &admin_source, client);
    daemon_say(SHOAL_LOG_INFO, "ready",
               json_pack("{s:s, s:s, s:i, s:s}", "address", shoal_kv_address(client->kv), "master",
                         client->settings.master, "port", (int)local_service_port(client->service), "http",
                         admin_address(client->admin)),
               "ready: other clients reach it at %s, processes of this host at 127.0.0.1:%u",
               shoal_kv_address(client->kv), (unsigned)local_service_port(client->service));
    return true;
}

static void stop(struct client *client)
{
    if (client->admin)
        admin_set_source(client->admin, NULL, NULL);
    local_service_destroy(client->service);
    shoal_kv_close(client->kv);
    admin_close(client->admin);
}

static int run(struct client *client)
{
    int code = EXIT_CODE_OK;
    if (start(client, &code)) {
        signals_wait_ms(-1);
        daemon_say(SHOAL_LOG_INFO, "stopping", NULL, "ending after a signal; a second one ends at once");
    }
    stop(client);
    return code;
}

static bool is_protocol(const char *name)
{
    static const char *const names[] = {"auto", "tcp", "local", "rdma", "ucx"};

    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        if (strcmp(names[i], name) == 0)
            return true;
    return false;
}

/* What needs no other process to be found wrong. */
static bool check(const struct settings *settings, int *exit_code_out)
{
    if (strcasecmp(settings->deployment_mode, "P2P") != 0)
        *exit_code_out = daemon_usage_error(
            &program, "option --deployment_mode is \"%s\": there is only P2P, where each client owns its objects",
            settings->deployment_mode);
    else if (!is_protocol(settings->protocol))
        *exit_code_out = daemon_usage_error(
            &program, "option --protocol is \"%s\": there is auto, tcp, local, rdma and ucx", settings->protocol);
    else if (settings->port && settings->port == settings->client_rpc_port)
        *exit_code_out = daemon_usage_error(&program, "--port and --client_rpc_port are both %u: they must differ",
                                            (unsigned)settings->port);
    else
        return true;
    return false;
}

int main(int argc, char **argv)
{
    struct client client = {.settings = {.master = "127.0.0.1:50051",
                                         .host = "127.0.0.1",
                                         .protocol = "auto",
                                         .deployment_mode = "P2P",
                                         .cluster = "default",
                                         .http_host = "127.0.0.1",
                                         .port = 50052,
                                         .client_rpc_port = 12345,
                                         .rpc_thread_num = 2}};
    struct daemon_options parsed;
    struct shoal_error error;
    int code;
    if (!daemon_options_parse(&program, argc, argv, &client.settings, &parsed, &code))
        return code;
    if (matrix_option_read(client.settings.nic_priority_matrix, &client.matrix, &error) != SHOAL_OK) {
        code = daemon_usage_error(&program, "%s", error.message);
    } else if (check(&client.settings, &code)) {
        daemon_log_start(program.name, &client.settings.common);
        if (shoal_cancel_create(&client.cancel) != SHOAL_OK || signals_start(client.cancel, &error) != SHOAL_OK) {
            fprintf(stderr, "%s: cannot start: out of memory or threads\n", program.name);
            code = EXIT_CODE_FAILURE;
        } else {
            code = run(&client);
            signals_stop();
        }
        daemon_log_stop();
        shoal_cancel_destroy(client.cancel);
    }
    free(client.matrix);
    daemon_options_release(&parsed);
    return code;
}
