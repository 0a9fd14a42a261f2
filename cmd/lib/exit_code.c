/* SPDX-License-Identifier: Apache-2.0 */
#include "exit_code.h"

enum exit_code exit_code_of(enum shoal_status status)
{
    switch (status) {
    case SHOAL_OK:
        return EXIT_CODE_OK;
    case SHOAL_INVALID_ARGUMENT:
        return EXIT_CODE_USAGE;
    case SHOAL_PAYLOAD_NOT_FOUND:
    case SHOAL_NOT_FOUND:
        return EXIT_CODE_NOT_FOUND;
    case SHOAL_EXISTS:
    case SHOAL_PAYLOAD_OPENED:
        return EXIT_CODE_EXISTS;
    case SHOAL_CORRUPTED:
    case SHOAL_PROTOCOL:
        return EXIT_CODE_CORRUPTED;
    case SHOAL_TIMED_OUT:
        return EXIT_CODE_TIMED_OUT;
    case SHOAL_METADATA:
        return EXIT_CODE_METADATA;
    case SHOAL_NO_SOURCE:
        return EXIT_CODE_NO_SOURCE;
    case SHOAL_NAME_IN_USE:
    case SHOAL_ADDRESS:
        return EXIT_CODE_ADDRESS;
    case SHOAL_REPLACED:
        return EXIT_CODE_REPLACED;
    case SHOAL_NO_SPACE:
        return EXIT_CODE_NO_SPACE;
    case SHOAL_UNREACHABLE:
        return EXIT_CODE_UNREACHABLE;
    default:
        return EXIT_CODE_FAILURE;
    }
}
