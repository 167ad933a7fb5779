// What the kernels of one instruction set get and give: plain pointers, no torch.
#pragma once

#include <cstdint>

namespace rum {

enum Activation : int { kRelu, kTanh, kSigmoid, kSoftsign, kNone };

// Numbers kept for every row and step, `kScalars` apart.
enum Scalar : int {
  kKind,       // a RotationKind
  kInverseE,   // 1 / |e|
  kInverseTau, // 1 / |tau|
  kNormW2,     // lambda = 0: |p + q|^2; lambda = 1: 1 / |p + q|
  kAlpha,      // p . h
  kBeta,       // q . h
  kInverseH,   // 1 / |h_new| before time normalization, negative where the floor acts
  kScalars = 8
};

enum RotationKind : int {
  kIdentity,    // e or tau is zero, or N = 1
  kFromDots,    // the plane of e and tau, from five dot products
  kFromVectors, // the same, nearly antiparallel: from p and s themselves
  kHalfTurn     // antiparallel: the plane of p and of a fixed vector
};

// Rows of the hidden size N are padded to `ld` numbers, a multiple of the vector width; what is
// beyond N is zero. A row of gates is tau, then u: `gates * ld`.
template <class T>
struct Loop {
  int64_t steps, batch, size, ld, gates;
  int64_t inputs; // N_x; 0: x is the projected input, rows of (gates + 1) * size
  bool reverse;
  int lambda;
  int activation;
  T eta; // 0: no time normalization

  const T* x; // (steps, batch, inputs)
  int64_t x_step, x_row;
  const bool* padded; // (steps, batch) or null
  int64_t padded_step, padded_row;
  const T* h0; // (batch, size)
  T* outputs;  // (steps, batch, size)
  // Kept for the backward pass, else null.
  T* states;   // h: `outputs` where nothing is padded, else (steps, batch, size)
  T* sums;     // tau and sigmoid(u): (steps, batch, gates * ld)
  T* embedded; // e: (steps, batch, ld)
  T* scalars;  // (steps, batch, kScalars)
  T* updates;  // lambda = 1: c1, c2, P_t h: (steps, batch, 3 * ld)

  int64_t time(int64_t step) const {
    return reverse ? steps - 1 - step : step;
  }
  bool is_padded(int64_t time, int64_t row) const {
    return padded != nullptr && padded[time * padded_step + row * padded_row];
  }
};

// How the associative memory starts.
enum Start : int {
  kFromIdentity, // R_0 = I
  kFromMemory,   // P_0 = R_0: nothing is kept for the backward pass
  kTimesMemory   // P_0 = I, R_t = R_0 P_t
};

template <class T>
struct Forward : Loop<T> {
  bool few_rows; // few rows and steps: the weights are the plain matrices
  bool in_place; // few steps: R is turned where it ends up, `start` is kFromMemory
  int start;
  const T* bias;         // ((gates + 1) * ld), for inputs > 0
  const T* weights;      // packed, (inputs + size) x (gates * ld)
  const T* weight_embed; // packed, inputs x ld; few_rows: the rows of e in weight_ih
  const T* weight_ih;    // few_rows: ((gates + 1) * size, inputs)
  const T* weight_hh;    // few_rows: (gates * size, size)
  const T* memory0;      // (batch, size, size)
  T* h_last;             // (batch, size)
  T* memory_last;        // P after the last step: (batch, size, size)
};

template <class T>
struct Backward : Loop<T> {
  const T* weights;   // packed, (gates * ld) x ld
  const T* weights_x; // packed, ((gates + 1) * ld) x (inputs + 1, rounded up to vectors)
  const T* grad_outputs;
  int64_t grad_step, grad_row, grad_unit; // grad_unit is 0 or 1
  bool past_first;                        // carry the gradient past the first step, to h0
  T* grad_h;                              // (batch, ld): to the state after the step at hand
  T* grad_x;                              // (steps, batch, inputs) or null
  int64_t grad_x_step, grad_x_row;
  T* grad_projected; // (steps, batch, (gates + 1) * size) or null

  // The gradient of the weights, or all null: rows tau, u and with inputs e, `columns` in all, then
  // padded to the height of a tile; columns W_h, padded to a panel, then W_x and the bias, padded.
  // Stored tile after tile.
  int64_t columns, grad_weights_ld;
  T* grad_weights;
  int64_t depth;    // at least chunk * batch
  T* packed_grads;  // (columns / height of a tile, depth, height)
  T* packed_inputs; // (grad_weights_ld / panel, depth, panel)

  // lambda = 1, for every row of the batch
  const T* memory0; // (size, size), or null for R_0 = I
  T* memory;        // (size, ld): P after the step at hand
  T* skew;          // (size, ld): S
  T* grad_memory;   // (size, ld) or null: the gradient to R_0
};

template <class T>
struct Kernels {
  const char* name;
  int64_t width; // numbers in a vector
  // How many numbers of scratch the rows [0, rows) need.
  int64_t (*forward_scratch)(const Forward<T>&, int64_t rows);
  int64_t (*backward_scratch)(const Backward<T>&, int64_t rows);
  // All steps of the rows [begin, end).
  void (*forward)(const Forward<T>&, int64_t begin, int64_t end, T* scratch);
  // The steps [first, last) of the rows [begin, end), the last one first.
  void (*backward)(
      const Backward<T>&, int64_t first, int64_t last, int64_t begin, int64_t end, T* scratch);
  // Add a chunk of `depth` steps and rows to one in `parts` of the gradient of the weights.
  void (*weight_gradient)(const Backward<T>&, int64_t depth, int64_t part, int64_t parts);
  // Put weights into the order in which the products read them. The packed matrix has one column
  // for each row of the weights, gate after gate, every gate padded from `size` to `ld` columns.
  void (*pack_rows)(
      const T* ih, int64_t inputs, const T* hh, int64_t size, int64_t gates, int64_t ld, T* packed);
  // The same for the transposed product: one row for each row of the weights, `wide` columns.
  void (*pack_columns)(
      const T* weights, int64_t columns, int64_t wide, int64_t size, int64_t blocks, int64_t ld,
      T* packed);
  int64_t tile_rows, panel; // the height and width of a tile
};

namespace baseline {
const Kernels<float>& kernels_float();
const Kernels<double>& kernels_double();
} // namespace baseline

#if defined(__x86_64__)
#define RUM_X86 1
namespace avx2 {
const Kernels<float>& kernels_float();
const Kernels<double>& kernels_double();
} // namespace avx2
namespace avx512 {
const Kernels<float>& kernels_float();
const Kernels<double>& kernels_double();
} // namespace avx512
#endif

} // namespace rum
