/* SPDX-License-Identifier: Apache-2.0 */
#include "etcd_server.h"

#include <curl/curl.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "tmpdir.h"

#define MEMBERS_MAX 3
#define START_TIMEOUT_MS 60000
#define START_ATTEMPTS 5 /* a free port may be taken before etcd binds it */

struct member {
    unsigned client_port, peer_port;
    char endpoint[32];
    char *data; /* owned */
    char *log;  /* owned */
    pid_t pid;  /* 0: not running */
    bool is_paused;
};

struct etcd_cluster {
    size_t size;
    struct member members[MEMBERS_MAX];
    char *directory;    /* owned */
    char *certificates; /* owned; NULL: no TLS */
    const char *host;   /* borrowed: address that clients use */
    char uri[128];
};

static const char *program(void)
{
    const char *path = getenv("SHOAL_TEST_ETCD");
    return path && *path ? path : "/usr/bin/etcd";
}

bool etcd_is_available(void)
{
    if (access(program(), X_OK) == 0)
        return true;
    fprintf(stderr, "SKIPPED: no etcd at %s (Debian package etcd-server)\n", program());
    return false;
}

static void print_log(const struct member *member)
{
    char line[1024];
    FILE *file = fopen(member->log, "r");
    if (!file)
        return;
    fprintf(stderr, "--- end of %s\n", member->log);
    if (fseek(file, -4000, SEEK_END) != 0)
        rewind(file);
    while (fgets(line, sizeof line, file))
        fputs(line, stderr);
    fclose(file);
}

static void give_up(const struct etcd_cluster *cluster, const char *what)
{
    fprintf(stderr, "etcd for the test: %s\n", what);
    for (size_t i = 0; i < cluster->size; i++)
        print_log(&cluster->members[i]);
    abort();
}

/* --- HTTP ----------------------------------------------------------------------------------------------------------
 */

struct answer {
    char *data;
    size_t len;
};

static size_t collect(char *data, size_t size, size_t count, void *arg)
{
    struct answer *answer = arg;
    char *more = realloc(answer->data, answer->len + size * count + 1);
    if (!more)
        return 0;
    memcpy(more + answer->len, data, size * count);
    answer->data = more;
    answer->len += size * count;
    more[answer->len] = '\0';
    return size * count;
}

static char *request(const struct etcd_cluster *cluster, size_t member, const char *path, const char *json)
{
    struct answer answer = {.data = calloc(1, 1)};
    long status = 0;
    char url[256], ca[512], cert[512], key[512];
    CURL *curl = curl_easy_init();
    if (!curl || !answer.data)
        abort();
    snprintf(url, sizeof url, "%s://%s%s", cluster->certificates ? "https" : "http", cluster->members[member].endpoint,
             path);
    curl_easy_setopt(curl, CURLOPT_URL, url);
    curl_easy_setopt(curl, CURLOPT_NOSIGNAL, 1L);
    curl_easy_setopt(curl, CURLOPT_PROXY, "");
    curl_easy_setopt(curl, CURLOPT_TIMEOUT_MS, json ? 10000L : 1000L);
    curl_easy_setopt(curl, CURLOPT_WRITEFUNCTION, collect);
    curl_easy_setopt(curl, CURLOPT_WRITEDATA, &answer);
    if (json)
        curl_easy_setopt(curl, CURLOPT_POSTFIELDS, json);
    if (cluster->certificates) {
        snprintf(ca, sizeof ca, "%s/ca.pem", cluster->certificates);
        snprintf(cert, sizeof cert, "%s/client.pem", cluster->certificates);
        snprintf(key, sizeof key, "%s/client.key", cluster->certificates);
        curl_easy_setopt(curl, CURLOPT_CAINFO, ca);
        curl_easy_setopt(curl, CURLOPT_SSLCERT, cert);
        curl_easy_setopt(curl, CURLOPT_SSLKEY, key);
    }
    CURLcode code = curl_easy_perform(curl);
    curl_easy_getinfo(curl, CURLINFO_RESPONSE_CODE, &status);
    curl_easy_cleanup(curl);
    if (code == CURLE_OK && status == 200)
        return answer.data;
    free(answer.data);
    return NULL;
}

char *etcd_post(struct etcd_cluster *cluster, size_t member, const char *path, const char *json)
{
    return request(cluster, member, path, json);
}

/* --- processes -----------------------------------------------------------------------------------------------------
 */

static unsigned free_port(void)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof address;
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0 || bind(fd, (struct sockaddr *)&address, len) != 0 ||
        getsockname(fd, (struct sockaddr *)&address, &len) != 0)
        abort();
    close(fd);
    return ntohs(address.sin_port);
}

