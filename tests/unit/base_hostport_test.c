/* SPDX-License-Identifier: Apache-2.0 */
/* Case F5: every way in which people write the address of a server. */
#include "unit.h"

#include <arpa/inet.h>
#include <errno.h>

#include "base/hostport.h"

static void accepted(void **state)
{
    static const struct {
        const char *text, *host;
        bool has_port, is_v6;
        uint16_t port;
    } cases[] = {
        {"localhost", "localhost", false, false, 0},
        {"localhost:80", "localhost", true, false, 80},
        {"127.0.0.1", "127.0.0.1", false, false, 0},
        {"127.0.0.1:0", "127.0.0.1", true, false, 0},
        {"10.0.0.1:65535", "10.0.0.1", true, false, 65535},
        {"gpu-node-17.cluster_a.example:12345", "gpu-node-17.cluster_a.example", true, false, 12345},
        {"h:00080", "h", true, false, 80},
        {"[::1]", "::1", false, true, 0},
        {"[::1]:4711", "::1", true, true, 4711},
        {"::1", "::1", false, true, 0},
        {"::", "::", false, true, 0},
        {"[fe80::1%eth0]:7", "fe80::1%eth0", true, true, 7},
        {"fe80::1%eth0", "fe80::1%eth0", false, true, 0},
        {"[2001:db8::5]:1", "2001:db8::5", true, true, 1},
        {"2001:db8:0:0:0:0:0:5", "2001:db8:0:0:0:0:0:5", false, true, 0},
        {"::ffff:10.0.0.1", "::ffff:10.0.0.1", false, true, 0},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct hostport parsed;
        struct shoal_error error = {0};
        if (hostport_parse(&parsed, cases[i].text, &error) != SHOAL_OK)
            fail_msg("'%s': %s", cases[i].text, error.message);
        assert_string_equal(parsed.host, cases[i].host);
        assert_int_equal(parsed.has_port, cases[i].has_port);
        assert_int_equal(parsed.is_v6, cases[i].is_v6);
        assert_int_equal(parsed.port, cases[i].port);
    }
}

static void refused(void **state)
{
    char long_host[HOST_MAX_BYTES + 2], long_v6[600];
    const char *cases[] = {
        NULL,
        "",
        ":",
        ":80",
        "h:",
        "h:x",
        "h:-1",
        "h:+1",
        "h: 80",
        "h:80 ",
        "h:65536",
        "h:99999",
        "h:100000",
        "h:18446744073709551616",
        "h:80x",
        " h:80",
        "a b",
        "a/b:1",
        "http://h:1",
        "h\n:1",
        "h\t",
        "caf\xc3\xa9:1",
        "[",
        "]",
        "[]",
        "[]:80",
        "[::1",
        "::1]:80",
        "[::1]80",
        "[::1]:",
        "[::1]:70000",
        "[[::1]]:80",
        "[localhost]:80",
        "[127.0.0.1]:80",
        "1:2:3",
        "host:1:2",
        ":::",
        "[::1]]:80",
        "12345::1",
        "[::1%]:1",
        "::1%a b",
        "::1%a\n",
        "[::%[::0/]:1",
        "[fe80::1%sixteen-bytes-xx]:1",
        long_host,
        long_v6,
    };
    (void)state;
    memset(long_host, 'a', sizeof long_host - 1);
    long_host[sizeof long_host - 1] = '\0';
    memset(long_v6, ':', sizeof long_v6 - 1);
    long_v6[sizeof long_v6 - 1] = '\0';
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct hostport parsed, before;
        struct shoal_error error = {0};
        memset(&parsed, 0x55, sizeof parsed);
        before = parsed;
        if (hostport_parse(&parsed, cases[i], &error) != SHOAL_INVALID_ARGUMENT)
            fail_msg("'%s' was accepted", cases[i] ? cases[i] : "(NULL)");
        assert_int_equal(error.status, SHOAL_INVALID_ARGUMENT);
        assert_true(strlen(error.message) > 0);
        assert_memory_equal(&parsed, &before, sizeof parsed);
    }
}

static void the_longest_host(void **state)
{
    char text[HOST_MAX_BYTES + 1], formatted[HOSTPORT_TEXT_BYTES];
    struct hostport parsed;
    (void)state;
    memset(text, 'a', HOST_MAX_BYTES);
    text[HOST_MAX_BYTES] = '\0';
    assert_int_equal(hostport_parse(&parsed, text, NULL), SHOAL_OK);
    assert_int_equal(strlen(parsed.host), HOST_MAX_BYTES);
    hostport_format(parsed.host, 65535, formatted);
    assert_int_equal(strlen(formatted), HOST_MAX_BYTES + 6);
}

