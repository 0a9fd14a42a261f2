/* SPDX-License-Identifier: Apache-2.0 */
/* xxHash compiled in for AVX2 (meson.build gives this file -mavx2); called only where the CPU has it. */
#define XXH_INLINE_ALL
#define DIGEST_IMPL_NAME digest_impl_avx2
#include "base/digest_template.h"
