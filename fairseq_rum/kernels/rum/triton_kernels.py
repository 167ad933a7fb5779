"""The Triton functions of :mod:`fairseq_rum.kernels.rum.triton`; importing this needs triton.

Names as in the equations of :mod:`fairseq_rum.kernels.rum.fused`. A row of the batch turns e to
tau, keeps its state (identity), or makes half a turn in the plane of e and of a fixed vector s.
Calling ``other`` the vector tau, or s for half a turn, the three are one formula::

    Rotation h = h + of_e e + of_other other
    R Rotation = R + f_e e' + f_other other'

All vectors of a row lie in registers, so that every number is computed with care: no fast path.
Arithmetic is in float32, or in float64 for float64 tensors (ACC).
"""

# ruff: noqa: ANN001, ANN201 (arguments are Triton's own types; tl.constexpr is said where it is one)

from __future__ import annotations

import triton
import triton.language as tl

# What is kept of a row and step: its numbers.
INVERSE_E = tl.constexpr(0)
INVERSE_TAU = tl.constexpr(1)
COSINE = tl.constexpr(2)
K = tl.constexpr(3)
AL = tl.constexpr(4)
BE = tl.constexpr(5)  # s.h for half a turn
HALF = tl.constexpr(6)  # 1 for half a turn
NORM = tl.constexpr(7)
NUMBERS = 8
SLOTS = tl.constexpr(NUMBERS)

FLUSH = tl.constexpr(1e-30)
NORM_FLOOR = tl.constexpr(1e-12)


@triton.jit
def _sigmoid(x):
    return 1.0 / (1.0 + tl.exp(-x))


@triton.jit
def _activate(z, ACTIVATION: tl.constexpr):
    if ACTIVATION == "relu":
        c = tl.where(z < 0, 0.0, z)  # NaN stays NaN
    elif ACTIVATION == "tanh":
        c = 2.0 * _sigmoid(2.0 * z) - 1.0
    elif ACTIVATION == "sigmoid":
        c = _sigmoid(z)
    elif ACTIVATION == "softsign":
        c = z / (1.0 + tl.abs(z))
    else:
        c = z
    return c


@triton.jit
def _slope(c, ACTIVATION: tl.constexpr):
    if ACTIVATION == "relu":
        slope = tl.where(c > 0, c * 0.0 + 1.0, 0.0)
    elif ACTIVATION == "tanh":
        slope = 1.0 - c * c
    elif ACTIVATION == "sigmoid":
        slope = c * (1.0 - c)
    elif ACTIVATION == "softsign":
        slope = (1.0 - tl.abs(c)) * (1.0 - tl.abs(c))
    else:
        slope = c * 0.0 + 1.0
    return slope


@triton.jit
def _other(tau, e, inverse_e, half, columns, valid):
    """tau, and for rows that make half a turn the vector s perpendicular to e."""
    other = tau
    if tl.sum(half) > 0:
        p = e * inverse_e[:, None]
        axis = tl.argmin(tl.where(valid, tl.abs(p), 2.0), axis=1)
        on_axis = columns[None, :] == axis[:, None]
        along = tl.sum(tl.where(on_axis, p, 0.0), axis=1)
        s = tl.where(on_axis, 1.0, 0.0) - along[:, None] * p
        length = tl.sqrt(tl.sum(s * s, axis=1))
        length = tl.where(length > 0.5, length, 0.5)
        other = tl.where(half[:, None] > 0, s / length[:, None], tau)
    return other


