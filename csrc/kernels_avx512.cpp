// x86 machines with AVX512; chosen when the program runs.
#if defined(__x86_64__)
#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx512f,avx512dq,avx512bw,avx512vl,avx2,fma"))), apply_to = function)
#else
#pragma GCC target("avx512f,avx512dq,avx512bw,avx512vl,avx2,fma")
#endif
#define RUM_ISA avx512
#define RUM_VECTOR_BYTES 64
#define RUM_TILE_ROWS 12
#define RUM_TURN_VECTORS 4
#define RUM_SKEW_VECTORS 4
#define RUM_BACK_VECTORS 4
#include "rum_kernels.h"
#if defined(__clang__)
#pragma clang attribute pop
#endif
#endif
