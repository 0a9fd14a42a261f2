/* SPDX-License-Identifier: Apache-2.0 */
/* Runs a fuzz target without a fuzzer: every file of the corpus folders, the same cut at every byte, and with single
 * bytes changed. Inputs lie in heap blocks of exactly their size, so that a sanitizer sees a read beyond the end. On a
 * crash the last line of stderr says which input it was (file, variant), and the input is left in the current folder.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdbool.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "fuzz.h"

enum {
    INPUT_MAX_BYTES = 8 << 20,
    /* Variants of one file; beyond that they are spread evenly over it. */
    VARIANTS_MAX = 4096,
};

static const uint8_t replacements[] = {0x00, 0xff, 0x7f, 0x80};

/* What is running, for the crash report. */
static char current_name[512];
static const uint8_t *current_data;
static size_t current_size;

static void report_crash(int signal_number)
{
    static const char text[] = "\ncrashed on: ";
    ssize_t ignored = write(STDERR_FILENO, text, sizeof text - 1);
    ignored = write(STDERR_FILENO, current_name, strlen(current_name));
    ignored = write(STDERR_FILENO, "\n", 1);
    int fd = open("fuzz-crash.bin", O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    if (fd >= 0) {
        ignored = write(fd, current_data, current_size);
        close(fd);
    }
    (void)ignored;
    raise(signal_number); /* SA_RESETHAND: the default action now */
}

static void run_one(const uint8_t *bytes, size_t size)
{
    uint8_t *copy = malloc(size ? size : 1);
    if (!copy) {
        fprintf(stderr, "out of memory\n");
        exit(1);
    }
    if (size)
        memcpy(copy, bytes, size);
    current_data = copy;
    current_size = size;
    if (LLVMFuzzerTestOneInput(copy, size) != 0) {
        fprintf(stderr, "%s: the target did not return 0\n", current_name);
        exit(1);
    }
    current_data = NULL;
    current_size = 0;
    free(copy);
}

static size_t step_for(size_t size)
{
    return size <= VARIANTS_MAX ? 1 : (size + VARIANTS_MAX - 1) / VARIANTS_MAX;
}

static size_t run_variants(const char *path, uint8_t *bytes, size_t size)
{
    size_t runs = 1;
    size_t step = step_for(size);
    snprintf(current_name, sizeof current_name, "%s", path);
    run_one(bytes, size);
    for (size_t cut = 0; cut < size; cut += step, runs++) {
        snprintf(current_name, sizeof current_name, "%s cut to %zu bytes", path, cut);
        run_one(bytes, cut);
    }
    for (size_t at = 0; at < size; at += step) {
        uint8_t original = bytes[at];
        for (size_t i = 0; i < sizeof replacements + 3; i++, runs++) {
            uint8_t value;
            if (i < sizeof replacements)
                value = replacements[i];
            else if (i == sizeof replacements)
                value = (uint8_t)(original + 1);
            else if (i == sizeof replacements + 1)
                value = (uint8_t)(original - 1);
            else
                value = (uint8_t)(original ^ 1u << (at % 8));
            bytes[at] = value;
            snprintf(current_name, sizeof current_name, "%s with byte %zu = 0x%02x", path, at, value);
            run_one(bytes, size);
        }
        bytes[at] = original;
    }
    return runs;
}

static uint8_t *read_file(const char *path, size_t *size_out)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    struct stat info;
    uint8_t *bytes = NULL;
    if (fd < 0 || fstat(fd, &info) != 0)
        goto fail;
    if (info.st_size > INPUT_MAX_BYTES) {
        errno = EFBIG;
        goto fail;
    }
    size_t size = (size_t)info.st_size;
    bytes = malloc(size + 1);
    if (!bytes)
        goto fail;
    for (size_t have = 0; have < size;) {
        ssize_t got = read(fd, bytes + have, size - have);
        if (got <= 0)
            goto fail;
        have += (size_t)got;
    }
    close(fd);
    *size_out = size;
    return bytes;
fail:
    fprintf(stderr, "%s: %s\n", path, strerror(errno));
    exit(1);
}

static int compare_names(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

/* Sorted, so that two runs do the same. */
static size_t replay_folder(const char *folder)
{
    char **names = NULL;
    size_t count = 0, runs = 0;
    DIR *dir = opendir(folder);
    if (!dir) {
        fprintf(stderr, "%s: %s\n", folder, strerror(errno));
        exit(1);
    }
    for (struct dirent *entry = readdir(dir); entry; entry = readdir(dir)) {
        if (entry->d_name[0] == '.')
            continue;
        char **grown = realloc(names, (count + 1) * sizeof *names);
        if (!grown)
            exit(1);
        names = grown;
        if (asprintf(&names[count++], "%s/%s", folder, entry->d_name) < 0)
            exit(1);
    }
    closedir(dir);
    if (count)
        qsort(names, count, sizeof *names, compare_names);
    for (size_t i = 0; i < count; i++) {
        size_t size;
        uint8_t *bytes = read_file(names[i], &size);
        runs += run_variants(names[i], bytes, size);
        free(bytes);
        free(names[i]);
    }
    free(names);
    printf("%s: %zu inputs, %zu runs\n", folder, count, runs);
    return count;
}

int main(int argc, char **argv)
{
    static const int fatal_signals[] = {SIGSEGV, SIGBUS, SIGABRT, SIGFPE, SIGILL};
    struct sigaction action = {.sa_handler = report_crash, .sa_flags = (int)(SA_RESETHAND | SA_NODEFER)};
    size_t inputs = 0;
    if (argc < 2) {
        fprintf(stderr, "usage: %s CORPUS_FOLDER...\n", argv[0]);
        return 2;
    }
    for (size_t i = 0; i < sizeof fatal_signals / sizeof *fatal_signals; i++)
        sigaction(fatal_signals[i], &action, NULL);
    snprintf(current_name, sizeof current_name, "the empty input");
    run_one(NULL, 0);
    for (int i = 1; i < argc; i++)
        inputs += replay_folder(argv[i]);
    if (inputs == 0) {
        fprintf(stderr, "no inputs in the corpus: nothing was tested\n");
        return 1;
    }
    return 0;
}