@triton.jit
def _numbers(tau, e, h, turns, columns, valid, EPS: tl.constexpr):
    """1/|e|, 1/|tau|, c, k, p.h, q.h (s.h), half, other, and the coefficients of Rotation h."""
    norm_e = tl.sqrt(tl.sum(e * e, axis=1))
    norm_tau = tl.sqrt(tl.sum(tau * tau, axis=1))
    turns = turns & (norm_e > EPS * EPS) & (norm_tau > EPS * EPS)
    inverse_e = tl.where(turns, 1.0 / tl.where(turns, norm_e, 1.0), 0.0)
    inverse_tau = tl.where(turns, 1.0 / tl.where(turns, norm_tau, 1.0), 0.0)
    p = e * inverse_e[:, None]
    q = tau * inverse_tau[:, None]
    w = p + q
    square = tl.sum(w * w, axis=1)
    opposite = turns & (square < EPS)
    usual = turns & (square >= EPS)
    half = tl.where(opposite, square * 0.0 + 1.0, 0.0)
    k = tl.where(usual, 2.0 / tl.where(usual, square, 1.0), 0.0)
    cosine = tl.where(usual, tl.sum(p * q, axis=1), 0.0)
    other = _other(tau, e, inverse_e, half, columns, valid)
    scale = tl.where(opposite, 1.0, inverse_tau)
    al = tl.sum(p * h, axis=1)
    be = tl.sum(other * h, axis=1) * scale
    kab = k * (al + be)
    of_e = tl.where(opposite, -2.0 * al, -kab) * inverse_e
    of_other = tl.where(opposite, -2.0 * be, (2.0 * al - kab) * inverse_tau)
    return inverse_e, inverse_tau, cosine, k, al, be, half, other, of_e, of_other


@triton.jit
def _store_numbers(numbers, rows, inside, inverse_e, inverse_tau, cosine, k, al, be, half):
    row = numbers + rows * SLOTS
    tl.store(row + INVERSE_E, inverse_e, mask=inside)
    tl.store(row + INVERSE_TAU, inverse_tau, mask=inside)
    tl.store(row + COSINE, cosine, mask=inside)
    tl.store(row + K, k, mask=inside)
    tl.store(row + AL, al, mask=inside)
    tl.store(row + BE, be, mask=inside)
    tl.store(row + HALF, half, mask=inside)


@triton.jit
def _load_numbers(numbers, rows, inside):
    row = numbers + rows * SLOTS
    inverse_e = tl.load(row + INVERSE_E, mask=inside, other=0.0)
    inverse_tau = tl.load(row + INVERSE_TAU, mask=inside, other=0.0)
    cosine = tl.load(row + COSINE, mask=inside, other=0.0)
    k = tl.load(row + K, mask=inside, other=0.0)
    al = tl.load(row + AL, mask=inside, other=0.0)
    be = tl.load(row + BE, mask=inside, other=0.0)
    half = tl.load(row + HALF, mask=inside, other=0.0)
    return inverse_e, inverse_tau, cosine, k, al, be, half


@triton.jit
def _padded(padded, rows, inside, MASKED: tl.constexpr):
    if MASKED:
        is_padded = tl.load(padded + rows, mask=inside, other=0) != 0
    else:
        is_padded = rows < 0
    return is_padded


