/* SPDX-License-Identifier: Apache-2.0 */
/* What several areas need: kinds of addresses, small files of the kernel. */
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>

#include "doctor.h"

bool doctor_is_loopback(const struct sockaddr_storage *addr)
{
    if (addr->ss_family == AF_INET)
        return ntohl(((const struct sockaddr_in *)addr)->sin_addr.s_addr) >> 24 == 127;
    return addr->ss_family == AF_INET6 && IN6_IS_ADDR_LOOPBACK(&((const struct sockaddr_in6 *)addr)->sin6_addr);
}

long long doctor_read_number(const char *path, int field)
{
    long long value = -1;
    FILE *file = fopen(path, "re");
    if (!file)
        return -1;
    for (int i = 0; i <= field; i++)
        if (fscanf(file, "%lld", &value) != 1) {
            value = -1;
            break;
        }
    fclose(file);
    return value;
}

bool doctor_read_line(const char *path, char *text_out, size_t size)
{
    FILE *file = fopen(path, "re");
    bool is_read = file && fgets(text_out, (int)size, file);
    if (is_read)
        text_out[strcspn(text_out, "\n")] = '\0';
    if (file)
        fclose(file);
    return is_read;
}
