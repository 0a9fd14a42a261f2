/* SPDX-License-Identifier: Apache-2.0 */
/* The address of --name: is it one of this machine, on which device, and do connections to it arrive? */
#include <errno.h>
#include <ifaddrs.h>
#include <inttypes.h>
#include <net/if.h>
#include <netdb.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/error.h"
#include "base/hostport.h"
#include "doctor.h"
#include "greet.h"

#define CONNECT_TIMEOUT_MS 2000
#define SHOWN_DEVICES 8
#define DEVICE_TEXT_BYTES 160

static const char advice_name[] = "give an address of this machine that the others reach, as --name 10.0.0.5:0";

/* --- devices --- */

static bool is_same_host(const struct sockaddr *a, const struct sockaddr_storage *b)
{
    if (!a || a->sa_family != b->ss_family)
        return false;
    if (a->sa_family == AF_INET)
        return memcmp(&((const struct sockaddr_in *)(const void *)a)->sin_addr,
                      &((const struct sockaddr_in *)b)->sin_addr, sizeof(struct in_addr)) == 0;
    return a->sa_family == AF_INET6 &&
           memcmp(&((const struct sockaddr_in6 *)(const void *)a)->sin6_addr,
                  &((const struct sockaddr_in6 *)b)->sin6_addr, sizeof(struct in6_addr)) == 0;
}

/* Megabits per second; -1: it has none (loopback, virtual), or says nothing. */
static long long speed_of(const char *device)
{
    char path[64 + IFNAMSIZ];
    snprintf(path, sizeof path, "/sys/class/net/%s/speed", device);
    return doctor_read_number(path, 0);
}

static const char *describe(const char *device, char text[DEVICE_TEXT_BYTES])
{
    char path[64 + IFNAMSIZ], state[32] = "";
    long long speed = speed_of(device), mtu;
    size_t used = (size_t)snprintf(text, DEVICE_TEXT_BYTES, "%s", device);
    snprintf(path, sizeof path, "/sys/class/net/%s/mtu", device);
    mtu = doctor_read_number(path, 0);
    if (speed > 0)
        used += (size_t)snprintf(text + used, DEVICE_TEXT_BYTES - used, ", %lld Mbit/s", speed);
    if (mtu > 0)
        used += (size_t)snprintf(text + used, DEVICE_TEXT_BYTES - used, ", mtu %lld", mtu);
    snprintf(path, sizeof path, "/sys/class/net/%s/operstate", device);
    if (doctor_read_line(path, state, sizeof state) && strcmp(state, "down") == 0)
        snprintf(text + used, DEVICE_TEXT_BYTES - used, ", DOWN");
    return text;
}

/* The device that has the address; "" if none has. */
static void find_device(const struct ifaddrs *devices, const struct sockaddr_storage *addr, char name_out[IFNAMSIZ])
{
    name_out[0] = '\0';
    for (const struct ifaddrs *device = devices; device; device = device->ifa_next)
        if (is_same_host(device->ifa_addr, addr)) {
            snprintf(name_out, IFNAMSIZ, "%s", device->ifa_name);
            return;
        }
}

static void tell_devices(struct doctor *doctor, const struct sockaddr_storage *addr)
{
    struct ifaddrs *devices = NULL;
    char own[IFNAMSIZ], text[DEVICE_TEXT_BYTES], others[400] = "", address[HOSTPORT_TEXT_BYTES], faster[IFNAMSIZ] = "";
    size_t used = 0;
    unsigned count = 0;
    if (getifaddrs(&devices) != 0) {
        doctor_tell(doctor, DOCTOR_SKIP, "device", NULL, "the network devices cannot be listed: %s", strerror(errno));
        return;
    }
    find_device(devices, addr, own);
    for (const struct ifaddrs *device = devices; device; device = device->ifa_next) {
        int family = device->ifa_addr ? device->ifa_addr->sa_family : 0;
        bool is_candidate = (family == AF_INET || family == AF_INET6) && !(device->ifa_flags & IFF_LOOPBACK) &&
                            (device->ifa_flags & IFF_UP) && !is_same_host(device->ifa_addr, addr);
        if (!is_candidate ||
            (family == AF_INET6 &&
             IN6_IS_ADDR_LINKLOCAL(&((const struct sockaddr_in6 *)(const void *)device->ifa_addr)->sin6_addr)))
            continue;
        if (strcmp(device->ifa_name, own) != 0 && speed_of(device->ifa_name) > speed_of(own) && speed_of(own) > 0)
            snprintf(faster, sizeof faster, "%s", device->ifa_name);
        if (++count > SHOWN_DEVICES || used >= sizeof others)
            continue;
        sockaddr_format(device->ifa_addr, address);
        char *port = strrchr(address, ':'); /* it is 0 */
        if (port)
            *port = '\0';
        used += (size_t)snprintf(others + used, sizeof others - used, "%s%s (%s)", used ? ", " : "", address,
                                 device->ifa_name);
    }
    if (!own[0]) /* all of 127.0.0.0/8 is loopback's, whether listed or not */
        snprintf(own, sizeof own, "%s", doctor_is_loopback(addr) ? "lo" : "?");
    doctor_tell(doctor, faster[0] ? DOCTOR_WARN : DOCTOR_OK, "device",
                faster[0] ? "give the address of the faster device with --name" : NULL, "%s%s%s%s%s%s",
                describe(own, text), faster[0] ? "; faster is " : "", faster, count ? "; other addresses: " : "",
                others, count > SHOWN_DEVICES ? ", ..." : "");
    freeifaddrs(devices);
}