@triton.jit
def forward_step(
    projected,  # (B, W): the inputs' part of tau, u, e
    recurrent,  # (B, W - N): the state's part of tau, u
    pre,  # (B, W - N): tau, u, written
    before,  # (B, N): h_{t-1}
    after,  # (B, N): h_t, written
    after_io,  # (B, N): h_t in the dtype of the matrix product, written if DUAL
    numbers,  # (B, 8), written
    padded,  # (B,)
    batch,
    N: tl.constexpr,
    W: tl.constexpr,
    GATED: tl.constexpr,
    ACTIVATION: tl.constexpr,
    ETA: tl.constexpr,
    MASKED: tl.constexpr,
    DUAL: tl.constexpr,
    EPS: tl.constexpr,
    ACC: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """lambda = 0: everything of a step but the matrix product, for ROWS rows of the batch."""
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    columns = tl.arange(0, COLUMNS)
    inside = rows < batch
    valid = inside[:, None] & (columns < N)[None, :]
    at = rows[:, None] * N + columns[None, :]
    at_w = rows[:, None] * W + columns[None, :]
    at_r = rows[:, None] * (W - N) + columns[None, :]
    is_padded = _padded(padded, rows, inside, MASKED)
    real = valid & (is_padded[:, None] == 0)  # padded inputs are read as zeros
    io = pre.dtype.element_ty

    h = tl.load(before + at, mask=valid, other=0.0).to(ACC)
    e = tl.load(projected + at_w + (W - N), mask=real, other=0.0).to(ACC)
    tau = tl.load(projected + at_w, mask=real, other=0.0).to(ACC)
    tau += tl.load(recurrent + at_r, mask=real, other=0.0).to(ACC)
    tau = tau.to(io).to(ACC)
    tl.store(pre + at_r, tau.to(io), mask=valid)
    turns = inside & (is_padded == 0) & (N > 1)
    inverse_e, inverse_tau, cosine, k, al, be, half, other, of_e, of_other = _numbers(
        tau, e, h, turns, columns, valid, EPS
    )
    _store_numbers(numbers, rows, inside, inverse_e, inverse_tau, cosine, k, al, be, half)
    new = _activate(e + h + of_e[:, None] * e + of_other[:, None] * other, ACTIVATION)
    if GATED:
        u = tl.load(projected + at_w + N, mask=real, other=0.0).to(ACC)
        u += tl.load(recurrent + at_r + N, mask=real, other=0.0).to(ACC)
        u = _sigmoid(u).to(io).to(ACC)
        tl.store(pre + at_r + N, u.to(io), mask=valid)
        new = u * h + (1.0 - u) * new
    new = tl.where(valid, tl.where(tl.abs(new) <= FLUSH, 0.0, new), 0.0)
    if ETA > 0:
        norm = tl.sqrt(tl.sum(new * new, axis=1))
        tl.store(numbers + rows * SLOTS + NORM, norm, mask=inside)
        new = new * (ETA / tl.where(norm > NORM_FLOOR, norm, NORM_FLOOR))[:, None]
    new = tl.where(is_padded[:, None], h, new)
    tl.store(after + at, new.to(after.dtype.element_ty), mask=valid)
    if DUAL:
        tl.store(after_io + at, new.to(io), mask=valid)


@triton.jit
def _through_state(
    g_part,
    g_product,
    g_out,
    pre,
    before,
    after,
    numbers,
    candidate,
    rows,
    inside,
    valid,
    at,
    at_r,
    is_padded,
    N: tl.constexpr,
    GATED: tl.constexpr,
    ACTIVATION: tl.constexpr,
    ETA: tl.constexpr,
    ACC: tl.constexpr,
):
    """The gradients to z, to the input of the gate, and to h_{t-1} by way of the gate."""
    g = tl.load(g_part + at, mask=valid, other=0.0).to(ACC)
    g += tl.load(g_product + at, mask=valid, other=0.0).to(ACC)
    g_new = tl.load(g_out + at, mask=valid, other=0.0).to(ACC)
    g += tl.where(is_padded[:, None], 0.0, g_new)
    new = tl.load(after + at, mask=valid, other=0.0).to(ACC)
    g_state = g
    if ETA > 0:
        norm = tl.load(numbers + rows * SLOTS + NORM, mask=inside, other=1.0)
        share = tl.where(norm > NORM_FLOOR, tl.sum(g * new, axis=1) / (ETA * ETA), 0.0)
        floored = tl.where(norm > NORM_FLOOR, norm, NORM_FLOOR)
        g_state = (g - new * share[:, None]) * (ETA / floored)[:, None]
    # A state that was flushed, or that is 0, passes no gradient.
    g_state = tl.where((new != 0) & (is_padded[:, None] == 0), g_state, 0.0)
    rho = g_state * _slope(candidate, ACTIVATION)
    g_gate = g * 0.0
    g_before = g * 0.0
    if GATED:
        h = tl.load(before + at, mask=valid, other=0.0).to(ACC)
        u = tl.load(pre + at_r + N, mask=valid, other=0.0).to(ACC)
        rho = rho * (1.0 - u)
        g_gate = g_state * (h - candidate) * u * (1.0 - u)
        g_before = g_state * u
    g_before = tl.where(is_padded[:, None], g, g_before)
    return rho, g_gate, g_before


@triton.jit
def backward_step(
    projected,  # (B, W)
    pre,  # (B, W - N): tau, u
    before,  # (B, N): h_{t-1}
    after,  # (B, N): h_t
    numbers,  # (B, 8)
    padded,  # (B,)
    g_out,  # (B, N): the gradient to the output of this step
    g_part,  # (B, N): the gradient to h_t but for the matrix product; then the one to h_{t-1}
    g_product,  # (B, N): the rest of it
    g_projected,  # (B, W), written
    batch,
    N: tl.constexpr,
    W: tl.constexpr,
    GATED: tl.constexpr,
    ACTIVATION: tl.constexpr,
    ETA: tl.constexpr,
    MASKED: tl.constexpr,
    ACC: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """lambda = 0: the gradients of a step but for the matrix product."""
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    columns = tl.arange(0, COLUMNS)
    inside = rows < batch
    valid = inside[:, None] & (columns < N)[None, :]
    at = rows[:, None] * N + columns[None, :]
    at_w = rows[:, None] * W + columns[None, :]
    at_r = rows[:, None] * (W - N) + columns[None, :]
    is_padded = _padded(padded, rows, inside, MASKED)
    real = valid & (is_padded[:, None] == 0)

    inverse_e, inverse_tau, c, k, al, be, half = _load_numbers(numbers, rows, inside)
    tau = tl.load(pre + at_r, mask=valid, other=0.0).to(ACC)
    e = tl.load(projected + at_w + (W - N), mask=real, other=0.0).to(ACC)
    h = tl.load(before + at, mask=valid, other=0.0).to(ACC)
    other = _other(tau, e, inverse_e, half, columns, valid)
    kab = k * (al + be)
    is_half = half > 0
    of_e = tl.where(is_half, -2.0 * al, -kab) * inverse_e
    of_other = tl.where(is_half, -2.0 * be, (2.0 * al - kab) * inverse_tau)
    z = e + h + of_e[:, None] * e + of_other[:, None] * other
    candidate = _activate(z, ACTIVATION)
    rho, g_gate, g_before = _through_state(
        g_part, g_product, g_out, pre, before, after, numbers, candidate,
        rows, inside, valid, at, at_r, is_padded, N, GATED, ACTIVATION, ETA, ACC,
    )  # fmt: skip

    p = e * inverse_e[:, None]
    q = tau * inverse_tau[:, None]
    gp = tl.sum(p * rho, axis=1)
    gq = tl.sum(q * rho, axis=1)
    g_both = gp + gq
    gs = tl.sum(other * rho, axis=1)
    yq = 2.0 * c * gq - gp
    s = gq * be - al * yq
    y_p = tl.where(is_half, -2.0 * gp, 2.0 * gq - k * g_both)
    y_other = tl.where(is_half, -2.0 * gs, -k * g_both * inverse_tau)
    y = rho + y_p[:, None] * p + y_other[:, None] * other
    g_e = (al + be)[:, None] * y - (gq + yq)[:, None] * h - s[:, None] * p
    g_e = rho - (k * inverse_e)[:, None] * g_e
    g_tau = ((1.0 + 2.0 * c) * al - be)[:, None] * y - g_both[:, None] * h
    g_tau = (k * inverse_tau)[:, None] * (g_tau + s[:, None] * (2.0 * p + q))

    io = g_projected.dtype.element_ty
    tl.store(g_projected + at_w, g_tau.to(io), mask=valid)
    if GATED:
        tl.store(g_projected + at_w + N, g_gate.to(io), mask=valid)
    tl.store(g_projected + at_w + (W - N), g_e.to(io), mask=valid)
    tl.store(g_part + at, y + g_before, mask=valid)


@triton.jit
def forward_memory_step(
    projected,
    recurrent,
    pre,
    before,
    after,
    after_io,
    numbers,
    padded,
    memory,  # (B, N, N): R_{t-1}, then R_t
    factors,  # (B, 2, N): f_e, f_other, written
    candidates,  # (B, N): f(z), written
    N: tl.constexpr,
    W: tl.constexpr,
    GATED: tl.constexpr,
    ACTIVATION: tl.constexpr,
    ETA: tl.constexpr,
    MASKED: tl.constexpr,
    DUAL: tl.constexpr,
    EPS: tl.constexpr,
    ACC: tl.constexpr,
    LINES: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """lambda = 1: LINES lines of one R: read once, written once. Normalization comes after."""
    row = tl.program_id(0).to(tl.int64)
    rows = row + tl.arange(0, 1)
    columns = tl.arange(0, COLUMNS)
    inside = rows >= 0
    valid = (columns < N)[None, :] & inside[:, None]
    is_padded = _padded(padded, rows, inside, MASKED)
    real = valid & (is_padded[:, None] == 0)
    at = rows[:, None] * N + columns[None, :]
    at_w = rows[:, None] * W + columns[None, :]
    at_r = rows[:, None] * (W - N) + columns[None, :]
    io = pre.dtype.element_ty

    h = tl.load(before + at, mask=valid, other=0.0).to(ACC)
    e = tl.load(projected + at_w + (W - N), mask=real, other=0.0).to(ACC)
    tau = tl.load(projected + at_w, mask=real, other=0.0).to(ACC)
    tau += tl.load(recurrent + at_r, mask=real, other=0.0).to(ACC)
    tau = tau.to(io).to(ACC)
    turns = inside & (is_padded == 0) & (N > 1)
    inverse_e, inverse_tau, cosine, k, al, be, half, other, of_e, of_other = _numbers(
        tau, e, h, turns, columns, valid, EPS
    )
    if tl.program_id(1) == 0:
        tl.store(pre + at_r, tau.to(io), mask=valid)
        _store_numbers(numbers, rows, inside, inverse_e, inverse_tau, cosine, k, al, be, half)
    turned = h + of_e[:, None] * e + of_other[:, None] * other

    lines = tl.program_id(1) * LINES + tl.arange(0, LINES)
    here = lines < N
    tile_at = memory + row * N * N + lines[:, None] * N + columns[None, :]
    tile_valid = here[:, None] & (columns < N)[None, :]
    tile = tl.load(tile_at, mask=tile_valid, other=0.0)
    r_e = tl.sum(tile * e, axis=1)
    r_other = tl.sum(tile * other, axis=1)
    r_turned = tl.sum(tile * turned, axis=1)
    scalar_e = tl.sum(inverse_e)
    scalar_tau = tl.sum(inverse_tau)
    scalar_k = tl.sum(k)
    is_half = tl.sum(half) > 0
    r_w = r_e * scalar_e + r_other * scalar_tau
    f_e = -scalar_k * scalar_e * r_w + 2.0 * scalar_e * scalar_tau * r_other
    f_e = tl.where(is_half, -2.0 * scalar_e * scalar_e * r_e, f_e)
    f_other = tl.where(is_half, -2.0 * r_other, -scalar_k * scalar_tau * r_w)
    tl.store(tile_at, tile + f_e[:, None] * e + f_other[:, None] * other, mask=tile_valid)
    tl.store(factors + row * 2 * N + lines, f_e, mask=here)
    tl.store(factors + row * 2 * N + N + lines, f_other, mask=here)

    own_padded = lines < 0
    if MASKED:
        own_padded = tl.load(padded + row + lines * 0, mask=here, other=0) != 0
    own = here & (own_padded == 0)
    own_e = tl.load(projected + row * W + (W - N) + lines, mask=own, other=0.0).to(ACC)
    own_h = tl.load(before + row * N + lines, mask=here, other=0.0).to(ACC)
    new = _activate(own_e + r_turned, ACTIVATION)
    tl.store(candidates + row * N + lines, new, mask=here)
    if GATED:
        u = tl.load(projected + row * W + N + lines, mask=own, other=0.0).to(ACC)
        u += tl.load(recurrent + row * (W - N) + N + lines, mask=own, other=0.0).to(ACC)
        u = _sigmoid(u).to(io).to(ACC)
        tl.store(pre + row * (W - N) + N + lines, u.to(io), mask=here)
        new = u * own_h + (1.0 - u) * new
    new = tl.where(tl.abs(new) <= FLUSH, 0.0, new)
    new = tl.where(own_padded, own_h, new)
    tl.store(after + row * N + lines, new.to(after.dtype.element_ty), mask=here)
    if DUAL:
        tl.store(after_io + row * N + lines, new.to(io), mask=here)


@triton.jit
def normalize_step(
    after,  # (B, N): h_t, normalized in place
    after_io,
    numbers,
    padded,
    batch,
    N: tl.constexpr,
    ETA: tl.constexpr,
    MASKED: tl.constexpr,
    DUAL: tl.constexpr,
    ACC: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """Time normalization by itself, for lambda = 1, whose states are made in parts."""
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    columns = tl.arange(0, COLUMNS)
    inside = rows < batch
    valid = inside[:, None] & (columns < N)[None, :]
    at = rows[:, None] * N + columns[None, :]
    is_padded = _padded(padded, rows, inside, MASKED)
    h = tl.load(after + at, mask=valid, other=0.0).to(ACC)
    norm = tl.sqrt(tl.sum(h * h, axis=1))
    tl.store(numbers + rows * SLOTS + NORM, norm, mask=inside)
    scale = ETA / tl.where(norm > NORM_FLOOR, norm, NORM_FLOOR)
    h = tl.where(is_padded[:, None], h, h * scale[:, None])
    tl.store(after + at, h.to(after.dtype.element_ty), mask=valid)
    if DUAL:
        tl.store(after_io + at, h.to(after_io.dtype.element_ty), mask=valid)


@triton.jit
def backward_state_step(
    pre,
    before,
    after,
    numbers,
    padded,
    candidates,
    g_out,
    g_part,  # read; then the gradient to h_{t-1} by way of the gate
    g_product,
    g_projected,
    rhos,  # (B, N), written
    batch,
    N: tl.constexpr,
    W: tl.constexpr,
    GATED: tl.constexpr,
    ACTIVATION: tl.constexpr,
    ETA: tl.constexpr,
    MASKED: tl.constexpr,
    ACC: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """lambda = 1, first part: the gradients to z and to the gate."""
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    columns = tl.arange(0, COLUMNS)
    inside = rows < batch
    valid = inside[:, None] & (columns < N)[None, :]
    at = rows[:, None] * N + columns[None, :]
    at_w = rows[:, None] * W + columns[None, :]
    at_r = rows[:, None] * (W - N) + columns[None, :]
    is_padded = _padded(padded, rows, inside, MASKED)
    candidate = tl.load(candidates + at, mask=valid, other=0.0).to(ACC)
    rho, g_gate, g_before = _through_state(
        g_part, g_product, g_out, pre, before, after, numbers, candidate,
        rows, inside, valid, at, at_r, is_padded, N, GATED, ACTIVATION, ETA, ACC,
    )  # fmt: skip
    tl.store(rhos + at, rho, mask=valid)
    if GATED:
        tl.store(g_projected + at_w + N, g_gate.to(g_projected.dtype.element_ty), mask=valid)
    tl.store(g_part + at, g_before, mask=valid)


@triton.jit
def _row_vectors(
    projected,
    pre,
    before,
    numbers,
    padded,
    row,
    N: tl.constexpr,
    W: tl.constexpr,
    MASKED: tl.constexpr,
    ACC: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """tau, e, h, other of one row of the batch, each (1, COLUMNS)."""
    rows = row + tl.arange(0, 1)
    columns = tl.arange(0, COLUMNS)
    inside = rows >= 0
    valid = (columns < N)[None, :] & inside[:, None]
    is_padded = _padded(padded, rows, inside, MASKED)
    real = valid & (is_padded[:, None] == 0)
    inverse_e = tl.load(numbers + rows * SLOTS + INVERSE_E)
    half = tl.load(numbers + rows * SLOTS + HALF)
    tau = tl.load(pre + rows[:, None] * (W - N) + columns[None, :], mask=valid, other=0.0).to(ACC)
    e = tl.load(
        projected + rows[:, None] * W + (W - N) + columns[None, :], mask=real, other=0.0
    ).to(ACC)
    h = tl.load(before + rows[:, None] * N + columns[None, :], mask=valid, other=0.0).to(ACC)
    other = _other(tau, e, inverse_e, half, columns, valid)
    return tau, e, h, other


@triton.jit
def backward_memory_step(
    projected,
    pre,
    before,
    numbers,
    padded,
    rhos,
    memory,  # (B, N, N): R_t, then R_{t-1}
    factors,
    ys,  # (B, N): R_t' rho, written
    N: tl.constexpr,
    W: tl.constexpr,
    MASKED: tl.constexpr,
    ACC: tl.constexpr,
    LINES: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """lambda = 1, second part: y, and R one step back, for LINES columns of one R."""
    row = tl.program_id(0).to(tl.int64)
    i = tl.arange(0, COLUMNS)
    j = tl.program_id(1) * LINES + tl.arange(0, LINES)
    tau, e, h, other = _row_vectors(
        projected, pre, before, numbers, padded, row, N, W, MASKED, ACC, COLUMNS
    )
    tile_at = memory + row * N * N + i[:, None] * N + j[None, :]
    tile_valid = (i < N)[:, None] & (j < N)[None, :]
    tile = tl.load(tile_at, mask=tile_valid, other=0.0)
    rho = tl.load(rhos + row * N + i, mask=i < N, other=0.0)
    tl.store(ys + row * N + j, tl.sum(tile * rho[:, None], axis=0), mask=j < N)
    # e and other at the columns of this tile
    pick = i[:, None] == j[None, :]
    e_j = tl.sum(tl.where(pick, tl.trans(e), 0.0), axis=0)
    other_j = tl.sum(tl.where(pick, tl.trans(other), 0.0), axis=0)
    f_e = tl.load(factors + row * 2 * N + i, mask=i < N, other=0.0)
    f_other = tl.load(factors + row * 2 * N + N + i, mask=i < N, other=0.0)
    tile = tile - f_e[:, None] * e_j[None, :] - f_other[:, None] * other_j[None, :]
    tl.store(tile_at, tile, mask=tile_valid)


@triton.jit
def backward_skew_product(
    projected,
    pre,
    before,
    numbers,
    padded,
    ys,
    skew,  # (B, N, N): K
    images,  # (B, 2, N): (K + y h' - h y') [e, other], written
    N: tl.constexpr,
    W: tl.constexpr,
    MASKED: tl.constexpr,
    ACC: tl.constexpr,
    LINES: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """lambda = 1, third part."""
    row = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, COLUMNS)
    lines = tl.program_id(1) * LINES + tl.arange(0, LINES)
    here = lines < N
    tau, e, h, other = _row_vectors(
        projected, pre, before, numbers, padded, row, N, W, MASKED, ACC, COLUMNS
    )
    y = tl.load(ys + row * N + columns, mask=columns < N, other=0.0)[None, :]
    tile_valid = here[:, None] & (columns < N)[None, :]
    tile = tl.load(
        skew + row * N * N + lines[:, None] * N + columns[None, :], mask=tile_valid, other=0.0
    )
    own_y = tl.load(ys + row * N + lines, mask=here, other=0.0)
    own_h = tl.load(before + row * N + lines, mask=here, other=0.0).to(ACC)
    image_e = tl.sum(tile * e, axis=1) + own_y * tl.sum(h * e) - own_h * tl.sum(y * e)
    image_other = (
        tl.sum(tile * other, axis=1) + own_y * tl.sum(h * other) - own_h * tl.sum(y * other)
    )
    tl.store(images + row * 2 * N + lines, image_e, mask=here)
    tl.store(images + row * 2 * N + N + lines, image_other, mask=here)


@triton.jit
def _turning(z_p, z_other, p, k, s, is_half):
    """Vp and Vq, or V of half a turn."""
    v_p = tl.where(is_half, -2.0 * z_p, -k * (z_p + z_other))
    v_other = tl.where(is_half, 4.0 * s * p - 2.0 * z_other, 2.0 * z_p + v_p + 2.0 * k * s * p)
    return v_p, v_other


@triton.jit
def backward_skew_step(
    projected,
    pre,
    before,
    numbers,
    padded,
    rhos,
    ys,
    images,
    skew,  # (B, N, N): K_t, then K_{t-1}
    g_part,  # (B, N): by way of the gate; then all but the matrix product
    g_projected,
    N: tl.constexpr,
    W: tl.constexpr,
    MASKED: tl.constexpr,
    ACC: tl.constexpr,
    LINES: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """lambda = 1, last part: K one step back, and the gradients to e, tau and h_{t-1}."""
    row = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, COLUMNS)
    lines = tl.program_id(1) * LINES + tl.arange(0, LINES)
    here = lines < N
    tau, e, h, other = _row_vectors(
        projected, pre, before, numbers, padded, row, N, W, MASKED, ACC, COLUMNS
    )
    inverse_e = tl.load(numbers + row * SLOTS + INVERSE_E)
    inverse_tau = tl.load(numbers + row * SLOTS + INVERSE_TAU)
    c = tl.load(numbers + row * SLOTS + COSINE)
    k = tl.load(numbers + row * SLOTS + K)
    is_half = tl.load(numbers + row * SLOTS + HALF) > 0
    scale = tl.where(is_half, 1.0, inverse_tau)

    # The vectors along the columns of the tile (1, COLUMNS), then along its lines (LINES, 1).
    y = tl.load(ys + row * N + columns, mask=columns < N, other=0.0)[None, :]
    z_p = tl.load(images + row * 2 * N + columns, mask=columns < N, other=0.0)[None, :]
    z_other = tl.load(images + row * 2 * N + N + columns, mask=columns < N, other=0.0)[None, :]
    z_p = z_p * inverse_e
    z_other = z_other * scale
    p = e * inverse_e
    s = tl.sum(p * z_other)
    v_p, v_other = _turning(z_p, z_other, p, k, s, is_half)
    v_e = v_p * inverse_e
    v_other = v_other * scale

    pick = lines[:, None] == columns[None, :]
    own_e = tl.sum(tl.where(pick, e, 0.0), axis=1)
    own_tau = tl.sum(tl.where(pick, tau, 0.0), axis=1)
    own_other = tl.sum(tl.where(pick, other, 0.0), axis=1)
    own_h = tl.load(before + row * N + lines, mask=here, other=0.0).to(ACC)
    own_y = tl.load(ys + row * N + lines, mask=here, other=0.0)
    own_z_p = tl.load(images + row * 2 * N + lines, mask=here, other=0.0) * inverse_e
    own_z_other = tl.load(images + row * 2 * N + N + lines, mask=here, other=0.0) * scale
    own_p = own_e * inverse_e
    own_v_p, own_v_other = _turning(own_z_p, own_z_other, own_p, k, s, is_half)
    own_v_e = own_v_p * inverse_e
    own_v_other = own_v_other * scale

    tile_at = skew + row * N * N + lines[:, None] * N + columns[None, :]
    tile_valid = here[:, None] & (columns < N)[None, :]
    tile = tl.load(tile_at, mask=tile_valid, other=0.0)
    tile += own_y[:, None] * h - own_h[:, None] * y
    tile += own_v_e[:, None] * e - own_e[:, None] * v_e
    tile += own_v_other[:, None] * other - own_other[:, None] * v_other
    tl.store(tile_at, tile, mask=tile_valid)

    rho = tl.load(rhos + row * N + lines, mask=here, other=0.0)
    g_e = rho - k * inverse_e * (own_z_p + own_z_other - s * own_p)
    g_tau = (1.0 + 2.0 * c) * own_z_p - own_z_other + s * (2.0 * own_p + own_tau * inverse_tau)
    g_tau = k * inverse_tau * g_tau
    io = g_projected.dtype.element_ty
    tl.store(g_projected + row * W + lines, g_tau.to(io), mask=here)
    tl.store(g_projected + row * W + (W - N) + lines, g_e.to(io), mask=here)
    g = tl.load(g_part + row * N + lines, mask=here, other=0.0)
    tl.store(g_part + row * N + lines, g + own_y, mask=here)


@triton.jit
def backward_memory_gradient(
    projected,
    pre,
    before,
    numbers,
    padded,
    rhos,
    g_memory,  # (B, N, N): the gradient to R_t, then to R_{t-1}
    N: tl.constexpr,
    W: tl.constexpr,
    MASKED: tl.constexpr,
    ACC: tl.constexpr,
    LINES: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """lambda = 1, where R_0 needs a gradient: G <- (G + rho h') Rotation'."""
    row = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, COLUMNS)
    lines = tl.program_id(1) * LINES + tl.arange(0, LINES)
    here = lines < N
    tau, e, h, other = _row_vectors(
        projected, pre, before, numbers, padded, row, N, W, MASKED, ACC, COLUMNS
    )
    inverse_e = tl.load(numbers + row * SLOTS + INVERSE_E)
    inverse_tau = tl.load(numbers + row * SLOTS + INVERSE_TAU)
    k = tl.load(numbers + row * SLOTS + K)
    is_half = tl.load(numbers + row * SLOTS + HALF) > 0
    tile_at = g_memory + row * N * N + lines[:, None] * N + columns[None, :]
    tile_valid = here[:, None] & (columns < N)[None, :]
    rho = tl.load(rhos + row * N + lines, mask=here, other=0.0)
    tile = tl.load(tile_at, mask=tile_valid, other=0.0) + rho[:, None] * h
    image_e = tl.sum(tile * e, axis=1)
    image_other = tl.sum(tile * other, axis=1)
    image_w = image_e * inverse_e + image_other * inverse_tau
    f_e = tl.where(is_half, -2.0 * inverse_e * inverse_e * image_e, -k * inverse_e * image_w)
    f_other = 2.0 * inverse_e * inverse_tau * image_e - k * inverse_tau * image_w
    f_other = tl.where(is_half, -2.0 * image_other, f_other)
    tl.store(tile_at, tile + f_e[:, None] * e + f_other[:, None] * other, mask=tile_valid)
