// Any machine: 16-byte vectors.
#define RUM_ISA baseline
#define RUM_VECTOR_BYTES 16
#if defined(__aarch64__)
#define RUM_TILE_ROWS 8
#else
#define RUM_TILE_ROWS 4
#endif
#include "rum_kernels.h"