static void tell_port_in_use(struct doctor *doctor, const struct sockaddr_storage *addr, socklen_t len,
                             const char *text)
{
    struct shoal_error error;
    struct hello hello;
    int fd = greet_connect(addr, len, CONNECT_TIMEOUT_MS, &error);
    if (fd < 0)
        doctor_tell(doctor, DOCTOR_WARN, "name", "end the program that has the port, or give another port",
                    "%s: the port is in use, but a connection to it fails: %s", text, error.message);
    else if (greet_ask(fd, doctor->app->settings.cluster, CONNECT_TIMEOUT_MS, &hello))
        doctor_tell(doctor, DOCTOR_WARN, "name", "that is fine while it runs; a second node needs another port",
                    "%s: the port is in use by the node %s of cluster \"%s\"", text, hello.name, hello.cluster);
    else
        doctor_tell(doctor, DOCTOR_WARN, "name", "give another port, or 0 for any free one",
                    "%s: the port is in use by another program", text);
    if (fd >= 0)
        close(fd);
}

/* --- the address --- */

/* A connection to the address, made here: what a local firewall or a wrong route would prevent. */
static void check_reachable(struct doctor *doctor, int listener, const char *text)
{
    struct sockaddr_storage addr;
    struct shoal_error error;
    socklen_t len = sizeof addr;
    int fd = -1;
    if (listen(listener, 1) != 0 || getsockname(listener, (struct sockaddr *)&addr, &len) != 0)
        error_set(&error, SHOAL_ADDRESS, errno, "%s", strerror(errno));
    else
        fd = greet_connect(&addr, len, CONNECT_TIMEOUT_MS, &error);
    bool is_loopback = doctor_is_loopback(&addr);
    if (fd < 0)
        doctor_tell(doctor, DOCTOR_FAIL, "name", "look at the local firewall (nft list ruleset) and the routes",
                    "%s can be bound, but a connection to it from this machine fails: %s", text, error.message);
    else if (is_loopback && doctor->is_cluster_wide)
        doctor_tell(doctor, DOCTOR_WARN, "name", advice_name,
                    "%s: only this machine reaches it, but the metadata service serves a cluster", text);
    else
        doctor_tell(doctor, DOCTOR_OK, "name", NULL, "%s can be bound and connected to%s", text,
                    is_loopback ? " (loopback: only this machine reaches it)" : "");
    if (fd >= 0)
        close(fd);
}

/* A host name that stands for several addresses: others may be given another one than is bound here. */
static void check_resolution(struct doctor *doctor, const char *host, const struct sockaddr_storage *used)
{
    const struct addrinfo hints = {.ai_socktype = SOCK_STREAM};
    struct addrinfo *found = NULL;
    unsigned count = 0;
    bool is_local = false;
    if (getaddrinfo(host, NULL, &hints, &found) != 0)
        return; /* it was told already */
    for (const struct addrinfo *info = found; info; info = info->ai_next) {
        struct sockaddr_storage addr = {0};
        memcpy(&addr, info->ai_addr, info->ai_addrlen < sizeof addr ? info->ai_addrlen : sizeof addr);
        count++;
        is_local |= doctor_is_loopback(&addr);
    }
    freeaddrinfo(found);
    if (doctor_is_loopback(used) && strcmp(host, "localhost") != 0 && strncmp(host, "127.", 4) != 0 &&
        strcmp(host, "::1") != 0)
        doctor_tell(doctor, DOCTOR_WARN, "host name", "give the number of the address, or correct /etc/hosts",
                    "%s resolves to a loopback address here, to another one elsewhere", host);
    else if (count > 1)
        doctor_tell(doctor, is_local ? DOCTOR_WARN : DOCTOR_OK, "host name",
                    is_local ? "give the number of the address with --name" : NULL,
                    "%s resolves to %u addresses%s; the first is used", host, count,
                    is_local ? ", one of them a loopback address" : "");
}

void doctor_check_address(struct doctor *doctor)
{
    struct hostport name;
    struct sockaddr_storage addr;
    socklen_t len;
    struct shoal_error error;
    char text[HOSTPORT_TEXT_BYTES];
    int one = 1, fd = -1;
    if (hostport_parse(&name, doctor->app->settings.name, &error) != SHOAL_OK ||
        hostport_resolve(name.host, name.has_port ? name.port : 0, &addr, &len, &error) != SHOAL_OK) {
        doctor_tell(doctor, DOCTOR_FAIL, "name", advice_name, "%s", error.message);
        return;
    }
    sockaddr_format((const struct sockaddr *)&addr, text);
    bool is_any = addr.ss_family == AF_INET ? ((const struct sockaddr_in *)&addr)->sin_addr.s_addr == htonl(INADDR_ANY)
                                            : IN6_IS_ADDR_UNSPECIFIED(&((const struct sockaddr_in6 *)&addr)->sin6_addr);
    if (is_any) {
        doctor_tell(doctor, DOCTOR_FAIL, "name", advice_name,
                    "%s stands for every address of a machine: others cannot connect to it", text);
        return;
    }
    fd = socket(addr.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd >= 0)
        setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    if (fd < 0 || bind(fd, (const struct sockaddr *)&addr, len) != 0) {
        int number = errno;
        if (fd >= 0)
            close(fd);
        if (number == EADDRINUSE)
            tell_port_in_use(doctor, &addr, len, text);
        else
            doctor_tell(doctor, DOCTOR_FAIL, "name", advice_name, "%s cannot be bound%s: %s", text,
                        number == EADDRNOTAVAIL ? ", no device of this machine has it" : "", strerror(number));
        if (number != EADDRINUSE)
            return;
    } else {
        check_reachable(doctor, fd, text);
        close(fd);
    }
    check_resolution(doctor, name.host, &addr);
    tell_devices(doctor, &addr);
}
