/* SPDX-License-Identifier: Apache-2.0 */
/* Memory as files: what went to the other end of a link, and what came from it. */
#include <fcntl.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "transport/local_internal.h"

bool local_share_offer(struct local_link *link, uint64_t addr, uint64_t len, uint64_t *id_out, uint64_t *offset_out)
{
    uint64_t id, offset, size;
    int fd, copy;

    if (!shared_find(link->local->env.shared, addr, len, &id, &offset, &size, &fd))
        return false;
    for (unsigned i = 0; i < link->shared_count; i++) {
        if (link->shared[i] == id) {
            *id_out = id;
            *offset_out = offset;
            return true;
        }
    }
    if (link->shared_count == LOCAL_SHARES_MAX || link->out_fd_count == LOCAL_FDS_MAX)
        return false;
    /* The caller holds a pin on the memory, so it is not freed between finding and duplicating. */
    copy = fcntl(fd, F_DUPFD_CLOEXEC, 3);
    if (copy < 0)
        return false;
    link->out_fds[link->out_fd_count].at = link->sent_bytes + link->out.len;
    link->out_fds[link->out_fd_count].fd = copy;
    link->out_fd_count++;
    link->shared[link->shared_count++] = id;
    local_link_send(link, &(struct local_frame){.type = LOCAL_SHARE, .id = id, .len = size});
    *id_out = id;
    *offset_out = offset;
    return true;
}

void local_share_revoke(struct local_link *link, uint64_t id)
{
    for (unsigned i = 0; i < link->shared_count; i++) {
        if (link->shared[i] != id)
            continue;
        link->shared[i] = link->shared[--link->shared_count];
        local_link_send(link, &(struct local_frame){.type = LOCAL_UNSHARE, .id = id});
        return;
    }
}

/* --- of the other end --- */

static struct local_share *find(struct local_link *link, uint64_t id)
{
    LIST_FOR_EACH (share, &link->shares, struct local_share, node) {
        if (share->id == id && !share->is_gone)
            return share;
    }
    return NULL;
}

static void share_free(struct local_link *link, struct local_share *share)
{
    list_remove(&share->node);
    link->share_count--;
    close(share->fd);
    free(share);
}

/* A file that can shrink, or is no memory at all (reading it could block), is not what we asked for. */
static bool is_sealed_memory(int fd, uint64_t len)
{
    int seals = fcntl(fd, F_GET_SEALS);
    struct stat info;

    return seals >= 0 && (seals & F_SEAL_SHRINK) && fstat(fd, &info) == 0 && S_ISREG(info.st_mode) &&
           (uint64_t)info.st_size >= len;
}

bool local_share_take(struct local_link *link, const struct local_frame *frame)
{
    struct local_share *share;
    int fd;

    if (link->in_fd_count == 0 || !frame->id || find(link, frame->id) || link->share_count == LOCAL_SHARES_MAX)
        return false;
    fd = link->in_fds[0];
    link->in_fd_count--;
    for (unsigned i = 0; i < link->in_fd_count; i++)
        link->in_fds[i] = link->in_fds[i + 1];
    share = calloc(1, sizeof *share);
    if (!share || !is_sealed_memory(fd, frame->len)) {
        close(fd);
        free(share);
        return !share; /* out of memory: what is granted from it fails */
    }
    *share = (struct local_share){.id = frame->id, .len = frame->len, .fd = fd};
    list_push_back(&link->shares, &share->node);
    link->share_count++;
    return true;
}

bool local_share_drop(struct local_link *link, const struct local_frame *frame)
{
    struct local_share *share = find(link, frame->id);

    if (!share)
        return true;
    share->is_gone = true;
    if (share->users == 0)
        share_free(link, share);
    return true;
}

struct local_share *local_share_use(struct local_link *link, uint64_t id, uint64_t offset, uint64_t len)
{
    struct local_share *share = find(link, id);

    if (!share || offset > share->len || len > share->len - offset)
        return NULL;
    share->users++;
    return share;
}

void local_share_unuse(struct local_link *link, struct local_share *share)
{
    if (--share->users == 0 && share->is_gone)
        share_free(link, share);
}

void local_share_release_all(struct local_link *link)
{
    LIST_FOR_EACH_SAFE (share, &link->shares, struct local_share, node)
        share_free(link, share);
    for (unsigned i = 0; i < link->out_fd_count; i++)
        close(link->out_fds[i].fd);
    for (unsigned i = 0; i < link->in_fd_count; i++)
        close(link->in_fds[i]);
    link->out_fd_count = link->in_fd_count = 0;
}
