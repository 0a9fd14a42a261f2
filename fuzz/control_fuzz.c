/* SPDX-License-Identifier: Apache-2.0 */
/* Control frames and their bodies come from any peer. */
#include "fuzz.h"

#include <stdlib.h>
#include <string.h>

#include "store/status.h"
#include "wire/control.pb-c.h"
#include "wire/rpc_frame.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct rpc_frame frame;
    uint8_t again[RPC_FRAME_HEADER_BYTES];
    Shoal__Wire__OpenRequest *open_request;
    Shoal__Wire__OpenResponse *open_response;
    Shoal__Wire__SyncRequest *sync_request;
    Shoal__Wire__SyncResponse *sync_response;
    Shoal__Wire__StatusRequest *status_request;
    Shoal__Wire__ClaimRequest *claim_request;
    Shoal__Wire__ClaimResponse *claim_response;
    struct shoal_source_status status = {.receivers = NULL};

    if (size >= RPC_FRAME_HEADER_BYTES && rpc_frame_decode(data, RPC_REQUEST_MAX_BYTES, &frame) == SHOAL_OK) {
        rpc_frame_encode(&frame, again);
        FUZZ_REQUIRE(memcmp(data, again, sizeof again) == 0);
        FUZZ_REQUIRE(frame.body_len <= RPC_REQUEST_MAX_BYTES);
        data += RPC_FRAME_HEADER_BYTES;
        size -= RPC_FRAME_HEADER_BYTES;
    }
    if ((open_request = shoal__wire__open_request__unpack(NULL, size, data)))
        shoal__wire__open_request__free_unpacked(open_request, NULL);
    if ((open_response = shoal__wire__open_response__unpack(NULL, size, data)))
        shoal__wire__open_response__free_unpacked(open_response, NULL);
    if ((sync_request = shoal__wire__sync_request__unpack(NULL, size, data)))
        shoal__wire__sync_request__free_unpacked(sync_request, NULL);
    if ((sync_response = shoal__wire__sync_response__unpack(NULL, size, data)))
        shoal__wire__sync_response__free_unpacked(sync_response, NULL);
    if ((status_request = shoal__wire__status_request__unpack(NULL, size, data)))
        shoal__wire__status_request__free_unpacked(status_request, NULL);
    if ((claim_request = shoal__wire__claim_request__unpack(NULL, size, data))) {
        FUZZ_REQUIRE(claim_request->n_taken <= size); /* what it costs is bounded by what was sent */
        shoal__wire__claim_request__free_unpacked(claim_request, NULL);
    }
    if ((claim_response = shoal__wire__claim_response__unpack(NULL, size, data)))
        shoal__wire__claim_response__free_unpacked(claim_response, NULL);
    if (status_decode(&status, 300, 2, data, size, NULL) == SHOAL_OK) {
        FUZZ_REQUIRE(status.receiver_count <= 2 && status.pieces_have <= status.pieces_total);
        for (size_t i = 0; i < status.receiver_count; i++)
            FUZZ_REQUIRE(memchr(status.receivers[i].name, 0, sizeof status.receivers[i].name));
        free(status.receivers);
    }
    return 0;
}
