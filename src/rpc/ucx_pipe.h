/* SPDX-License-Identifier: Apache-2.0 */
/* Bytes between two processes as active messages of UCX: what carries control frames with MC_RPC_PROTOCOL=rdma or ucx.
 *
 * A carrier is UCX with its settings, one in a process for each of the two names. A port is a worker of it: it has a
 * descriptor, and whoever owns it drives it. A pipe is one connection of a port: a stream of bytes each way, in order.
 * UCX does not hold back a sender, so there is a window: neither side keeps more than UCX_PIPE_WINDOW_BYTES that nobody
 * has taken out yet, and who sends more loses the pipe. Each side names the pipe to the other by a random token that
 * comes with every message, so that one port has many pipes and a message of a stranger belongs to none.
 *
 * All messages are eager ones, copied out of UCX's buffers where they arrive: UCX 1.13 can bring the process down when
 * a peer dies within a rendezvous, and values that are worth one do not travel in control frames.
 *
 * A pipe says nothing of a peer that died or stopped: the TCP connection of the handshake stays open beside it and
 * does.
 *
 * Threads: carriers any; a port and its pipes one thread at a time, whichever. */
#ifndef SHOAL_RPC_UCX_PIPE_H
#define SHOAL_RPC_UCX_PIPE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/uio.h>

#include <shoal/status.h>

#include "base/buf.h"
#include "wire/ucx_frame.h"

#define UCX_PIPE_WINDOW_BYTES (1u << 20)
#define UCX_PIPE_PRIVATE_PORTS_MAX 64 /* of a process; fewer where it may open few files */

struct ucx_carrier;
struct ucx_port;
struct ucx_pipe;

/* protocol: "rdma" or "ucx". UNSUPPORTED: not built in, no library, no RDMA device, nothing that UCX could use. The
 * message says which. */
enum shoal_status ucx_carrier_open(const char *protocol, struct ucx_carrier **carrier_out, struct shoal_error *error);
struct ucx_carrier *ucx_carrier_find(const char *protocol); /* one that is open */
void ucx_carrier_close(struct ucx_carrier *carrier);        /* after its ports; NULL is allowed */

/* A private port has one pipe and takes that one's memory with it: nothing that the pipe was given is touched after
 * ucx_port_close. LIMIT: too many private ports; UNSUPPORTED, NO_MEMORY. */
enum shoal_status ucx_port_open(struct ucx_carrier *carrier, bool is_private, struct ucx_port **port_out,
                                struct shoal_error *error);
void ucx_port_close(struct ucx_port *port); /* after its pipes; NULL is allowed */
int ucx_port_fd(const struct ucx_port *port);
/* false: nothing to do. Nothing is called back: see ucx_port_next_ready. */
bool ucx_port_progress(struct ucx_port *port);
/* After progress found nothing to do: true: the descriptor becomes readable when there is something, sleep on it for
 * *patience_ms_out at most (-1: for ever). false: there is already, do not sleep. */
bool ucx_port_arm(struct ucx_port *port, int *patience_ms_out);
/* A pipe that got bytes, room to send, or failed since it was returned last; NULL: none. */
struct ucx_pipe *ucx_port_next_ready(struct ucx_port *port);

enum shoal_status ucx_pipe_create(struct ucx_port *port, void *arg, struct ucx_pipe **pipe_out,
                                  struct shoal_error *error);
/* What is sent is not waited for. NULL is allowed. */
void ucx_pipe_close(struct ucx_pipe *pipe);
void *ucx_pipe_arg(const struct ucx_pipe *pipe);
struct ucx_port *ucx_pipe_port(const struct ucx_pipe *pipe);
/* Appends the frame that tells the peer where this pipe is: type LINK or LINKED (wire/ucx_frame.h). */
bool ucx_pipe_describe(const struct ucx_pipe *pipe, enum ucx_frame_type type, struct buf *out);
/* Connects it with the pipe that the peer has described. UNSUPPORTED: nothing that both share; on a port that is not
 * private also when they share only what reports no errors, such as shared memory: then a private one is needed. */
enum shoal_status ucx_pipe_connect(struct ucx_pipe *pipe, const struct ucx_frame *frame, const uint8_t *body,
                                   struct shoal_error *error);

/* How many bytes were taken, as far as there is room in the peer's window. is_lasting (private ports): they stay where
 * they are until ucx_pipe_is_sent or until the port is closed; else what cannot be sent at once is copied. */
size_t ucx_pipe_write(struct ucx_pipe *pipe, const void *data, size_t len, bool is_lasting);
bool ucx_pipe_has_room(const struct ucx_pipe *pipe);
bool ucx_pipe_is_sent(const struct ucx_pipe *pipe);
/* What has come, at most as much as the parts hold. */
size_t ucx_pipe_read(struct ucx_pipe *pipe, const struct iovec *parts, int count);
/* While there is nothing to read: what comes next goes straight into parts, until ucx_pipe_expected says how much. */
void ucx_pipe_expect(struct ucx_pipe *pipe, const struct iovec *parts, int count);
bool ucx_pipe_has_come(const struct ucx_pipe *pipe); /* something to read, or of what is expected */
size_t ucx_pipe_expected(struct ucx_pipe *pipe);
bool ucx_pipe_has_failed(const struct ucx_pipe *pipe);
const char *ucx_pipe_failure(const struct ucx_pipe *pipe);

#endif
