// RUM's loop over time for a block of batch rows, on vectors of RUM_VECTOR_BYTES.
//
// Included once for each instruction set, in a file of its own that defines RUM_ISA. Everything here
// has internal linkage and nothing of the C++ library is instantiated, so that no code for one
// instruction set can end up in the place of another's.
//
// With e and tau the rows a and b of the rotation, p = e/|e|, q = tau/|tau|, w = p + q, s = w/|w|:
//
//   Rotation(e, tau) = H_s H_p = I - k w w' + 2 q p',   k = 2/|w|^2,   H_x = I - 2 x x'
//
// lambda = 0, from five dot products (al = p.h, be = q.h, c = p.q, n2 = |w|^2 = 2 (1 + c)):
//   Rotation h = h - k (al + be) w + 2 al q
// and backward, with rho the gradient to it, gp = p.rho, gq = q.rho, G = gp + gq, W = al + be:
//   dh   = y = rho - k G w + 2 gq p
//   s    = gq W + al G - n2 al gq
//   de   = -(k/|e|)   [W y + (G - n2 gq) h - s p]
//   dtau =  (k/|tau|) [(n2 al - W) y - G h + s (2 p + q)]
//
// lambda = 1, R_t = R_0 P_t with P_t = P_{t-1} H_s H_p = P_{t-1} + c1 p' + c2 s' orthogonal:
//   c2 = -2 P s,   c1 = -2 P p + 4 (p.s) P s   (P = P_{t-1}),   R_t h = R_0 (P_t h)
// Backward, with rho the gradient to R_t h: the gradient to the rotations enters through the skew
// matrix P' (R_0' dL/dR_t) - (R_0' dL/dR_t)' P alone, and S, which is P_t times it times P_t',
// gets only added to:
//   r = R_0' rho;  S += r (P_t h)' - (P_t h) r';  P_t p = c1 / 2;  P_t s = d c1 + e c2
//   [y, zp, zx] = P_t' [r, S P_t p, S P_t s];  zs = zx - 2 (p.s) zp + 2 (zp.s) p;  dh = y
//   gw = -2 zs / |w|;  de = [-2 zp + gw - p (p.gw)] / |e|;  dtau = [gw - q (q.gw)] / |tau|
//   P_{t-1} = P_t - c1 p' - c2 s';  dL/dR_0 += rho (P_t h)'
#include <math.h>
#include <stdint.h>
#include <string.h>

#include "rum_loop.h"

#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic ignored "-Wpsabi"
#endif
#define RUM_INLINE static inline __attribute__((always_inline))
#if defined(__clang__)
#define RUM_UNROLL _Pragma("clang loop unroll(full)")
#else
#define RUM_UNROLL _Pragma("GCC unroll 16")
#endif

