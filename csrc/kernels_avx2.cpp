// x86 machines with AVX2; chosen when the program runs.
#if defined(__x86_64__)
#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx2,fma"))), apply_to = function)
#else
#pragma GCC target("avx2,fma")
#endif
#define RUM_ISA avx2
#define RUM_VECTOR_BYTES 32
#define RUM_TILE_ROWS 6
#define RUM_TURN_VECTORS 4
#define RUM_SKEW_VECTORS 3
#define RUM_BACK_VECTORS 3
#include "rum_kernels.h"
#if defined(__clang__)
#pragma clang attribute pop
#endif
#endif
