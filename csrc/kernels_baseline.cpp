// Any machine: 16-byte vectors.
#define RUM_ISA baseline
#define RUM_VECTOR_BYTES 16
#if defined(__aarch64__)
#define RUM_TILE_ROWS 8
#else
#define RUM_TILE_ROWS 4
#endif
#define RUM_TURN_VECTORS 3
#define RUM_SKEW_VECTORS 3
#define RUM_BACK_VECTORS 2
#include "rum_kernels.h"