static void format_is_canonical(void **state)
{
    char text[HOSTPORT_TEXT_BYTES];
    struct sockaddr_in6 v6 = {.sin6_family = AF_INET6, .sin6_port = htons(9), .sin6_addr = IN6ADDR_LOOPBACK_INIT};
    struct sockaddr_in v4 = {.sin_family = AF_INET, .sin_port = htons(65535)};
    struct sockaddr other = {.sa_family = AF_UNIX};
    (void)state;
    hostport_format("::1", 80, text);
    assert_string_equal(text, "[::1]:80");
    hostport_format("node", 0, text);
    assert_string_equal(text, "node:0");
    sockaddr_format((struct sockaddr *)&v6, text);
    assert_string_equal(text, "[::1]:9");
    v4.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    sockaddr_format((struct sockaddr *)&v4, text);
    assert_string_equal(text, "127.0.0.1:65535");
    sockaddr_format(&other, text);
    assert_true(strlen(text) > 0);
}

static void numeric_hosts_resolve_to_themselves(void **state)
{
    struct sockaddr_storage addr;
    struct shoal_error error;
    char text[HOSTPORT_TEXT_BYTES];
    socklen_t len = 0;
    (void)state;
    assert_int_equal(hostport_resolve("127.0.0.1", 81, &addr, &len, &error), SHOAL_OK);
    assert_int_equal(len, sizeof(struct sockaddr_in));
    sockaddr_format((struct sockaddr *)&addr, text);
    assert_string_equal(text, "127.0.0.1:81");
    assert_int_equal(hostport_resolve("::1", 82, &addr, &len, &error), SHOAL_OK);
    assert_int_equal(len, sizeof(struct sockaddr_in6));
    sockaddr_format((struct sockaddr *)&addr, text);
    assert_string_equal(text, "[::1]:82");
}

static void an_unknown_host_is_an_address_error(void **state)
{
    struct sockaddr_storage addr;
    struct shoal_error error = {0};
    socklen_t len = 77;
    (void)state;
    /* RFC 6761: .invalid never resolves. */
    assert_int_equal(hostport_resolve("no-such-host.invalid", 1, &addr, &len, &error), SHOAL_ADDRESS);
    assert_non_null(strstr(error.message, "no-such-host.invalid"));
    assert_int_equal(len, 77);
}

/* What a connection from source to peer would begin at; NULL: an error. */
static const char *bound_source(const char *source, const char *peer, struct shoal_error *error)
{
    static char text[HOSTPORT_TEXT_BYTES];
    struct sockaddr_storage from, to, bound;
    socklen_t len;
    int fd;
    enum shoal_status status;

    assert_int_equal(hostport_resolve(source, 4711, &from, &len, NULL), SHOAL_OK);
    assert_int_equal(hostport_resolve(peer, 80, &to, &len, NULL), SHOAL_OK);
    fd = socket(to.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_true(fd >= 0);
    status = socket_bind_source(fd, (const struct sockaddr *)&from, (const struct sockaddr *)&to, error);
    len = sizeof bound;
    assert_int_equal(getsockname(fd, (struct sockaddr *)&bound, &len), 0);
    sockaddr_format((const struct sockaddr *)&bound, text);
    close(fd);
    return status == SHOAL_OK ? text : NULL;
}

static void source_of_a_connection(void **state)
{
    struct shoal_error error;

    (void)state;
    assert_string_equal(bound_source("127.0.0.53", "127.0.0.1", &error), "127.0.0.53:0");
    assert_string_equal(bound_source("::1", "::1", &error), "[::1]:0");
    /* Loopback reaches no other host, a family no other family: the kernel chooses. */
    assert_string_equal(bound_source("127.0.0.1", "192.0.2.1", &error), "0.0.0.0:0");
    assert_string_equal(bound_source("::1", "2001:db8::1", &error), "[::]:0");
    assert_string_equal(bound_source("::1", "127.0.0.1", &error), "0.0.0.0:0");
    assert_null(bound_source("192.0.2.1", "192.0.2.2", &error));
    assert_int_equal(error.status, SHOAL_UNREACHABLE);
    assert_int_equal(error.sys_errno, EADDRNOTAVAIL);
    assert_non_null(strstr(error.message, "cannot send from 192.0.2.1:0"));
    assert_non_null(strstr(error.message, "not an address of this machine any more"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(accepted),
        cmocka_unit_test(refused),
        cmocka_unit_test(the_longest_host),
        cmocka_unit_test(format_is_canonical),
        cmocka_unit_test(numeric_hosts_resolve_to_themselves),
        cmocka_unit_test(an_unknown_host_is_an_address_error),
        cmocka_unit_test(source_of_a_connection),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
