/* SPDX-License-Identifier: Apache-2.0 */
/* What the tcp transport counts, and how it tells. */
#include "transport/tcp_internal.h"

void tcp_count_outcome(struct tcp *tcp, const struct transport_request *request)
{
    struct tcp_counters *counters = &tcp->counters;

    switch (request->status) {
    case SHOAL_OK:
        if (request->op == SHOAL_OP_READ) {
            tcp_count(&counters->reads, 1);
            tcp_count(&counters->read_bytes, request->len_bytes);
        } else if (request->op == SHOAL_OP_WRITE) {
            tcp_count(&counters->writes, 1);
            tcp_count(&counters->write_bytes, request->len_bytes);
        } else {
            tcp_count(&counters->notifies, 1);
        }
        break;
    case SHOAL_CANCELED:
        tcp_count(&counters->canceled, 1);
        break;
    case SHOAL_TIMED_OUT:
        tcp_count(&counters->timed_out, 1);
        break;
    case SHOAL_UNREACHABLE:
        tcp_count(&counters->unreachable, 1);
        break;
    case SHOAL_INVALID_ARGUMENT:
        tcp_count(&counters->refused, 1);
        break;
    default:
        tcp_count(&counters->failed, 1);
        break;
    }
}

bool tcp_metrics(struct transport *transport, struct buf *out)
{
    struct tcp *tcp = (struct tcp *)transport;
    struct tcp_counters *c = &tcp->counters;
    uint64_t slot_waits, slots_lent;
    const uint64_t throttled_out_ms = __atomic_load_n(&c->throttled_out_ns, __ATOMIC_RELAXED) / 1000000,
                   throttled_in_ms = __atomic_load_n(&c->throttled_in_ns, __ATOMIC_RELAXED) / 1000000;
    const struct {
        const char *name, *labels, *kind, *help;
        const uint64_t *value;
    } rows[] = {
        {"requests_total", "{op=\"read\"}", "counter", "Requests of this node that completed.", &c->reads},
        {"requests_total", "{op=\"write\"}", NULL, NULL, &c->writes},
        {"requests_total", "{op=\"notify\"}", NULL, NULL, &c->notifies},
        {"bytes_total", "{op=\"read\"}", "counter", "Bytes moved by completed requests of this node.", &c->read_bytes},
        {"bytes_total", "{op=\"write\"}", NULL, NULL, &c->write_bytes},
        {"request_failures_total", "{kind=\"canceled\"}", "counter", "Requests that did not complete.", &c->canceled},
        {"request_failures_total", "{kind=\"timed_out\"}", NULL, NULL, &c->timed_out},
        {"request_failures_total", "{kind=\"unreachable\"}", NULL, NULL, &c->unreachable},
        {"request_failures_total", "{kind=\"refused\"}", NULL, NULL, &c->refused},
        {"request_failures_total", "{kind=\"other\"}", NULL, NULL, &c->failed},
        {"direct_requests_total", "", "counter", "Requests that went over a connection of their thread's own.",
         &c->direct_requests},
        {"retries_total", "", "counter", "Requests repeated on a new connection.", &c->retries},
        {"served_total", "{op=\"read\"}", "counter", "Requests of peers that were served.", &c->served_reads},
        {"served_total", "{op=\"write\"}", NULL, NULL, &c->served_writes},
        {"served_total", "{op=\"notify\"}", NULL, NULL, &c->served_notifies},
        {"served_bytes_total", "{op=\"read\"}", "counter", "Bytes served to peers.", &c->served_read_bytes},
        {"served_bytes_total", "{op=\"write\"}", NULL, NULL, &c->served_write_bytes},
        {"serve_refusals_total", "", "counter", "Requests of peers that were refused.", &c->serve_refusals},
        {"serve_faults_total", "", "counter", "Registered memory that was found inaccessible.", &c->serve_faults},
        {"serve_stalls_total", "", "counter", "Peers dropped because they made no progress.", &c->serve_stalls},
        {"protocol_errors_total", "", "counter", "Connections closed for a violated protocol.", &c->protocol_errors},
        {"evictions_total", "", "counter", "Connections closed to release memory.", &c->evictions},
        {"upload_slot_waits_total", "", "counter", "Turns to be sent to that had to wait for an upload slot.",
         &slot_waits},
        {"upload_slots_lent_total", "", "counter", "Upload slots lent on because their peer took nothing.",
         &slots_lent},
        {"throttled_ms_total", "{direction=\"upload\"}", "counter",
         "Time that connections waited for the rate limit, ms.", &throttled_out_ms},
        {"throttled_ms_total", "{direction=\"download\"}", NULL, NULL, &throttled_in_ms},
        {"connections", "{side=\"client\"}", "gauge", "Open data connections.", &c->client_connections},
        {"connections", "{side=\"server\"}", NULL, NULL, &c->server_connections},
    };

    upload_counters(&tcp->uploads, &slot_waits, &slots_lent);
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        if (rows[i].kind &&
            !buf_append_format(out, "# HELP shoal_transport_tcp_%s %s\n# TYPE shoal_transport_tcp_%s %s\n",
                               rows[i].name, rows[i].help, rows[i].name, rows[i].kind))
            return false;
        if (!buf_append_format(out, "shoal_transport_tcp_%s%s %llu\n", rows[i].name, rows[i].labels,
                               (unsigned long long)__atomic_load_n(rows[i].value, __ATOMIC_RELAXED)))
            return false;
    }
    return true;
}
