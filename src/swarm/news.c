/* SPDX-License-Identifier: Apache-2.0 */
#include "swarm/news.h"

#define MESSAGE_BYTES 200     /* question and answer with all headers, about */
#define SHARE_DIVISOR 200     /* 0.5 % of the payload's bytes */
#define CREDIT_TELLINGS 8     /* that may be owed for urgent news */
#define BUDGET_MAX_TELLINGS 2 /* that may be saved up */
#define URGENT_DELAY_MS 2     /* for more of them */

int64_t swarm_news_add(struct swarm_news *news, uint64_t piece_bytes, uint32_t listeners, bool is_urgent,
                       int64_t now_ms)
{
    int64_t cost = (int64_t)listeners * MESSAGE_BYTES, due_ms = now_ms + NEWS_DELAY_MAX_MS;

    news->budget_bytes += (int64_t)(piece_bytes / SHARE_DIVISOR);
    if (news->budget_bytes > BUDGET_MAX_TELLINGS * cost)
        news->budget_bytes = BUDGET_MAX_TELLINGS * cost;
    if (news->budget_bytes >= cost || news->pending + 1 >= NEWS_BATCH_MAX)
        due_ms = now_ms;
    else if (is_urgent && news->budget_bytes >= -CREDIT_TELLINGS * cost)
        due_ms = now_ms + URGENT_DELAY_MS;
    if (news->pending++ == 0 || due_ms < news->due_ms)
        news->due_ms = due_ms;
    return news->due_ms;
}

void swarm_news_told(struct swarm_news *news, uint32_t listeners)
{
    int64_t cost = (int64_t)listeners * MESSAGE_BYTES, least = -(CREDIT_TELLINGS + 1) * cost;

    news->budget_bytes -= cost;
    if (news->budget_bytes < least)
        news->budget_bytes = least;
    news->pending = 0;
}