namespace rum {
namespace RUM_ISA {
namespace {

typedef int64_t Int;

// ---------------------------------------------------------------- vectors

template <class T>
struct Vec;

template <>
struct Vec<float> {
  typedef float V __attribute__((vector_size(RUM_VECTOR_BYTES)));
  typedef int32_t I __attribute__((vector_size(RUM_VECTOR_BYTES)));
  typedef float U __attribute__((vector_size(RUM_VECTOR_BYTES), aligned(4), may_alias));
  typedef float Quarter __attribute__((vector_size(16)));
};

template <>
struct Vec<double> {
  typedef double V __attribute__((vector_size(RUM_VECTOR_BYTES)));
  typedef int64_t I __attribute__((vector_size(RUM_VECTOR_BYTES)));
  typedef double U __attribute__((vector_size(RUM_VECTOR_BYTES), aligned(8), may_alias));
  typedef double Quarter __attribute__((vector_size(16)));
};

template <class T>
struct Size {
  static constexpr Int width = RUM_VECTOR_BYTES / sizeof(T);
  static constexpr Int panel = 2 * width; // columns of a packed panel
};

template <class T>
RUM_INLINE typename Vec<T>::V load(const T* p) {
  return *reinterpret_cast<const typename Vec<T>::U*>(p);
}

template <class T>
RUM_INLINE void store(T* p, typename Vec<T>::V v) {
  *reinterpret_cast<typename Vec<T>::U*>(p) = v;
}

template <class T>
RUM_INLINE T sum(typename Vec<T>::V v) {
  constexpr int quarters = RUM_VECTOR_BYTES / 16, lanes = 16 / sizeof(T);
  typename Vec<T>::Quarter part[quarters];
  memcpy(part, &v, sizeof(v));
  if (quarters == 4) {
    part[0] += part[2];
    part[1 % quarters] += part[3 % quarters];
  }
  if (quarters >= 2) part[0] += part[1 % quarters];
  if (lanes == 4) return (part[0][0] + part[0][2 % lanes]) + (part[0][1] + part[0][3 % lanes]);
  return part[0][0] + part[0][1];
}

template <class T>
struct Limits;
template <>
struct Limits<float> {
  static constexpr float eps = 1.1920928955078125e-07f, root_eps = 3.4526698300124393e-04f;
};
template <>
struct Limits<double> {
  static constexpr double eps = 2.220446049250313e-16, root_eps = 1.4901161193847656e-08;
};

RUM_INLINE float root(float x) {
  return __builtin_sqrtf(x);
}
RUM_INLINE double root(double x) {
  return __builtin_sqrt(x);
}

// e^x for x in [-87, 88]; NaN stays NaN.
RUM_INLINE Vec<float>::V exp_(Vec<float>::V x) {
  typedef Vec<float>::V V;
  typedef Vec<float>::I I;
  const V given = x;
  const float shift = 12582912.0f; // 1.5 * 2^23: adding it rounds to an integer in the low bits
  V n = x * 1.44269504088896341f + shift;
  const I bits = reinterpret_cast<I>(n) << 23;
  n = n - shift;
  x = x - n * 0.693359375f;
  x = x + n * 2.12194440e-4f;
  V y = x * 1.9875691500e-4f + 1.3981999507e-3f;
  y = y * x + 8.3334519073e-3f;
  y = y * x + 4.1665795894e-2f;
  y = y * x + 1.6666665459e-1f;
  y = y * x + 5.0000001201e-1f;
  y = y * (x * x) + x + 1.0f;
  return given == given ? reinterpret_cast<V>(reinterpret_cast<I>(y) + bits) : given;
}

RUM_INLINE Vec<float>::V sigmoid(Vec<float>::V x) {
  const Vec<float>::V limit = Vec<float>::V{} + 87.0f;
  x = x > limit ? limit : x;
  x = x < -limit ? -limit : x;
  return 1.0f / (1.0f + exp_(-x));
}

RUM_INLINE Vec<float>::V tanh_(Vec<float>::V x) {
  typedef Vec<float>::V V;
  typedef Vec<float>::I I;
  const V size = reinterpret_cast<V>(reinterpret_cast<I>(x) & 0x7fffffff);
  const V limit = V{} + 43.0f;
  const V clamped = size > limit ? limit : size;
  const V large = 1.0f - 2.0f / (exp_(clamped + clamped) + 1.0f);
  const V z = x * x;
  V small = z * -5.70498872745e-3f + 2.06390887954e-2f;
  small = small * z - 5.37397155531e-2f;
  small = small * z + 1.33314422036e-1f;
  small = small * z - 3.33332819422e-1f;
  small = small * z * x + x;
  const V sign = reinterpret_cast<V>(reinterpret_cast<I>(x) & int32_t(0x80000000u));
  const V signed_large = reinterpret_cast<V>(reinterpret_cast<I>(large) | reinterpret_cast<I>(sign));
  return size > 0.625f ? signed_large : small;
}

RUM_INLINE Vec<double>::V sigmoid(Vec<double>::V x) {
  for (Int i = 0; i < Size<double>::width; ++i) x[i] = 1.0 / (1.0 + exp(-x[i]));
  return x;
}

RUM_INLINE Vec<double>::V tanh_(Vec<double>::V x) {
  for (Int i = 0; i < Size<double>::width; ++i) x[i] = tanh(x[i]);
  return x;
}

template <class T>
RUM_INLINE typename Vec<T>::V magnitude(typename Vec<T>::V x) {
  const typename Vec<T>::V zero = {};
  return x < zero ? -x : x;
}

template <class T, int A>
RUM_INLINE typename Vec<T>::V activate(typename Vec<T>::V z) {
  const typename Vec<T>::V zero = {};
  switch (A) {
    case kRelu: return z < zero ? zero : z;
    case kTanh: return tanh_(z);
    case kSigmoid: return sigmoid(z);
    case kSoftsign: return z / (magnitude<T>(z) + T(1));
    default: return z;
  }
}

// f'(z) from f(z).
template <class T, int A>
RUM_INLINE typename Vec<T>::V slope(typename Vec<T>::V f) {
  const typename Vec<T>::V zero = {};
  switch (A) {
    case kRelu: return f > zero ? zero + T(1) : zero;
    case kTanh: return T(1) - f * f;
    case kSigmoid: return f * (T(1) - f);
    case kSoftsign: {
      const typename Vec<T>::V rest = T(1) - magnitude<T>(f);
      return rest * rest;
    }
    default: return zero + T(1);
  }
}

// ---------------------------------------------------------------- products

// c = (c or bias) + a1 b1 + a2 b2 for R rows and V vectors of columns; b1 and b2 lie one after the
// other in one packed panel.
template <class T, int R, int V>
static void tile(
    const T* a1, Int lda1, Int k1, const T* a2, Int lda2, Int k2, const T* b, const T* bias, T* c,
    Int ldc) {
  constexpr Int width = Size<T>::width;
  typename Vec<T>::V acc[R][V];
  RUM_UNROLL
  for (int i = 0; i < R; ++i) {
    RUM_UNROLL
    for (int j = 0; j < V; ++j) acc[i][j] = load(bias ? bias + j * width : c + i * ldc + j * width);
  }
  const T* a = a1;
  Int lda = lda1;
  for (int part = 0; part < 2; ++part) {
    const Int depth = part ? k2 : k1;
    for (Int k = 0; k < depth; ++k) {
      typename Vec<T>::V column[V];
      RUM_UNROLL
      for (int j = 0; j < V; ++j) column[j] = load(b + j * width);
      b += V * width;
      RUM_UNROLL
      for (int i = 0; i < R; ++i) {
        RUM_UNROLL
        for (int j = 0; j < V; ++j) acc[i][j] += column[j] * a[i * lda + k];
      }
    }
    a = a2;
    lda = lda2;
  }
  RUM_UNROLL
  for (int i = 0; i < R; ++i) {
    RUM_UNROLL
    for (int j = 0; j < V; ++j) store(c + i * ldc + j * width, acc[i][j]);
  }
}

template <class T, int R, int V>
struct TileRows {
  static void run(
      Int rows, const T* a1, Int lda1, Int k1, const T* a2, Int lda2, Int k2, const T* b,
      const T* bias, T* c, Int ldc) {
    if (rows == R)
      tile<T, R, V>(a1, lda1, k1, a2, lda2, k2, b, bias, c, ldc);
    else
      TileRows<T, R - 1, V>::run(rows, a1, lda1, k1, a2, lda2, k2, b, bias, c, ldc);
  }
};
template <class T, int V>
struct TileRows<T, 0, V> {
  static void run(
      Int, const T*, Int, Int, const T*, Int, Int, const T*, const T*, T*, Int) {}
};

// The same for all rows and columns; columns a multiple of the vector width.
template <class T>
static void product(
    Int rows, const T* a1, Int lda1, Int k1, const T* a2, Int lda2, Int k2, const T* packed,
    Int columns, const T* bias, T* c, Int ldc) {
  constexpr Int width = Size<T>::width, panel = Size<T>::panel;
  const Int groups = (rows + RUM_TILE_ROWS - 1) / RUM_TILE_ROWS;
  for (Int j = 0; j < columns; j += panel) {
    const bool whole = columns - j >= panel;
    Int row = 0;
    for (Int group = 0; group < groups; ++group) {
      const Int end = rows * (group + 1) / groups;
      auto run = whole ? TileRows<T, RUM_TILE_ROWS, 2>::run : TileRows<T, RUM_TILE_ROWS, 1>::run;
      run(end - row, k1 ? a1 + row * lda1 : a1, lda1, k1, a2 + row * lda2, lda2, k2, packed,
          bias ? bias + j : nullptr, c + row * ldc + j, ldc);
      row = end;
    }
    packed += (k1 + k2) * (whole ? panel : width);
  }
}

template <class T>
static void pack_rows(
    const T* ih, Int inputs, const T* hh, Int size, Int gates, Int ld, T* packed) {
  constexpr Int panel = Size<T>::panel;
  const Int columns = gates * ld;
  for (Int j = 0; j < columns; j += panel) {
    const Int wide = columns - j < panel ? columns - j : panel;
    for (Int i = 0; i < wide; ++i) {
      const Int gate = (j + i) / ld, unit = (j + i) % ld, row = gate * size + unit;
      T* to = packed + i;
      for (Int k = 0; k < inputs; ++k, to += wide) *to = unit < size ? ih[row * inputs + k] : T(0);
      for (Int k = 0; hh && k < size; ++k, to += wide) *to = unit < size ? hh[row * size + k] : T(0);
    }
    packed += (inputs + (hh ? size : 0)) * wide;
  }
}

template <class T>
static void pack_columns(
    const T* weights, Int columns, Int wide, Int size, Int blocks, Int ld, T* packed) {
  constexpr Int panel = Size<T>::panel;
  for (Int j = 0; j < wide; j += panel) {
    const Int width = wide - j < panel ? wide - j : panel;
    const Int full = columns - j < 0 ? 0 : columns - j < width ? columns - j : width;
    for (Int block = 0; block < blocks; ++block)
      for (Int unit = 0; unit < ld; ++unit, packed += width) {
        const Int filled = unit < size ? full : 0;
        const T* from = weights + (block * size + unit) * columns + j;
        for (Int i = 0; i < filled; ++i) packed[i] = from[i];
        for (Int i = filled; i < width; ++i) packed[i] = 0;
      }
  }
}

// One row of a matrix for tile_transposed, which takes `P` columns at a time, `stride` apart.
template <class T, int P>
static void pack_row(const T* row, Int columns, Int stride, T* to) {
  for (; columns >= P; columns -= P, row += P, to += stride) memcpy(to, row, P * sizeof(T));
  if (columns > 0) {
    for (Int i = 0; i < columns; ++i) to[i] = row[i];
    for (Int i = columns; i < P; ++i) to[i] = 0;
  }
}

// c (R rows, V vectors, in one piece) += a' b, both packed.
template <class T, int R, int V>
static void tile_transposed(Int depth, const T* a, const T* b, T* c) {
  constexpr Int width = Size<T>::width;
  typename Vec<T>::V acc[R][V];
  RUM_UNROLL
  for (int i = 0; i < R; ++i) {
    RUM_UNROLL
    for (int j = 0; j < V; ++j) acc[i][j] = load(c + (i * V + j) * width);
  }
  for (Int k = 0; k < depth; ++k) {
    typename Vec<T>::V right[V];
    RUM_UNROLL
    for (int j = 0; j < V; ++j) right[j] = load(b + j * width);
    RUM_UNROLL
    for (int i = 0; i < R; ++i) {
      RUM_UNROLL
      for (int j = 0; j < V; ++j) acc[i][j] += right[j] * a[i];
    }
    a += R;
    b += V * width;
  }
  RUM_UNROLL
  for (int i = 0; i < R; ++i) {
    RUM_UNROLL
    for (int j = 0; j < V; ++j) store(c + (i * V + j) * width, acc[i][j]);
  }
}

// c += a w' with w as it is, (columns, depth): for so few rows that packing w would cost more.
template <class T, int R, int C>
static void dot_tile(const T* a, Int lda, Int depth, const T* w, Int ldw, T* c, Int ldc) {
  constexpr Int width = Size<T>::width;
  typename Vec<T>::V acc[R][C] = {};
  Int k = 0;
  for (; k + width <= depth; k += width) {
    typename Vec<T>::V left[R];
    RUM_UNROLL
    for (int i = 0; i < R; ++i) left[i] = load(a + i * lda + k);
    RUM_UNROLL
    for (int j = 0; j < C; ++j) {
      const typename Vec<T>::V right = load(w + j * ldw + k);
      RUM_UNROLL
      for (int i = 0; i < R; ++i) acc[i][j] += left[i] * right;
    }
  }
  for (int i = 0; i < R; ++i)
    for (int j = 0; j < C; ++j) {
      T total = sum<T>(acc[i][j]);
      for (Int rest = k; rest < depth; ++rest) total += a[i * lda + rest] * w[j * ldw + rest];
      c[i * ldc + j] += total;
    }
}

template <class T>
static void dot_product(
    Int rows, const T* a, Int lda, Int depth, const T* w, Int columns, T* c, Int ldc) {
  for (Int j = 0; j < columns;) {
    const Int wide = columns - j >= 4 ? 4 : 1;
    for (Int i = 0; i < rows;) {
      const Int left = rows - i;
      const Int high = left == 4 ? 2 : left < 3 ? left : 3;
      const T* from = a + i * lda;
      T* to = c + i * ldc + j;
      const T* right = w + j * depth;
      if (wide == 4) {
        if (high == 3) dot_tile<T, 3, 4>(from, lda, depth, right, depth, to, ldc);
        if (high == 2) dot_tile<T, 2, 4>(from, lda, depth, right, depth, to, ldc);
        if (high == 1) dot_tile<T, 1, 4>(from, lda, depth, right, depth, to, ldc);
      } else {
        for (Int r = 0; r < high; ++r)
          dot_tile<T, 1, 1>(from + r * lda, lda, depth, right, depth, to + r * ldc, ldc);
      }
      i += high;
    }
    j += wide;
  }
}

// ---------------------------------------------------------------- rows

template <class T>
RUM_INLINE void zero(T* to, Int from, Int end) {
  for (Int i = from; i < end; ++i) to[i] = 0;
}

template <class T>
RUM_INLINE void copy_padded(T* to, const T* from, Int size, Int ld) {
  memcpy(to, from, size * sizeof(T));
  zero(to, size, ld);
}

template <class T>
RUM_INLINE T dot(Int ld, const T* a, const T* b) {
  typename Vec<T>::V acc = {};
  for (Int i = 0; i < ld; i += Size<T>::width) acc += load(a + i) * load(b + i);
  return sum<T>(acc);
}

// v -= 2 (x . v) x
template <class T>
RUM_INLINE void reflect(Int ld, const T* x, T* v) {
  const T twice = 2 * dot(ld, x, v);
  for (Int i = 0; i < ld; i += Size<T>::width) store(v + i, load(v + i) - load(x + i) * twice);
}

// The unit vectors p and s of H_s H_p from e and tau, as the scalars say; zero for the identity.
template <class T>
static void plane(Int size, Int ld, const T* e, const T* tau, const T* scalars, T* p, T* s) {
  const T inverse_e = scalars[kInverseE], inverse_tau = scalars[kInverseTau];
  const T inverse_w = scalars[kNormW2];
  const int kind = int(scalars[kKind]);
  if (kind == kIdentity) {
    zero(p, 0, ld);
    zero(s, 0, ld);
    return;
  }
  for (Int i = 0; i < ld; i += Size<T>::width) {
    const typename Vec<T>::V unit = load(e + i) * inverse_e;
    store(p + i, unit);
    store(s + i, (unit + load(tau + i) * inverse_tau) * inverse_w);
  }
  if (kind == kHalfTurn) {
    Int least = 0;
    for (Int i = 1; i < size; ++i)
      if (fabs(double(p[i])) < fabs(double(p[least]))) least = i;
    const T along = p[least];
    for (Int i = 0; i < ld; ++i) s[i] = (i == least ? T(1) : T(0)) - along * p[i];
    const T norm = root(dot(ld, s, s));
    const T inverse = T(1) / (norm < T(0.5) ? T(0.5) : norm);
    for (Int i = 0; i < ld; ++i) s[i] *= inverse;
  }
}

// Fill in kKind, kInverseE, kInverseTau and, with |w| taken from the vector, kNormW2 = 1 / |w|.
template <class T>
static void measure(
    Int size, Int ld, const T* e, const T* tau, T square_e, T square_tau, T* scalars) {
  const T norm_e = root(square_e), norm_tau = root(square_tau);
  const T floor = Limits<T>::eps * Limits<T>::eps;
  const bool turns = size > 1 && norm_e > floor && norm_tau > floor;
  scalars[kKind] = turns ? kFromVectors : kIdentity;
  scalars[kInverseE] = turns ? 1 / norm_e : T(0);
  scalars[kInverseTau] = turns ? 1 / norm_tau : T(0);
  scalars[kNormW2] = 0;
  if (!turns) return;
  const T inverse_e = scalars[kInverseE], inverse_tau = scalars[kInverseTau];
  typename Vec<T>::V acc = {};
  for (Int i = 0; i < ld; i += Size<T>::width) {
    const typename Vec<T>::V w = load(e + i) * inverse_e + load(tau + i) * inverse_tau;
    acc += w * w;
  }
  const T norm_w = root(sum<T>(acc));
  if (norm_w < Limits<T>::root_eps)
    scalars[kKind] = kHalfTurn;
  else
    scalars[kNormW2] = 1 / norm_w;
}

// Coefficients of Rotation h = h + e[0] e + e[1] tau from the scalars (kFromDots).
template <class T>
RUM_INLINE void coefficients(const T* scalars, T* on_e, T* on_tau) {
  const T k = 2 / scalars[kNormW2];
  const T along = k * (scalars[kAlpha] + scalars[kBeta]);
  *on_e = -along * scalars[kInverseE];
  *on_tau = (2 * scalars[kAlpha] - along) * scalars[kInverseTau];
}

// lambda = 0: how e + Rotation h is made: base + on_e e + on_tau tau, where base is h or `rotated`.
template <class T>
static const T* turn(
    Int size, Int ld, const T* e, const T* tau, const T* h, T* scalars, T* p, T* s, T* rotated,
    T* on_e, T* on_tau) {
  typedef typename Vec<T>::V V;
  V ee = {}, tt = {}, et = {}, eh = {}, th = {};
  for (Int i = 0; i < ld; i += Size<T>::width) {
    const V a = load(e + i), b = load(tau + i), c = load(h + i);
    ee += a * a;
    tt += b * b;
    et += a * b;
    eh += a * c;
    th += b * c;
  }
  const T norm_e = root(sum<T>(ee)), norm_tau = root(sum<T>(tt));
  const T floor = Limits<T>::eps * Limits<T>::eps;
  *on_e = *on_tau = 0;
  if (!(size > 1 && norm_e > floor && norm_tau > floor)) {
    for (int i = 0; i < kInverseH; ++i) scalars[i] = 0;
    scalars[kKind] = kIdentity;
    return h;
  }
  const T inverse_e = 1 / norm_e, inverse_tau = 1 / norm_tau;
  const T square = 2 * (1 + sum<T>(et) * inverse_e * inverse_tau);
  if (square >= T(0.125)) {
    scalars[kKind] = kFromDots;
    scalars[kInverseE] = inverse_e;
    scalars[kInverseTau] = inverse_tau;
    scalars[kNormW2] = square;
    scalars[kAlpha] = sum<T>(eh) * inverse_e;
    scalars[kBeta] = sum<T>(th) * inverse_tau;
    coefficients(scalars, on_e, on_tau);
    return h;
  }
  measure(size, ld, e, tau, sum<T>(ee), sum<T>(tt), scalars);
  plane(size, ld, e, tau, scalars, p, s);
  memcpy(rotated, h, ld * sizeof(T));
  reflect(ld, p, rotated);
  reflect(ld, s, rotated);
  return rotated;
}

// The same from the scalars of the forward pass.
template <class T>
static const T* turn_again(
    Int size, Int ld, const T* e, const T* tau, const T* h, const T* scalars, T* p, T* s, T* rotated,
    T* on_e, T* on_tau) {
  const int kind = int(scalars[kKind]);
  *on_e = *on_tau = 0;
  if (kind == kIdentity) return h;
  if (kind == kFromDots) {
    coefficients(scalars, on_e, on_tau);
    return h;
  }
  plane(size, ld, e, tau, scalars, p, s);
  memcpy(rotated, h, ld * sizeof(T));
  reflect(ld, p, rotated);
  reflect(ld, s, rotated);
  return rotated;
}

// h <- u h + (1 - u) f(e + base + on_e e + on_tau tau), u <- sigmoid(u); u null: no gate.
template <class T, int A>
struct NewState {
  static void run(
      Int ld, const T* e, const T* tau, T* u, const T* base, T on_e, T on_tau, T* h) {
    typedef typename Vec<T>::V V;
    const V zeros = {};
    for (Int i = 0; i < ld; i += Size<T>::width) {
      const V a = load(e + i);
      const V z = a + (load(base + i) + a * on_e + load(tau + i) * on_tau);
      V next = activate<T, A>(z);
      if (u) {
        const V gate = sigmoid(load(u + i));
        store(u + i, gate);
        next = gate * load(h + i) + (T(1) - gate) * next;
      }
      next = magnitude<T>(next) <= T(1e-30) ? zeros : next;
      store(h + i, next);
    }
  }
};

// grad: to the new state, overwritten by what reaches h past the candidate. Also rho, the gradient
// to e + Rotation h, that to u before the sigmoid, and the products e.rho and tau.rho.
template <class T, int A>
struct CandidateGradient {
  static void run(
      Int ld, const T* e, const T* tau, const T* u, const T* base, T on_e, T on_tau, const T* h,
      T* grad, T* rho, T* grad_u, T* e_rho, T* tau_rho) {
    typedef typename Vec<T>::V V;
    const V zeros = {};
    V er = {}, tr = {};
    for (Int i = 0; i < ld; i += Size<T>::width) {
      const V a = load(e + i), b = load(tau + i);
      const V z = a + (load(base + i) + a * on_e + b * on_tau);
      const V candidate = activate<T, A>(z);
      V g = load(grad + i), r;
      if (u) {
        const V gate = load(u + i), old = load(h + i);
        const V next = gate * old + (T(1) - gate) * candidate;
        g = magnitude<T>(next) <= T(1e-30) ? zeros : g;
        const V through = g * (T(1) - gate);
        r = through * slope<T, A>(candidate);
        store(grad_u + i, through * gate * (old - candidate));
        store(grad + i, g * gate);
      } else {
        g = magnitude<T>(candidate) <= T(1e-30) ? zeros : g;
        r = g * slope<T, A>(candidate);
        store(grad + i, zeros);
      }
      store(rho + i, r);
      er += a * r;
      tr += b * r;
    }
    *e_rho = sum<T>(er);
    *tau_rho = sum<T>(tr);
  }
};

template <template <class, int> class Function, class T>
static auto select(int activation) -> decltype(&Function<T, kNone>::run) {
  switch (activation) {
    case kRelu: return Function<T, kRelu>::run;
    case kTanh: return Function<T, kTanh>::run;
    case kSigmoid: return Function<T, kSigmoid>::run;
    case kSoftsign: return Function<T, kSoftsign>::run;
    default: return Function<T, kNone>::run;
  }
}

// lambda = 0: gradients to tau and e, and that to h added, from rho.
template <class T>
static void turn_gradient(
    Int ld, const T* e, const T* tau, const T* h, const T* scalars, const T* rho, T e_rho, T tau_rho,
    const T* p, const T* s, T* work, T* grad_h, T* grad_tau, T* grad_e) {
  typedef typename Vec<T>::V V;
  constexpr Int width = Size<T>::width;
  const int kind = int(scalars[kKind]);
  const T inverse_e = scalars[kInverseE], inverse_tau = scalars[kInverseTau];
  if (kind == kFromDots) {
    const T square = scalars[kNormW2], alpha = scalars[kAlpha];
    const T k = 2 / square, along = alpha + scalars[kBeta];
    const T gp = e_rho * inverse_e, gq = tau_rho * inverse_tau, both = gp + gq;
    const T mixed = gq * along + alpha * both - square * alpha * gq;
    const T y_e = (2 * gq - k * both) * inverse_e, y_tau = -k * both * inverse_tau;
    const T ke = -k * inverse_e, kt = k * inverse_tau;
    const T e_y = ke * along, e_h = ke * (both - square * gq), e_e = -ke * mixed * inverse_e;
    const T t_y = kt * (square * alpha - along), t_h = -kt * both;
    const T t_e = 2 * kt * mixed * inverse_e, t_t = kt * mixed * inverse_tau;
    for (Int i = 0; i < ld; i += width) {
      const V a = load(e + i), b = load(tau + i), c = load(h + i), r = load(rho + i);
      const V y = r + a * y_e + b * y_tau;
      store(grad_h + i, load(grad_h + i) + y);
      store(grad_e + i, r + y * e_y + c * e_h + a * e_e);
      store(grad_tau + i, y * t_y + c * t_h + a * t_e + b * t_t);
    }
    return;
  }
  if (kind == kIdentity) {
    for (Int i = 0; i < ld; i += width) {
      const V r = load(rho + i);
      store(grad_h + i, load(grad_h + i) + r);
      store(grad_e + i, r);
      store(grad_tau + i, V{});
    }
    return;
  }
  // v = H_p h, x = H_s rho; dL/ds = -2 (s.rho) v - 2 (s.v) rho, dL/dp = -2 (p.x) h - 2 (p.h) x.
  T *v = work, *x = work + ld;
  memcpy(v, h, ld * sizeof(T));
  memcpy(x, rho, ld * sizeof(T));
  reflect(ld, p, v);
  reflect(ld, s, x);
  const T s_rho = dot(ld, s, rho), s_v = dot(ld, s, v), p_x = dot(ld, p, x), p_h = dot(ld, p, h);
  const T inverse_w = kind == kHalfTurn ? T(0) : scalars[kNormW2];
  const T keep = kind == kHalfTurn ? T(0) : T(1);
  for (Int i = 0; i < ld; ++i) {
    grad_h[i] += x[i] - 2 * p_x * p[i];
    const T gs = -2 * (s_rho * v[i] + s_v * rho[i]) + 4 * s_rho * s_v * s[i];
    const T gw = gs * inverse_w;
    grad_e[i] = -2 * keep * (p_x * h[i] + p_h * x[i]) + gw;
    grad_tau[i] = gw;
  }
  const T along_p = dot(ld, p, grad_e), along_q = dot(ld, tau, grad_tau) * inverse_tau;
  for (Int i = 0; i < ld; ++i) {
    grad_e[i] = rho[i] + (grad_e[i] - along_p * p[i]) * inverse_e;
    grad_tau[i] = (grad_tau[i] - along_q * tau[i] * inverse_tau) * inverse_tau;
  }
}

// ---------------------------------------------------------------- the associative memory

// Run a function on blocks of at most V vectors that cover ld, about equally wide.
template <int V, class Block>
struct Widths {
  template <class... Arguments>
  static void run(Int vectors, Arguments... arguments) {
    if (vectors == V)
      Block::template run<V>(arguments...);
    else
      Widths<V - 1, Block>::run(vectors, arguments...);
  }
};
template <class Block>
struct Widths<0, Block> {
  template <class... Arguments>
  static void run(Int, Arguments...) {}
};

template <int V, class T, class Block, class... Arguments>
RUM_INLINE void in_blocks(Int ld, Arguments... arguments) {
  const Int vectors = ld / Size<T>::width, blocks = (vectors + V - 1) / V;
  Int from = 0;
  for (Int block = 0; block < blocks; ++block) {
    const Int to = vectors * (block + 1) / blocks;
    Widths<V, Block>::run(to - from, from * Size<T>::width, arguments...);
    from = to;
  }
}

// P, stored as its columns: P <- P + c1 p' + c2 s', turned = (new P) h.
template <class T>
struct Turn {
  template <int V>
  static void run(
      Int at, Int size, Int ld, T* columns, const T* p, const T* s, const T* h, T ps, T ph, T sh,
      T* c1, T* c2, T* turned) {
    typedef typename Vec<T>::V Vector;
    constexpr Int width = Size<T>::width;
    Vector on_p[V] = {}, on_s[V] = {}, on_h[V] = {};
    const T* from = columns + at;
    for (Int j = 0; j < size; ++j, from += ld) {
      RUM_UNROLL
      for (int i = 0; i < V; ++i) {
        const Vector column = load(from + i * width);
        on_p[i] += column * p[j];
        on_s[i] += column * s[j];
        on_h[i] += column * h[j];
      }
    }
    Vector first[V], second[V];
    RUM_UNROLL
    for (int i = 0; i < V; ++i) {
      second[i] = on_s[i] * T(-2);
      first[i] = on_p[i] * T(-2) + on_s[i] * (4 * ps);
      store(c1 + at + i * width, first[i]);
      store(c2 + at + i * width, second[i]);
      store(turned + at + i * width, on_h[i] + first[i] * ph + second[i] * sh);
    }
    T* to = columns + at;
    for (Int j = 0; j < size; ++j, to += ld) {
      const T up = p[j], us = s[j]; // once: a store might change them, for all the compiler knows
      RUM_UNROLL
      for (int i = 0; i < V; ++i)
        store(to + i * width, load(to + i * width) + first[i] * up + second[i] * us);
    }
  }
};

// The same for P as its rows, `size` apart: for so few steps that turning it would cost more.
template <class T>
static void turn_rows(
    Int size, Int ld, T* memory, const T* p, const T* s, const T* h, T ps, T ph, T sh, T* turned) {
  typedef typename Vec<T>::V V;
  constexpr Int width = Size<T>::width;
  const Int whole = size / width * width;
  for (Int i = 0; i < size; ++i) {
    T* row = memory + i * size;
    V on_p = {}, on_s = {}, on_h = {};
    for (Int j = 0; j < whole; j += width) {
      const V r = load(row + j);
      on_p += r * load(p + j);
      on_s += r * load(s + j);
      on_h += r * load(h + j);
    }
    T rp = sum<T>(on_p), rs = sum<T>(on_s), rh = sum<T>(on_h);
    for (Int j = whole; j < size; ++j) {
      rp += row[j] * p[j];
      rs += row[j] * s[j];
      rh += row[j] * h[j];
    }
    const T second = -2 * rs, first = -2 * rp + 4 * ps * rs;
    turned[i] = rh + first * ph + second * sh;
    for (Int j = 0; j < whole; j += width)
      store(row + j, load(row + j) + load(p + j) * first + load(s + j) * second);
    for (Int j = whole; j < size; ++j) row[j] += p[j] * first + s[j] * second;
  }
  zero(turned, size, ld);
}

// S, skew, as its rows: S <- S + r turned' - turned r', z1 = S v1, z2 = S v2.
template <class T>
struct Skew {
  template <int V>
  static void run(
      Int at, Int size, Int ld, T* skew, const T* r, const T* turned, const T* v1, const T* v2,
      T* z1, T* z2) {
    typedef typename Vec<T>::V Vector;
    constexpr Int width = Size<T>::width;
    Vector on_1[V] = {}, on_2[V] = {}, right[V], left[V];
    RUM_UNROLL
    for (int j = 0; j < V; ++j) {
      right[j] = load(turned + at + j * width);
      left[j] = load(r + at + j * width);
    }
    T* row = skew + at;
    for (Int i = 0; i < size; ++i, row += ld) {
      const T a = r[i], b = turned[i], c = v1[i], d = v2[i];
      RUM_UNROLL
      for (int j = 0; j < V; ++j) {
        const Vector element = load(row + j * width) + right[j] * a - left[j] * b;
        store(row + j * width, element);
        on_1[j] -= element * c;
        on_2[j] -= element * d;
      }
    }
    RUM_UNROLL
    for (int j = 0; j < V; ++j) {
      store(z1 + at + j * width, on_1[j]);
      store(z2 + at + j * width, on_2[j]);
    }
  }
};

// P as its rows: [y, zp, zx] = P' [r, z1, z2], then P <- P - c1 p' - c2 s'.
template <class T>
struct TurnBack {
  template <int V>
  static void run(
      Int at, Int size, Int ld, T* rows, const T* r, const T* z1, const T* z2, const T* p,
      const T* s, const T* c1, const T* c2, T* y, T* zp, T* zx) {
    typedef typename Vec<T>::V Vector;
    constexpr Int width = Size<T>::width;
    Vector on_y[V] = {}, on_p[V] = {}, on_x[V] = {}, right_p[V], right_s[V];
    RUM_UNROLL
    for (int j = 0; j < V; ++j) {
      right_p[j] = load(p + at + j * width);
      right_s[j] = load(s + at + j * width);
    }
    T* row = rows + at;
    for (Int i = 0; i < size; ++i, row += ld) {
      const T a = r[i], b = z1[i], c = z2[i], d = c1[i], f = c2[i];
      RUM_UNROLL
      for (int j = 0; j < V; ++j) {
        const Vector element = load(row + j * width);
        on_y[j] += element * a;
        on_p[j] += element * b;
        on_x[j] += element * c;
        store(row + j * width, element - right_p[j] * d - right_s[j] * f);
      }
    }
    RUM_UNROLL
    for (int j = 0; j < V; ++j) {
      store(y + at + j * width, on_y[j]);
      store(zp + at + j * width, on_p[j]);
      store(zx + at + j * width, on_x[j]);
    }
  }
};

// M += left right', rows ld apart.
template <class T>
static void add_outer(Int size, Int ld, T* matrix, const T* left, const T* right) {
  constexpr Int width = Size<T>::width;
  for (Int i = 0; i < size; ++i) {
    T* row = matrix + i * ld;
    for (Int j = 0; j < ld; j += width) store(row + j, load(row + j) + load(right + j) * left[i]);
  }
}

// to = M from and to = M' from, the rows of M `size` apart.
template <class T>
static void matrix_vector(Int size, Int ld, const T* matrix, const T* from, T* to) {
  constexpr Int width = Size<T>::width;
  for (Int i = 0; i < size; ++i) {
    const T* row = matrix + i * size;
    typename Vec<T>::V acc = {};
    Int j = 0;
    for (; j + width <= size; j += width) acc += load(row + j) * load(from + j);
    T total = sum<T>(acc);
    for (; j < size; ++j) total += row[j] * from[j];
    to[i] = total;
  }
  zero(to, size, ld);
}

template <class T>
static void vector_matrix(Int size, Int ld, const T* matrix, const T* from, T* to) {
  constexpr Int width = Size<T>::width;
  zero(to, 0, ld);
  for (Int i = 0; i < size; ++i) {
    const T* row = matrix + i * size;
    const T factor = from[i];
    Int j = 0;
    for (; j + width <= size; j += width) store(to + j, load(to + j) + load(row + j) * factor);
    for (; j < size; ++j) to[j] += row[j] * factor;
  }
}

// to (rows ld_to apart) = from' (rows ld_from apart), 8 x 8 at a time.
template <class T>
static void transpose(Int size, const T* from, Int ld_from, T* to, Int ld_to) {
  constexpr Int block = 8;
  for (Int i = 0; i < size; i += block)
    for (Int j = 0; j < size; j += block) {
      const Int end_i = i + block < size ? i + block : size, end_j = j + block < size ? j + block : size;
      for (Int a = i; a < end_i; ++a)
        for (Int b = j; b < end_j; ++b) to[b * ld_to + a] = from[a * ld_from + b];
    }
}

// ---------------------------------------------------------------- the loop

// The embedded input of some rows at one time.
template <class T>
static void embed(const Forward<T>& c, Int time, Int begin, Int rows, T* e) {
  if (c.inputs == 0) {
    for (Int r = 0; r < rows; ++r)
      copy_padded(
          e + r * c.ld, c.x + time * c.x_step + (begin + r) * c.x_row + c.gates * c.size, c.size,
          c.ld);
    return;
  }
  const T* x = c.x + time * c.x_step + begin * c.x_row;
  const T* bias = c.bias + c.gates * c.ld;
  if (c.few_rows) {
    for (Int r = 0; r < rows; ++r) memcpy(e + r * c.ld, bias, c.ld * sizeof(T));
    dot_product(rows, x, c.x_row, c.inputs, c.weight_embed, c.size, e, c.ld);
  } else {
    product(
        rows, x, c.x_row, c.inputs, (const T*)nullptr, Int(0), Int(0), c.weight_embed, c.ld, bias, e,
        c.ld);
  }
}

// tau and the update gate before its sigmoid.
template <class T>
static void gate_sums(const Forward<T>& c, Int time, Int begin, Int rows, const T* h, T* sums) {
  const Int row = c.gates * c.ld;
  const T* x = c.x + time * c.x_step + begin * c.x_row;
  if (c.inputs == 0) {
    for (Int r = 0; r < rows; ++r)
      for (Int gate = 0; gate < c.gates; ++gate)
        copy_padded(sums + r * row + gate * c.ld, x + r * c.x_row + gate * c.size, c.size, c.ld);
  } else if (c.few_rows) {
    for (Int r = 0; r < rows; ++r) memcpy(sums + r * row, c.bias, row * sizeof(T));
  }
  if (!c.few_rows) {
    product(
        rows, x, c.x_row, c.inputs, h, c.ld, c.size, c.weights, row, c.inputs ? c.bias : nullptr,
        sums, row);
    return;
  }
  for (Int gate = 0; gate < c.gates; ++gate) {
    T* to = sums + gate * c.ld;
    if (c.inputs)
      dot_product(
          rows, x, c.x_row, c.inputs, c.weight_ih + gate * c.size * c.inputs, c.size, to, row);
    dot_product(rows, h, c.ld, c.size, c.weight_hh + gate * c.size * c.size, c.size, to, row);
  }
}

template <class T>
static Int forward_scratch(const Forward<T>& c, Int rows) {
  const Int matrix = c.lambda && !c.in_place ? c.size * c.ld : 0;
  return rows * ((c.gates + 2) * c.ld + matrix) + 7 * c.ld + kScalars;
}

template <class T>
static void forward(const Forward<T>& c, Int begin, Int end, T* scratch) {
  const auto new_state = select<NewState, T>(c.activation);
  const Int rows = end - begin, size = c.size, ld = c.ld, width = c.gates * ld;
  T* memory = scratch; // columns of P
  T* h = memory + (c.lambda && !c.in_place ? rows * size * ld : 0);
  T* own_embedded = h + rows * ld;
  T* own_sums = own_embedded + rows * ld;
  T* p = own_sums + rows * width;
  T *s = p + ld, *rotated = s + ld, *own_updates = rotated + ld, *own_scalars = own_updates + 3 * ld;
  for (Int r = 0; r < rows; ++r) copy_padded(h + r * ld, c.h0 + (begin + r) * size, size, ld);
  for (Int b = begin; c.lambda && b < end; ++b) {
    const T* from = c.memory0 + b * size * size;
    T* to = memory + (b - begin) * size * ld;
    if (c.in_place) {
      memcpy(c.memory_last + b * size * size, from, size * size * sizeof(T));
      continue;
    }
    zero(to, 0, size * ld);
    if (c.start == kFromMemory)
      transpose(size, from, size, to, ld);
    else
      for (Int i = 0; i < size; ++i) to[i * ld + i] = 1;
  }

  for (Int step = 0; step < c.steps; ++step) {
    const Int time = c.time(step), at = time * c.batch + begin;
    T* sums = c.sums ? c.sums + at * width : own_sums;
    T* e = c.embedded ? c.embedded + at * ld : own_embedded;
    gate_sums(c, time, begin, rows, h, sums);
    embed(c, time, begin, rows, e);
    for (Int r = 0; r < rows; ++r) {
      const Int b = begin + r;
      T* state = h + r * ld;
      T* output = c.outputs + (at + r) * size;
      T* scalars = c.scalars ? c.scalars + (at + r) * kScalars : own_scalars;
      if (c.is_padded(time, b)) {
        zero(output, 0, size);
        if (c.states) memcpy(c.states + (at + r) * size, state, size * sizeof(T));
        continue;
      }
      const T* embedded = e + r * ld;
      const T* tau = sums + r * width;
      T* u = c.gates == 2 ? sums + r * width + ld : nullptr;
      const T* base = rotated;
      T on_e = 0, on_tau = 0;
      if (c.lambda) {
        measure(size, ld, embedded, tau, dot(ld, embedded, embedded), dot(ld, tau, tau), scalars);
        plane(size, ld, embedded, tau, scalars, p, s);
        const T ps = dot(ld, p, s), ph = dot(ld, p, state), sh = dot(ld, s, state);
        T* updates = c.updates ? c.updates + (at + r) * 3 * ld : own_updates;
        T* turned = updates + 2 * ld;
        if (c.in_place)
          turn_rows(
              size, ld, c.memory_last + b * size * size, p, s, state, ps, ph, sh, turned);
        else
          in_blocks<RUM_TURN_VECTORS, T, Turn<T>>(
              ld, size, ld, memory + r * size * ld, (const T*)p, (const T*)s, (const T*)state, ps,
              ph, sh, updates, updates + ld, turned);
        base = turned;
        if (c.start == kTimesMemory) {
          matrix_vector(size, ld, c.memory0 + b * size * size, turned, rotated);
          base = rotated;
        }
      } else {
        base = turn(size, ld, embedded, tau, state, scalars, p, s, rotated, &on_e, &on_tau);
      }
      new_state(ld, embedded, tau, u, base, on_e, on_tau, state);
      if (c.activation == kSigmoid) zero(state, size, ld);
      if (c.eta != 0) {
        const T norm = root(dot(ld, state, state));
        const bool floored = norm < T(1e-12);
        const T inverse = floored ? T(1e12) : 1 / norm;
        scalars[kInverseH] = floored ? -inverse : inverse;
        for (Int i = 0; i < ld; i += Size<T>::width)
          store(state + i, load(state + i) * inverse * c.eta);
      }
      memcpy(output, state, size * sizeof(T));
      if (c.states && c.states != c.outputs)
        memcpy(c.states + (at + r) * size, state, size * sizeof(T));
    }
  }

  for (Int r = 0; r < rows; ++r) memcpy(c.h_last + (begin + r) * size, h + r * ld, size * sizeof(T));
  for (Int r = 0; c.lambda && !c.in_place && r < rows; ++r)
    transpose(
        size, memory + r * size * ld, ld, c.memory_last + (begin + r) * size * size, size);
}

// The state before a step.
template <class T>
RUM_INLINE const T* state_before(const Loop<T>& c, Int step, Int row) {
  return step == 0 ? c.h0 + row * c.size
                   : c.states + (c.time(step - 1) * c.batch + row) * c.size;
}

template <class T>
static Int backward_scratch(const Backward<T>& c, Int rows) {
  const Int inputs = (c.inputs + Size<T>::width) / Size<T>::width * Size<T>::width;
  return rows * ((c.gates + 1) * c.ld + inputs) + 14 * c.ld + inputs;
}

template <class T>
RUM_INLINE void add_row(Int size, const T* from, Int unit, T* to) {
  constexpr Int width = Size<T>::width;
  Int i = 0;
  if (unit) {
    for (; i + width <= size; i += width) store(to + i, load(to + i) + load(from + i));
    for (; i < size; ++i) to[i] += from[i];
  } else {
    for (; i < size; ++i) to[i] += *from;
  }
}

// lambda = 1: gradients to tau and e, that to h added, from rho; P and S one step back.
template <class T>
static void memory_gradient(
    const Backward<T>& c, Int b, const T* e, const T* tau, const T* scalars, const T* updates,
    const T* rho, T* work, T* grad_h, T* grad_tau, T* grad_e) {
  typedef typename Vec<T>::V V;
  constexpr Int width = Size<T>::width;
  const Int size = c.size, ld = c.ld;
  T *p = work, *s = p + ld, *v1 = s + ld, *v2 = v1 + ld, *z1 = v2 + ld, *z2 = z1 + ld, *y = z2 + ld;
  T *zp = y + ld, *zs = zp + ld, *pulled = zs + ld;
  const T *c1 = updates, *c2 = updates + ld, *turned = updates + 2 * ld;
  plane(size, ld, e, tau, scalars, p, s);
  const T ps = dot(ld, p, s);
  const T* r = rho;
  if (c.memory0) {
    vector_matrix(size, ld, c.memory0 + b * size * size, rho, pulled);
    r = pulled;
  }
  if (c.grad_memory) add_outer(size, ld, c.grad_memory + b * size * ld, rho, turned);
  // With x = P_{t-1} s = -c2 / 2 and P_{t-1} p = -c1 / 2 - ps c2:
  // P_t s = -x - 2 ps P_{t-1} p + 4 ps^2 x = ps c1 + c2 / 2.
  for (Int i = 0; i < ld; i += width) {
    const V first = load(c1 + i);
    store(v1 + i, first * T(0.5));
    store(v2 + i, first * ps + load(c2 + i) * T(0.5));
  }
  in_blocks<RUM_SKEW_VECTORS, T, Skew<T>>(
      ld, size, ld, c.skew + b * size * ld, r, turned, (const T*)v1, (const T*)v2, z1, z2);
  in_blocks<RUM_BACK_VECTORS, T, TurnBack<T>>(
      ld, size, ld, c.memory + b * size * ld, r, (const T*)z1, (const T*)z2, (const T*)p,
      (const T*)s, c1, c2, y, zp, zs);
  const T zps = 2 * dot(ld, zp, s);
  const T inverse_e = scalars[kInverseE], inverse_tau = scalars[kInverseTau];
  const T inverse_w = scalars[kNormW2]; // 0 for a half turn
  const T keep = int(scalars[kKind]) == kHalfTurn ? T(0) : T(2);
  V along_p = {}, along_q = {};
  for (Int i = 0; i < ld; i += width) {
    const V up = load(p + i), gw = (load(zs + i) - load(zp + i) * (2 * ps) + up * zps) * (-2 * inverse_w);
    store(zs + i, gw);
    along_p += up * gw;
    along_q += load(tau + i) * gw;
    store(grad_h + i, load(grad_h + i) + load(y + i));
  }
  const T on_p = sum<T>(along_p), on_tau = sum<T>(along_q) * inverse_tau * inverse_tau;
  for (Int i = 0; i < ld; i += width) {
    const V gw = load(zs + i);
    store(grad_e + i, load(rho + i) + (gw - load(zp + i) * keep - load(p + i) * on_p) * inverse_e);
    store(grad_tau + i, (gw - load(tau + i) * on_tau) * inverse_tau);
  }
}

template <class T>
static void backward(
    const Backward<T>& c, Int first, Int last, Int begin, Int end, T* scratch) {
  const auto candidate_gradient = select<CandidateGradient, T>(c.activation);
  const Int rows = end - begin, size = c.size, ld = c.ld, width = c.gates * ld, row = width + ld;
  constexpr Int panel = Size<T>::panel;
  const Int low = c.reverse ? c.time(last - 1) : first; // the first time of the chunk
  const Int grads_stride = c.depth * RUM_TILE_ROWS, inputs_stride = c.depth * panel;
  const Int wide_x = (c.inputs + Size<T>::width) / Size<T>::width * Size<T>::width;
  T* grads = scratch; // to tau, u and e of one step
  T* grad_x = grads + rows * row;
  T* x_row = grad_x + rows * wide_x; // x, 1
  T* h = x_row + wide_x;
  T *rho = h + ld, *p = rho + ld, *s = p + ld, *work = rho + ld; // work: 10 * ld
  zero(x_row, 0, wide_x);

  for (Int step = last - 1; step >= first; --step) {
    const Int time = c.time(step), at = time * c.batch + begin;
    const T* e = c.embedded + at * ld;
    for (Int r = 0; r < rows; ++r) {
      const Int b = begin + r, place = (time - low) * c.batch + b;
      T* grad = c.grad_h + b * ld;
      T* grad_tau = grads + r * row;
      T* grad_e = grad_tau + width;
      const bool padded = c.is_padded(time, b);
      if (padded) {
        zero(grad_tau, 0, row);
        zero(h, 0, ld);
      } else {
        if (c.grad_outputs)
          add_row(size, c.grad_outputs + time * c.grad_step + b * c.grad_row, c.grad_unit, grad);
        const T* scalars = c.scalars + (at + r) * kScalars;
        if (c.eta != 0) {
          // h = eta h_new / n: dL/dh_new = eta / n (g - (g.h) h / eta^2)
          const T inverse = scalars[kInverseH];
          copy_padded(h, c.states + (at + r) * size, size, ld);
          const T along = inverse < 0 ? T(0) : dot(ld, h, grad) / (c.eta * c.eta);
          const T scale = c.eta * (inverse < 0 ? -inverse : inverse);
          for (Int i = 0; i < ld; i += Size<T>::width)
            store(grad + i, (load(grad + i) - load(h + i) * along) * scale);
        }
        copy_padded(h, state_before(c, step, b), size, ld);
        const T* embedded = e + r * ld;
        const T* tau = c.sums + (at + r) * width;
        const T* u = c.gates == 2 ? tau + ld : nullptr;
        const T* updates = c.updates + (at + r) * 3 * ld;
        const T* base;
        T on_e = 0, on_tau = 0, e_rho, tau_rho;
        if (!c.lambda) {
          base = turn_again(size, ld, embedded, tau, h, scalars, p, s, s + ld, &on_e, &on_tau);
        } else if (c.memory0) {
          matrix_vector(size, ld, c.memory0 + b * size * size, updates + 2 * ld, work);
          base = work;
        } else {
          base = updates + 2 * ld;
        }
        candidate_gradient(
            ld, embedded, tau, u, base, on_e, on_tau, h, grad, rho, grad_tau + ld, &e_rho, &tau_rho);
        if (c.lambda)
          memory_gradient(c, b, embedded, tau, scalars, updates, rho, work, grad, grad_tau, grad_e);
        else
          turn_gradient(
              ld, embedded, tau, h, scalars, rho, e_rho, tau_rho, p, s, s + ld, grad, grad_tau,
              grad_e);
      }
      if (c.packed_grads) {
        pack_row<T, RUM_TILE_ROWS>(
            grad_tau, c.columns, grads_stride, c.packed_grads + place * RUM_TILE_ROWS);
        pack_row<T, panel>(h, ld, inputs_stride, c.packed_inputs + place * panel);
        if (c.inputs) {
          if (!padded) memcpy(x_row, c.x + time * c.x_step + b * c.x_row, c.inputs * sizeof(T));
          x_row[c.inputs] = 1;
          pack_row<T, panel>(
              x_row, wide_x, inputs_stride,
              c.packed_inputs + (ld + panel - 1) / panel * inputs_stride + place * panel);
        }
      }
      if (c.grad_projected) {
        T* to = c.grad_projected + (at + r) * (c.gates + 1) * size;
        for (Int gate = 0; gate <= c.gates; ++gate)
          memcpy(to + gate * size, grad_tau + gate * ld, size * sizeof(T));
      }
    }
    if (step > 0 || c.past_first)
      product(
          rows, (const T*)nullptr, Int(0), Int(0), (const T*)grads, row, width, c.weights, ld,
          (const T*)nullptr, c.grad_h + begin * ld, ld);
    if (c.grad_x) {
      zero(grad_x, 0, rows * wide_x);
      product(
          rows, (const T*)nullptr, Int(0), Int(0), (const T*)grads, row, row, c.weights_x, wide_x,
          (const T*)nullptr, grad_x, wide_x);
      for (Int r = 0; r < rows; ++r)
        memcpy(
            c.grad_x + time * c.grad_x_step + (begin + r) * c.grad_x_row, grad_x + r * wide_x,
            c.inputs * sizeof(T));
    }
  }
}

// One in `parts` of the row panels of the gradient of the weights, [W_h, W_x, b], plus a chunk.
template <class T>
static void weight_gradient(const Backward<T>& c, Int depth, Int part, Int parts) {
  constexpr Int high = RUM_TILE_ROWS, panel = Size<T>::panel, deep = 256;
  constexpr Int group = 160 * 1024 / (deep * high * sizeof(T)); // row panels, in the cache
  const Int wide_h = (c.ld + panel - 1) / panel, wide = c.grad_weights_ld / panel;
  const Int panels = (c.columns + high - 1) / high;
  const Int own = (panels - part + parts - 1) / parts; // part, part + parts, ...
  for (Int from = 0; from < depth; from += deep) {
    const Int rows = depth - from < deep ? depth - from : deep;
    for (Int begin = 0; begin < own; begin += group)
      for (Int j = 0; j < wide; ++j)
        for (Int index = begin; index < own && index < begin + group; ++index) {
          const Int i = part + index * parts;
          if (j < wide_h && i * high >= c.gates * c.ld) continue; // W_h has no rows for e
          tile_transposed<T, high, 2>(
              rows, c.packed_grads + (i * c.depth + from) * high,
              c.packed_inputs + (j * c.depth + from) * panel,
              c.grad_weights + (i * wide + j) * high * panel);
        }
  }
}

#define RUM_STRINGIFY(x) #x
#define RUM_NAME(x) RUM_STRINGIFY(x)

template <class T>
Kernels<T> table() {
  return {RUM_NAME(RUM_ISA), Size<T>::width,  forward_scratch<T>, backward_scratch<T>,
          forward<T>,        backward<T>,     weight_gradient<T>, pack_rows<T>,
          pack_columns<T>,   RUM_TILE_ROWS,   Size<T>::panel};
}

} // namespace

const Kernels<float>& kernels_float() {
  static const Kernels<float> kernels = table<float>();
  return kernels;
}

const Kernels<double>& kernels_double() {
  static const Kernels<double> kernels = table<double>();
  return kernels;
}

} // namespace RUM_ISA
} // namespace rum