static void initial_cluster(const struct etcd_cluster *cluster, char *out, size_t size)
{
    size_t at = 0;
    for (size_t i = 0; i < cluster->size; i++)
        at += (size_t)snprintf(out + at, size - at, "%sm%zu=http://127.0.0.1:%u", i ? "," : "", i,
                               cluster->members[i].peer_port);
}

void etcd_member_start(struct etcd_cluster *cluster, size_t index)
{
    struct member *member = &cluster->members[index];
    char name[8], client[64], peer[64], all[256], ca[512], cert[512], key[512];
    if (member->pid)
        return;
    snprintf(name, sizeof name, "m%zu", index);
    snprintf(client, sizeof client, "%s://%s:%u", cluster->certificates ? "https" : "http", cluster->host,
             member->client_port);
    snprintf(peer, sizeof peer, "http://127.0.0.1:%u", member->peer_port);
    initial_cluster(cluster, all, sizeof all);
    const char *args[40] = {program(),    "--name",
                            name,         "--data-dir",
                            member->data, "--listen-client-urls",
                            client,       "--advertise-client-urls",
                            client,       "--listen-peer-urls",
                            peer,         "--initial-advertise-peer-urls",
                            peer,         "--initial-cluster",
                            all,          "--initial-cluster-state",
                            "new",        "--logger",
                            "zap",        "--log-level",
                            "warn",       "--snapshot-count",
                            "5000"};
    if (cluster->certificates) {
        snprintf(ca, sizeof ca, "%s/ca.pem", cluster->certificates);
        snprintf(cert, sizeof cert, "%s/server.pem", cluster->certificates);
        snprintf(key, sizeof key, "%s/server.key", cluster->certificates);
        size_t at = 0;
        while (args[at])
            at++;
        const char *tls[] = {"--client-cert-auth", "--trusted-ca-file", ca, "--cert-file", cert, "--key-file", key};
        memcpy(args + at, tls, sizeof tls);
    }
    pid_t parent = getpid();
    int log = open(member->log, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    pid_t pid = fork();
    if (pid < 0 || log < 0)
        abort();
    if (pid == 0) {
        char *const environment[] = {NULL};
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (getppid() != parent)
            _exit(1);
        sigset_t none;
        sigemptyset(&none);
        sigprocmask(SIG_SETMASK, &none, NULL);
        dup2(log, STDOUT_FILENO);
        dup2(log, STDERR_FILENO);
        execve(program(), (char *const *)args, environment);
        _exit(127);
    }
    close(log);
    member->pid = pid;
    member->is_paused = false;
}

static bool is_running(struct member *member)
{
    if (member->pid && waitpid(member->pid, NULL, WNOHANG) == member->pid)
        member->pid = 0;
    return member->pid != 0;
}

void etcd_member_kill(struct etcd_cluster *cluster, size_t index)
{
    struct member *member = &cluster->members[index];
    if (!member->pid)
        return;
    kill(member->pid, SIGKILL);
    while (waitpid(member->pid, NULL, 0) < 0 && errno == EINTR)
        ;
    member->pid = 0;
}

void etcd_member_pause(struct etcd_cluster *cluster, size_t index)
{
    struct member *member = &cluster->members[index];
    int status;
    if (!member->pid || kill(member->pid, SIGSTOP) != 0)
        give_up(cluster, "member to pause is not running");
    while (waitpid(member->pid, &status, WUNTRACED) < 0 && errno == EINTR)
        ;
    member->is_paused = true;
}

void etcd_member_resume(struct etcd_cluster *cluster, size_t index)
{
    struct member *member = &cluster->members[index];
    if (member->pid)
        kill(member->pid, SIGCONT);
    member->is_paused = false;
}

void etcd_member_wipe(struct etcd_cluster *cluster, size_t index)
{
    struct member *member = &cluster->members[index];
    tmpdir_remove(strdup(member->data));
}

bool etcd_cluster_wait_healthy(struct etcd_cluster *cluster, int timeout_ms)
{
    int64_t deadline_ms = deadline_after_ms(timeout_ms);
    for (size_t i = 0; i < cluster->size;) {
        struct member *member = &cluster->members[i];
        if (!is_running(member) || member->is_paused) {
            i++;
            continue;
        }
        char *answer = request(cluster, i, "/health", NULL);
        bool is_healthy = answer && strstr(answer, "\"true\"");
        free(answer);
        if (is_healthy) {
            i++;
            continue;
        }
        if (deadline_is_past(deadline_ms))
            return false;
        nanosleep(&(struct timespec){.tv_nsec = 20000000}, NULL);
    }
    return true;
}

/* --- clusters ------------------------------------------------------------------------------------------------------
 */

static bool start_all(struct etcd_cluster *cluster)
{
    size_t at = (size_t)snprintf(cluster->uri, sizeof cluster->uri, "%s://", cluster->certificates ? "etcds" : "etcd");
    for (size_t i = 0; i < cluster->size; i++) {
        struct member *member = &cluster->members[i];
        member->client_port = free_port();
        member->peer_port = free_port();
        snprintf(member->endpoint, sizeof member->endpoint, "%s:%u", cluster->host, member->client_port);
        at += (size_t)snprintf(cluster->uri + at, sizeof cluster->uri - at, "%s%s", i ? "," : "", member->endpoint);
    }
    for (size_t i = 0; i < cluster->size; i++)
        etcd_member_start(cluster, i);
    bool is_healthy = etcd_cluster_wait_healthy(cluster, START_TIMEOUT_MS);
    for (size_t i = 0; i < cluster->size; i++)
        is_healthy = is_running(&cluster->members[i]) && is_healthy;
    return is_healthy;
}

static struct etcd_cluster *start(const char *host, size_t members, const char *directory)
{
    struct etcd_cluster *cluster = calloc(1, sizeof *cluster);
    if (!cluster || members < 1 || members > MEMBERS_MAX)
        abort();
    cluster->size = members;
    cluster->host = host;
    cluster->directory = tmpdir_make();
    cluster->certificates = directory ? strdup(directory) : NULL;
    for (size_t i = 0; i < members; i++) {
        char name[32];
        snprintf(name, sizeof name, "m%zu", i);
        cluster->members[i].data = tmpdir_path(cluster->directory, name);
        snprintf(name, sizeof name, "m%zu.log", i);
        cluster->members[i].log = tmpdir_path(cluster->directory, name);
    }
    for (int attempt = 0; !start_all(cluster); attempt++) {
        if (attempt == START_ATTEMPTS)
            give_up(cluster, "members do not become healthy");
        for (size_t i = 0; i < members; i++) {
            etcd_member_kill(cluster, i);
            etcd_member_wipe(cluster, i);
        }
    }
    return cluster;
}

struct etcd_cluster *etcd_cluster_start_tls(size_t members, const char *directory)
{
    return start("127.0.0.1", members, directory);
}

struct etcd_cluster *etcd_cluster_start(size_t members)
{
    return start("127.0.0.1", members, NULL);
}

struct etcd_cluster *etcd_cluster_start_at(const char *host, size_t members)
{
    return start(host, members, NULL);
}

void etcd_cluster_stop(struct etcd_cluster *cluster)
{
    if (!cluster)
        return;
    for (size_t i = 0; i < cluster->size; i++) {
        etcd_member_kill(cluster, i);
        free(cluster->members[i].data);
        free(cluster->members[i].log);
    }
    tmpdir_remove(cluster->directory);
    free(cluster->certificates);
    free(cluster);
}

const char *etcd_cluster_uri(const struct etcd_cluster *cluster)
{
    return cluster->uri;
}

const char *etcd_cluster_certificates(const struct etcd_cluster *cluster)
{
    return cluster->certificates;
}

size_t etcd_cluster_size(const struct etcd_cluster *cluster)
{
    return cluster->size;
}

const char *etcd_member_endpoint(const struct etcd_cluster *cluster, size_t member)
{
    return cluster->members[member].endpoint;
}

pid_t etcd_member_pid(const struct etcd_cluster *cluster, size_t member)
{
    return cluster->members[member].pid;
}

bool etcd_make_certificates(const char *directory)
{
    static const char script[] =
        "cd \"$0\" || exit 1\n"
        "exec >/dev/null 2>openssl.log\n"
        "new='openssl req -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2'\n"
        "$new -x509 -subj /CN=test-ca -keyout ca.key -out ca.pem || exit 1\n"
        "for who in server client; do\n"
        "  printf 'subjectAltName=IP:127.0.0.1,DNS:localhost\\n' > $who.ext\n"
        "  printf 'extendedKeyUsage=serverAuth,clientAuth\\n' >> $who.ext\n"
        "  $new -subj /CN=$who -keyout $who.key -out $who.csr || exit 1\n"
        "  openssl x509 -req -in $who.csr -CA ca.pem -CAkey ca.key -CAcreateserial -days 2 -extfile $who.ext"
        " -out $who.pem || exit 1\n"
        "done\n";
    pid_t pid = fork();
    int status = 0;
    if (pid < 0)
        abort();
    if (pid == 0) {
        execl("/bin/sh", "sh", "-c", script, directory, (char *)NULL);
        _exit(127);
    }
    while (waitpid(pid, &status, 0) < 0 && errno == EINTR)
        ;
    if (WIFEXITED(status) && WEXITSTATUS(status) == 0)
        return true;
    fprintf(stderr, "SKIPPED: cannot make certificates (openssl command)\n");
    return false;
}
