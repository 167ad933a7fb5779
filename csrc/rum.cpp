// fairseq_rum._C: RUM's loop on the CPU, forward and backward, for torch tensors.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/utils/pybind.h>

#include <algorithm>
#include <optional>
#include <string>
#include <vector>

#if defined(__linux__)
#include <sys/mman.h>
#include <unistd.h>
#endif

#include "rum_loop.h"

namespace rum {
namespace {

using at::Tensor;
using MaybeTensor = std::optional<Tensor>;

// ---------------------------------------------------------------- instruction sets

enum class Isa { baseline, avx2, avx512 };

Isa best_isa() {
#ifdef RUM_X86
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) {
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&
        __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl"))
      return Isa::avx512;
    return Isa::avx2;
  }
#endif
  return Isa::baseline;
}

Isa& isa() {
  static Isa chosen = best_isa();
  return chosen;
}

template <class T>
const Kernels<T>& kernels();

template <>
const Kernels<float>& kernels<float>() {
#ifdef RUM_X86
  if (isa() == Isa::avx512) return avx512::kernels_float();
  if (isa() == Isa::avx2) return avx2::kernels_float();
#endif
  return baseline::kernels_float();
}

template <>
const Kernels<double>& kernels<double>() {
#ifdef RUM_X86
  if (isa() == Isa::avx512) return avx512::kernels_double();
  if (isa() == Isa::avx2) return avx2::kernels_double();
#endif
  return baseline::kernels_double();
}

std::string instruction_set() {
  return kernels<float>().name;
}

void set_instruction_set(const std::string& name) {
  const char* names[] = {"baseline", "avx2", "avx512"};
  for (int i = 0; i <= int(best_isa()); ++i)
    if (name == names[i]) {
      isa() = Isa(i);
      return;
    }
  throw std::invalid_argument("this machine has no instruction set " + name);
}

// ---------------------------------------------------------------- memory and threads

// Large new tensors in large pages: the first touch of a small page costs more than writing it.
Tensor large_pages(Tensor tensor) {
#if defined(__linux__) && defined(MADV_HUGEPAGE)
  const size_t huge = size_t(1) << 21, bytes = tensor.nbytes();
  if (bytes >= 2 * huge) {
    const uintptr_t start = reinterpret_cast<uintptr_t>(tensor.data_ptr());
    const uintptr_t from = (start + huge - 1) / huge * huge;
    const uintptr_t to = (start + bytes) / huge * huge;
    if (to > from) madvise(reinterpret_cast<void*>(from), to - from, MADV_HUGEPAGE);
  }
#endif
  return tensor;
}

Tensor empty(at::IntArrayRef shape, const Tensor& like) {
  return large_pages(at::empty(shape, like.options()));
}

constexpr int64_t kCacheBytes = 384 << 10; // what a block of rows with its matrices may take
constexpr int64_t kMostRows = 128;
constexpr int64_t kSmallWork = 200000; // multiply-adds that one thread does before another wakes up

// Rows of the batch that one thread takes through all steps at a time.
int64_t block_rows(int64_t batch, int64_t threads, int64_t bytes_per_row) {
  int64_t rows = (batch + threads - 1) / threads;
  int64_t most = kMostRows;
  if (bytes_per_row > 0) most = std::max<int64_t>(4, kCacheBytes / bytes_per_row);
  const int64_t share = rows;
  if (rows > most) {
    const int64_t blocks = (share + most - 1) / most;
    rows = (share + blocks - 1) / blocks;
  }
  return std::max<int64_t>(rows, 1);
}

template <class Function>
void for_blocks(int64_t batch, int64_t rows, const Function& run) {
  const int64_t blocks = (batch + rows - 1) / rows;
  at::parallel_for(0, blocks, 1, [&](int64_t begin, int64_t end) {
    for (int64_t block = begin; block < end; ++block)
      run(block * rows, std::min(batch, (block + 1) * rows), at::get_thread_num());
  });
}

// ---------------------------------------------------------------- arguments

struct Settings {
  bool reverse;
  int64_t lambda;
  double eta; // 0: none
  int64_t activation;
  bool update_gate;
};

void check(const Tensor& tensor, at::IntArrayRef shape, const Tensor& like, const char* name) {
  TORCH_CHECK(
      tensor.sizes() == shape, name, " has shape ", tensor.sizes(), ", expected ", shape);
  TORCH_CHECK(
      tensor.scalar_type() == like.scalar_type() && tensor.device().is_cpu(), name,
      " has another type or device than the input");
}

struct Sizes {
  int64_t steps, batch, inputs, size, gates;
};

Sizes check_arguments(
    const Tensor& x, const MaybeTensor& weight_ih, const MaybeTensor& bias, const Tensor& weight_hh,
    const Tensor& h0, const MaybeTensor& memory0, const MaybeTensor& padded, const Settings& s) {
  TORCH_CHECK(x.dim() == 3 && h0.dim() == 2, "x must have 3 dimensions and h 2");
  Sizes n{x.size(0), x.size(1), weight_ih ? x.size(2) : 0, h0.size(1), s.update_gate ? 2 : 1};
  check(h0, {n.batch, n.size}, x, "h");
  check(weight_hh, {n.gates * n.size, n.size}, x, "weight_hh");
  if (weight_ih)
    check(*weight_ih, {(n.gates + 1) * n.size, n.inputs}, x, "weight_ih");
  else
    check(x, {n.steps, n.batch, (n.gates + 1) * n.size}, x, "the projected input");
  if (bias) check(*bias, {(n.gates + 1) * n.size}, x, "bias");
  TORCH_CHECK(s.lambda == 0 || memory0, "lambda = 1 needs R");
  if (s.lambda) check(*memory0, {n.batch, n.size, n.size}, x, "R");
  if (padded)
    TORCH_CHECK(
        padded->sizes() == at::IntArrayRef({n.steps, n.batch}) &&
            padded->scalar_type() == at::kBool && padded->device().is_cpu(),
        "the padding mask must be (T, B), bool, on the CPU");
  TORCH_CHECK(n.steps > 0 && n.size > 0, "empty sequence");
  return n;
}

// What a tensor holds as it lies in memory: torch may negate when it reads.
Tensor plain(const Tensor& tensor) {
  return tensor.resolve_neg().contiguous();
}

// Rows in one piece.
Tensor whole_rows(const Tensor& any) {
  const Tensor tensor = any.resolve_neg();
  return tensor.size(-1) <= 1 || tensor.stride(-1) == 1 ? tensor : tensor.contiguous();
}

template <class T>
const T* data(const Tensor& tensor) {
  return tensor.data_ptr<T>();
}

template <class T>
T* out(const Tensor& tensor) {
  return tensor.defined() ? tensor.data_ptr<T>() : nullptr;
}

int64_t round_up(int64_t n, int64_t unit) {
  return (n + unit - 1) / unit * unit;
}

// (blocks * size) -> (blocks * ld), zero beyond size; null: all zero.
Tensor pad_bias(const MaybeTensor& bias, int64_t blocks, int64_t size, int64_t ld, const Tensor& x) {
  Tensor padded = at::zeros({blocks, ld}, x.options());
  if (bias) padded.narrow(1, 0, size).copy_(bias->view({blocks, size}));
  return padded;
}

template <class T>
void fill(
    Loop<T>& c, const Sizes& n, const Settings& s, const Kernels<T>& k, const Tensor& x,
    const Tensor& h0, const MaybeTensor& padded) {
  c.steps = n.steps;
  c.batch = n.batch;
  c.size = n.size;
  c.ld = round_up(n.size, k.width);
  c.gates = n.gates;
  c.inputs = n.inputs;
  c.reverse = s.reverse;
  c.lambda = int(s.lambda);
  c.activation = int(s.activation);
  c.eta = T(s.eta);
  c.x = data<T>(x);
  c.x_step = x.stride(0);
  c.x_row = x.stride(1);
  c.h0 = data<T>(h0);
  c.padded = padded ? padded->data_ptr<bool>() : nullptr;
  c.padded_step = padded ? padded->stride(0) : 0;
  c.padded_row = padded ? padded->stride(1) : 0;
}

// ---------------------------------------------------------------- forward

bool is_identity(const Tensor& memory) {
  return at::equal(
      memory, at::eye(memory.size(1), memory.options()).expand_as(memory));
}

// outputs, h, R, and for the backward pass: P, states, sums, embedded, scalars, updates.
template <class T>
std::vector<Tensor> forward_typed(
    Tensor x, MaybeTensor weight_ih, const MaybeTensor& bias, Tensor weight_hh, Tensor h0,
    MaybeTensor memory0, const MaybeTensor& padded, const Settings& s, bool keep) {
  const Sizes n = check_arguments(x, weight_ih, bias, weight_hh, h0, memory0, padded, s);
  const Kernels<T>& k = kernels<T>();
  x = whole_rows(x);
  h0 = plain(h0);
  weight_hh = plain(weight_hh);
  if (weight_ih) weight_ih = plain(*weight_ih);
  Forward<T> c{};
  fill<T>(c, n, s, k, x, h0, padded);

  Tensor outputs = empty({n.steps, n.batch, n.size}, x), h = at::empty({n.batch, n.size}, x.options());
  Tensor states, sums, embedded, scalars, updates, memory, frame;
  // Packing costs about 4 for every number of a row of the weights, and saves that much a product.
  c.few_rows = n.steps * n.batch * (n.size / 32 + 12) < 4 * n.size;
  c.in_place = s.lambda && !keep && n.steps <= 4;
  if (s.lambda) {
    memory0 = plain(*memory0);
    memory = empty({n.batch, n.size, n.size}, x);
    c.memory0 = data<T>(*memory0);
    c.start = !c.in_place && is_identity(*memory0) ? kFromIdentity : keep ? kTimesMemory : kFromMemory;
  }
  if (keep) {
    states = padded ? empty({n.steps, n.batch, n.size}, x) : outputs;
    sums = empty({n.steps, n.batch, n.gates * c.ld}, x);
    embedded = empty({n.steps, n.batch, c.ld}, x);
    scalars = at::empty({n.steps, n.batch, kScalars}, x.options());
    if (s.lambda) updates = empty({n.steps, n.batch, 3 * c.ld}, x);
  }
  c.outputs = out<T>(outputs);
  c.states = out<T>(states);
  c.sums = out<T>(sums);
  c.embedded = out<T>(embedded);
  c.scalars = out<T>(scalars);
  c.updates = out<T>(updates);
  c.h_last = out<T>(h);
  c.memory_last = out<T>(memory);

  const int64_t threads = at::get_num_threads();
  Tensor padded_bias, packed, packed_embed;
  if (weight_ih) {
    padded_bias = pad_bias(bias, n.gates + 1, n.size, c.ld, x);
    c.bias = data<T>(padded_bias);
    c.weight_ih = data<T>(*weight_ih);
  }
  const T* embed_rows = weight_ih ? c.weight_ih + n.gates * n.size * n.inputs : nullptr;
  if (c.few_rows) {
    c.weight_hh = data<T>(weight_hh);
    c.weight_embed = embed_rows;
  } else {
    packed = empty({(n.inputs + n.size) * n.gates * c.ld}, x);
    k.pack_rows(
        c.weight_ih, n.inputs, data<T>(weight_hh), n.size, n.gates, c.ld, out<T>(packed));
    c.weights = data<T>(packed);
    if (weight_ih) {
      packed_embed = at::empty({n.inputs * c.ld}, x.options());
      k.pack_rows(embed_rows, n.inputs, nullptr, n.size, 1, c.ld, out<T>(packed_embed));
      c.weight_embed = data<T>(packed_embed);
    }
  }

  const int64_t work = n.steps * n.batch * n.size * ((n.gates + 5 * s.lambda) * n.size + 3 * n.inputs);
  const int64_t rows = block_rows(
      n.batch, std::max<int64_t>(1, std::min(threads, work / kSmallWork)),
      s.lambda ? int64_t(n.size * c.ld * sizeof(T)) : 0);
  const int64_t scratch_size = round_up(k.forward_scratch(c, rows), 64);
  Tensor scratch = empty({threads, scratch_size}, x);
  for_blocks(n.batch, rows, [&](int64_t begin, int64_t end, int64_t thread) {
    k.forward(c, begin, end, out<T>(scratch) + thread * scratch_size);
  });
  if (keep && s.lambda) {
    frame = memory;
    if (c.start == kTimesMemory) memory = at::bmm(*memory0, frame);
  }
  return {outputs, h, memory, frame, states, sums, embedded, scalars, updates};
}

// ---------------------------------------------------------------- backward

// Gradients to x (or the projected input), weight_ih, bias, weight_hh, h0 and memory0.
template <class T>
std::vector<Tensor> backward_typed(
    const std::vector<MaybeTensor>& grads, const std::vector<bool>& needed, Tensor x,
    MaybeTensor weight_ih, const MaybeTensor& bias, Tensor weight_hh, Tensor h0, MaybeTensor memory0,
    const MaybeTensor& padded, const MaybeTensor& frame, const Tensor& states, const Tensor& sums,
    const Tensor& embedded, const Tensor& scalars, const MaybeTensor& updates, const Settings& s) {
  const Sizes n = check_arguments(x, weight_ih, bias, weight_hh, h0, memory0, padded, s);
  const Kernels<T>& k = kernels<T>();
  const auto options = x.options();
  x = whole_rows(x);
  h0 = plain(h0);
  weight_hh = plain(weight_hh);
  Backward<T> c{};
  fill<T>(c, n, s, k, x, h0, padded);
  TORCH_CHECK(sums.size(2) == n.gates * c.ld, "the instruction set has changed since the forward pass");
  c.states = out<T>(states);
  c.sums = out<T>(sums);
  c.embedded = out<T>(embedded);
  c.scalars = out<T>(scalars);
  c.past_first = needed[4];
  const int64_t blocks = n.gates + 1, row = blocks * c.ld;

  Tensor grad_outputs;
  if (grads[0]) {
    grad_outputs = grads[0]->resolve_neg();
    check(grad_outputs, {n.steps, n.batch, n.size}, x, "the gradient of the outputs");
    const bool constant = grad_outputs.stride(2) == 0;
    if (!constant) grad_outputs = whole_rows(grad_outputs);
    c.grad_outputs = data<T>(grad_outputs);
    c.grad_step = grad_outputs.stride(0);
    c.grad_row = grad_outputs.stride(1);
    c.grad_unit = constant ? 0 : 1;
  }
  Tensor grad_h = at::zeros({n.batch, c.ld}, options);
  if (grads[1]) grad_h.narrow(1, 0, n.size).copy_(*grads[1]);
  c.grad_h = out<T>(grad_h);

  Tensor matrix, skew, grad_memory;
  if (s.lambda) {
    const auto padded_rows = [&](const Tensor& from) {
      Tensor to = empty({n.batch, n.size, c.ld}, x);
      to.narrow(2, 0, n.size).copy_(from);
      to.narrow(2, n.size, c.ld - n.size).zero_();
      return to;
    };
    memory0 = memory0->contiguous();
    const bool identity = is_identity(*memory0);
    matrix = padded_rows(*frame);
    if (grads[2]) {
      const Tensor outer = at::bmm(*grads[2], frame->transpose(1, 2));
      if (needed[5]) grad_memory = padded_rows(outer);
      const Tensor pulled = identity ? outer : at::bmm(memory0->transpose(1, 2), outer);
      skew = padded_rows(pulled - pulled.transpose(1, 2));
    } else {
      skew = empty({n.batch, n.size, c.ld}, x).zero_();
      if (needed[5]) grad_memory = at::zeros({n.batch, n.size, c.ld}, options);
    }
    c.updates = out<T>(*updates);
    if (!identity) c.memory0 = data<T>(*memory0);
    c.memory = out<T>(matrix);
    c.skew = out<T>(skew);
    c.grad_memory = out<T>(grad_memory);
  }

  const int64_t wide_x = weight_ih ? round_up(n.inputs + 1, k.width) : 0;
  Tensor packed, packed_x, grad_x;
  packed = empty({n.gates * c.ld * c.ld}, x);
  k.pack_columns(data<T>(weight_hh), n.size, c.ld, n.size, n.gates, c.ld, out<T>(packed));
  c.weights = data<T>(packed);
  if (needed[0]) grad_x = empty(x.sizes(), x);
  if (weight_ih) {
    weight_ih = plain(*weight_ih);
    if (needed[0]) {
      packed_x = at::empty({row * wide_x}, options);
      k.pack_columns(data<T>(*weight_ih), n.inputs, wide_x, n.size, blocks, c.ld, out<T>(packed_x));
      c.weights_x = data<T>(packed_x);
      c.grad_x = out<T>(grad_x);
      c.grad_x_step = grad_x.stride(0);
      c.grad_x_row = grad_x.stride(1);
    }
  } else {
    c.grad_projected = out<T>(grad_x);
  }

  // A chunk of steps at a time, so that what goes into the products of the weights' gradient stays
  // in the cache.
  const int64_t most = std::max<int64_t>(
      1, (int64_t(16) << 20) / std::max<int64_t>(1, n.batch * row * int64_t(sizeof(T))));
  const int64_t wanted =
      std::max<int64_t>(s.lambda ? 32 : 4, 1024 / std::max<int64_t>(n.batch, 1) + 1);
  const int64_t chunk = std::min({n.steps, most, wanted});

  Tensor grad_weights, packed_grads, packed_inputs;
  const int64_t wide_h = round_up(c.ld, k.panel);
  if (needed[1] || needed[2] || needed[3]) {
    c.columns = weight_ih ? row : n.gates * c.ld;
    c.grad_weights_ld = wide_h + round_up(wide_x, k.panel);
    const int64_t height = round_up(c.columns, k.tile_rows);
    grad_weights = empty({height, c.grad_weights_ld}, x).zero_();
    // An odd number: at a power of 2 all panels would fall into the same lines of the cache.
    c.depth = chunk * n.batch | 1;
    packed_grads = empty({height, c.depth}, x);
    packed_inputs = empty({c.grad_weights_ld, c.depth}, x);
    c.grad_weights = out<T>(grad_weights);
    c.packed_grads = out<T>(packed_grads);
    c.packed_inputs = out<T>(packed_inputs);
  }

  const int64_t threads = at::get_num_threads();
  const int64_t work =
      chunk * n.batch * n.size * ((n.gates + 9 * s.lambda) * n.size + n.inputs);
  const int64_t used = std::max<int64_t>(1, std::min(threads, work / kSmallWork));
  const int64_t rows =
      block_rows(n.batch, used, s.lambda ? int64_t(2 * n.size * c.ld * sizeof(T)) : 0);
  const int64_t scratch_size = round_up(k.backward_scratch(c, rows), 64);
  Tensor scratch = at::empty({threads, scratch_size}, options);

  for (int64_t last = n.steps; last > 0;) {
    const int64_t first = std::max<int64_t>(0, last - chunk);
    for_blocks(n.batch, rows, [&](int64_t begin, int64_t end, int64_t thread) {
      k.backward(c, first, last, begin, end, out<T>(scratch) + thread * scratch_size);
    });
    if (c.grad_weights)
      at::parallel_for(0, used, 1, [&](int64_t begin, int64_t end) {
        for (int64_t part = begin; part < end; ++part)
          k.weight_gradient(c, (last - first) * n.batch, part, used);
      });
    last = first;
  }

  if (c.grad_weights) // tile after tile -> rows
    grad_weights = grad_weights.view({-1, c.grad_weights_ld / k.panel, k.tile_rows, k.panel})
                       .transpose(1, 2)
                       .reshape({-1, c.grad_weights_ld});
  const auto gradient = [&](int64_t parts, int64_t from, int64_t columns) {
    return grad_weights.narrow(0, 0, parts * c.ld)
        .narrow(1, from, columns)
        .reshape({parts, c.ld, columns})
        .narrow(1, 0, n.size)
        .reshape({parts * n.size, columns});
  };
  Tensor grad_weight_ih, grad_bias, grad_weight_hh, grad_h0, grad_memory0;
  if (needed[1]) grad_weight_ih = gradient(blocks, wide_h, n.inputs);
  if (needed[2]) grad_bias = gradient(blocks, wide_h + n.inputs, 1).view({blocks * n.size});
  if (needed[3]) grad_weight_hh = gradient(n.gates, 0, n.size);
  if (needed[4]) grad_h0 = grad_h.narrow(1, 0, n.size).contiguous();
  if (needed[5]) grad_memory0 = grad_memory.narrow(2, 0, n.size).contiguous();
  return {grad_x, grad_weight_ih, grad_bias, grad_weight_hh, grad_h0, grad_memory0};
}

std::vector<Tensor> forward(
    const Tensor& x, const MaybeTensor& weight_ih, const MaybeTensor& bias, const Tensor& weight_hh,
    const Tensor& h0, const MaybeTensor& memory0, const MaybeTensor& padded, bool reverse,
    int64_t lambda, double eta, int64_t activation, bool update_gate, bool keep) {
  const c10::NoGradGuard guard;
  const Settings s{reverse, lambda, eta, activation, update_gate};
  if (x.scalar_type() == at::kDouble)
    return forward_typed<double>(x, weight_ih, bias, weight_hh, h0, memory0, padded, s, keep);
  TORCH_CHECK(x.scalar_type() == at::kFloat, "float32 and float64 only");
  return forward_typed<float>(x, weight_ih, bias, weight_hh, h0, memory0, padded, s, keep);
}

std::vector<Tensor> backward(
    const std::vector<MaybeTensor>& grads, const std::vector<bool>& needed, const Tensor& x,
    const MaybeTensor& weight_ih, const MaybeTensor& bias, const Tensor& weight_hh, const Tensor& h0,
    const MaybeTensor& memory0, const MaybeTensor& padded, const MaybeTensor& frame,
    const Tensor& states, const Tensor& sums, const Tensor& embedded, const Tensor& scalars,
    const MaybeTensor& updates, bool reverse, int64_t lambda, double eta, int64_t activation,
    bool update_gate) {
  const c10::NoGradGuard guard;
  const Settings s{reverse, lambda, eta, activation, update_gate};
  TORCH_CHECK(grads.size() == 3 && needed.size() == 6, "wrong number of gradients");
  if (x.scalar_type() == at::kDouble)
    return backward_typed<double>(
        grads, needed, x, weight_ih, bias, weight_hh, h0, memory0, padded, frame, states, sums,
        embedded, scalars, updates, s);
  return backward_typed<float>(
      grads, needed, x, weight_ih, bias, weight_hh, h0, memory0, padded, frame, states, sums, embedded,
      scalars, updates, s);
}

} // namespace
} // namespace rum

PYBIND11_MODULE(_C, m) {
  m.doc() = "RUM's loop on the CPU";
  m.def("forward", &rum::forward, py::call_guard<py::gil_scoped_release>());
  m.def("backward", &rum::backward, py::call_guard<py::gil_scoped_release>());
  m.def("instruction_set", &rum::instruction_set);
  m.def("set_instruction_set", &rum::set_instruction_set);
}
