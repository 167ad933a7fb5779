r"""RUM's loop as one autograd function in plain PyTorch: any device, any dtype.

Forward, with p = e/|e|, q = tau/|tau|, c = p.q, w = p + q, k = 1/(1 + c) = 2/|w|^2::

    Rotation h = h - k (p.h + q.h) w + 2 (p.h) q
    R_t        = R_{t-1} + s1 p' + s2 q',   s2 = -k R_{t-1} w,   s1 = s2 + 2 R_{t-1} q

Backward, with rho the gradient to Rotation h or R_t h, gp = p.rho, gq = q.rho, G = gp + gq,
al = p.h, be = q.h, yq = 2 c gq - gp, s = gq be - al yq, for lambda = 0::

    dh = y = rho - k G w + 2 gq p
    de     = -(k/|e|)   [(al + be) y - (gq + yq) h - s p]
    dtau   =  (k/|tau|) [((1 + 2c) al - be) y - G h + s (2p + q)]

For lambda = 1 the gradient to R enters through the skew matrix K = R'(dL/dR) - (dL/dR)'R alone,
so that a step costs O(N^2)::

    y = R_t' rho;  K += y h' - h y';  zp = K p;  zq = K q;  s = p.zq
    de   = -(k/|e|)   (zp + zq - s p)
    dtau =  (k/|tau|) ((1 + 2c) zp - zq + s (2p + q))
    K   += Vp p' - p Vp' + Vq q' - q Vq',   Vp = -k (zp + zq),   Vq = 2 zp + Vp + 2 k s p
    R_{t-1} = R_t - s1 p' - s2 q'

All is written in e and tau instead of p and q, so that no unit vector is stored. What is kept for
the backward pass: tau, u, e, the states, a few numbers a row and, for lambda = 1, s1, s2 and f(z).
Everything that does not wait for the incoming gradient is computed for a block of steps at a time,
and the gradient of the weights is one product over all steps.
"""

from __future__ import annotations

from typing import Any, Dict, List, NamedTuple, Optional, Tuple

import torch
from torch import Tensor

from fairseq_rum.cells.base import RecurrentCell, State
from fairseq_rum.compat import autocast_dtype, is_tracing
from fairseq_rum.functional.activations import get_activation
from fairseq_rum.functional.first_order import first_order_only
from fairseq_rum.functional.norms import DENORMAL_FLOOR, NORM_FLOOR
from fairseq_rum.functional.rotation import _perpendicular
from fairseq_rum.kernels.rum.base import RumKernel, RumSettings
from fairseq_rum.kernels.rum.common import (
    NEAR_ANTIPARALLEL,
    SLOPES,
    TINY,
    accumulation_dtype,
)

BLOCK = 16  # steps whose element-wise work is done at a time, at most
BLOCK_ELEMENTS = 2**16  # and no more of them than fit into a cache
FLUSH_EVERY = 4  # steps from 1e-30 to the first denormal number, for gates above 0.01

HalfTurn = Tuple[Tensor, Tensor, Tensor]  # rows of the batch, their p, and s perpendicular to it


class FusedKernel(RumKernel):
    """Plain PyTorch; always there."""

    def unsupported(
        self, cell: RecurrentCell, x: Tensor, state: State, padding_mask: Optional[Tensor]
    ) -> Optional[str]:
        """Why the loop does not cover this call; None when it does."""
        if x.shape[1] == 0:
            return "no empty sequence"
        if is_tracing():
            return "no tracing by torch.compile or torch.jit"
        return super().unsupported(cell, x, state, padding_mask)

    def sequence(
        self,
        projected: Tensor,
        h: Tensor,
        memory: Optional[Tensor],
        weight_hh: Tensor,
        padded: Optional[Tensor],
        reverse: bool,
        settings: RumSettings,
    ) -> Tuple[Tensor, Tensor, Optional[Tensor]]:
        """The loop; arguments and results as :meth:`RumKernel.sequence`.

        float16 and bfloat16 (of the inputs, or through autocast) concern the matrix products and
        what is stored; the rest of a step, and R, are computed in float32.
        """
        dtype = autocast_dtype(projected.device)
        if dtype is not None and projected.dtype != torch.float64:
            projected, weight_hh = projected.to(dtype), weight_hh.to(dtype)
        with torch.autocast(projected.device.type, enabled=False):
            inputs = (projected, h, memory, weight_hh)
            if torch.is_grad_enabled() and any(x is not None and x.requires_grad for x in inputs):
                return _Loop.apply(projected, h, memory, weight_hh, padded, reverse, settings)
            with torch.no_grad():
                return _ForwardPass(*inputs, padded, reverse, settings, keep=False)()


class _Kept(NamedTuple):
    """What the forward pass leaves for the backward pass; time is the first axis."""

    pre: Tensor  # (T, B, 3N): tau, u, e; for lambda = 1 tau, f(z), e; without gate (T, B, 2N)
    states: Tensor  # (T + 1, B, N): every h in the order of time, the first one included
    products: Tensor  # (T, 4, B, 1): |tau|^2, tau.e, tau.h, e.h
    scales: Tensor  # (T, 3, B, 1): 1/(|tau| |e|), 1/|tau|, 1/|e|; the last is 0 where R = I
    divisor: Tensor  # (T, B, 1): 1 + c; infinite where R = I
    norms: Optional[Tensor]  # (T, B, 1): |h_t| before time normalization
    gates: Optional[Tensor]  # (T, B, N): u, for lambda = 1
    factors: Optional[Tensor]  # (T, B, 2, N): R_t - R_{t-1} = factors' [tau; e]
    memory: Optional[Tensor]  # (B, N, N): the last R


class _Loop(torch.autograd.Function):
    """Autograd's view of :class:`_ForwardPass` and :class:`_BackwardPass`."""

    @staticmethod
    def forward(  # type: ignore[override]
        ctx: Any,
        projected: Tensor,
        h: Tensor,
        memory: Optional[Tensor],
        weight: Tensor,
        padded: Optional[Tensor],
        reverse: bool,
        settings: RumSettings,
    ) -> Tuple[Tensor, Tensor, Optional[Tensor]]:
        run = _ForwardPass(projected, h, memory, weight, padded, reverse, settings, keep=True)
        results = run()
        ctx.save_for_backward(*run.kept(), weight, padded)
        ctx.half_turns = run.half_turns
        ctx.options = (reverse, settings)
        ctx.dtypes = (projected.dtype, h.dtype, None if memory is None else memory.dtype)
        ctx.set_materialize_grads(False)
        return results

    @staticmethod
    @first_order_only("the backend naive")
    def backward(  # type: ignore[override]
        ctx: Any, *gradients: Optional[Tensor]
    ) -> Tuple[Optional[Tensor], ...]:
        if all(gradient is None for gradient in gradients):
            return (None,) * 7
        *kept, weight, padded = ctx.saved_tensors
        run = _BackwardPass(
            _Kept(*kept), ctx.half_turns, weight, padded, *ctx.options, ctx.needs_input_grad
        )
        results = run(*gradients)
        results = tuple(
            None if result is None or not needed else result.to(dtype)
            for result, needed, dtype in zip(
                results, ctx.needs_input_grad, (*ctx.dtypes, weight.dtype)
            )
        )
        return (*results, None, None, None)


def _blocks(steps: int, elements: int, reverse: bool) -> List[Tuple[int, int]]:
    """(first, last + 1) of every block of steps of so many elements, in the order they run."""
    length = max(1, min(BLOCK, BLOCK_ELEMENTS // max(1, elements)))
    blocks = [(low, min(low + length, steps)) for low in range(0, steps, length)]
    return blocks[::-1] if reverse else blocks


def _half_turn(x: Tensor, p: Tensor, s: Tensor) -> Tensor:
    """H_s H_p x, the rotation by pi in the plane of p and s, which are perpendicular."""
    x = x - 2 * (p * x).sum(-1, keepdim=True) * p
    return x - 2 * (s * x).sum(-1, keepdim=True) * s


def _half_turn_rows(matrices: Tensor, p: Tensor, s: Tensor) -> Tensor:
    """M H_s H_p: the rows of every matrix turned."""
    return _half_turn(matrices, p.unsqueeze(1), s.unsqueeze(1))


_ACTIVATIONS = {"relu": torch.relu_, "tanh": torch.tanh_, "sigmoid": torch.sigmoid_}


class _ForwardPass:
    """One run over a sequence; with ``keep``, also what the backward pass needs.

    A step takes the fast path: c is the sum of products p.q. Where that is not good enough (1 + c
    close to 0, tau close to 0) :meth:`_mend` computes the step's numbers with care. For
    lambda = 0 a whole block is run first and looked at once, and again if need be, since looking
    costs a synchronization; for lambda = 1 every step is looked at, since it changes R in place.
    """

    def __init__(
        self,
        projected: Tensor,
        h0: Tensor,
        memory: Optional[Tensor],
        weight: Tensor,
        padded: Optional[Tensor],
        reverse: bool,
        settings: RumSettings,
        keep: bool,
    ) -> None:
        steps, batch, _ = projected.shape
        n = weight.shape[1]
        self.projected, self.weight, self.reverse, self.keep = projected, weight.t(), reverse, keep
        self.steps, self.batch, self.n = steps, batch, n
        self.blocks = _blocks(steps, batch * n, reverse)
        length = max(high - low for low, high in self.blocks)
        self.gated, self.lambda_, self.eta = settings.update_gate, settings.lambda_, settings.eta
        self.activate = _ACTIVATIONS.get(settings.activation, get_activation(settings.activation))
        self.shift = 0 if reverse else 1  # h after step t is states[t + shift]
        state_dtype = torch.promote_types(projected.dtype, h0.dtype)
        self.dtype = dtype = accumulation_dtype(state_dtype)
        self.eps = torch.finfo(dtype).eps
        self.limit = self.eps**-2

        self.states = self._new(steps + 1, batch, n, dtype=state_dtype)
        self.states[steps if reverse else 0] = h0
        width = (3 if self.gated or self.lambda_ else 2) * n
        self.pre = self._new(steps if keep else 0, batch, width, dtype=projected.dtype)
        # Steps are computed in place where nothing is cast, else in a block that comes and goes.
        self.block: Optional[Tensor] = None
        if not keep or projected.dtype != dtype:
            self.block = self._new(length, batch, width)
        self.norms = None if self.eta is None else self._new(steps, batch, 1)

        norm_e = torch.linalg.vector_norm(projected[..., -n:], dim=-1, keepdim=True, dtype=dtype)
        self.turns = norm_e > self.eps**2 if n > 1 else torch.zeros_like(norm_e, dtype=torch.bool)
        self.padded = None if padded is None else padded.unsqueeze(-1)
        if self.padded is not None:
            self.turns &= ~self.padded
        self.inverse_e = torch.where(self.turns, norm_e.reciprocal(), 0.0)
        self.offset = torch.where(self.turns, 1.0, float("inf")).to(dtype)
        self.scales = self._new(steps, 3, batch, 1)
        self.scales[:, 2] = self.inverse_e
        self.products = self._new(steps, 4, batch, 1)
        self.divisor = self._new(steps, batch, 1)
        self.half_turns: Dict[int, HalfTurn] = {}
        self.mended = False

        self.gates = self.factors = self.memory = None
        if self.lambda_:
            assert memory is not None
            self.memory_dtype = memory.dtype
            self.memory = self._new(batch, n, n).copy_(memory)
            self.images = self._new(batch, 3, n)
            self.factors = self._new(steps if keep else length, batch, 2, n)
            if self.gated:
                self.gates = self._new(steps if keep else length, batch, n)

        # Scratch of one step.
        terms = self._new(4, batch, n)
        self.terms, self.terms_flat = terms.unbind(0), terms.view(4 * batch, n)
        self.ones = torch.ones(n, dtype=dtype, device=projected.device)
        self.bias = torch.zeros(4 * batch, dtype=dtype, device=projected.device)
        self.bias[:batch] = TINY[dtype]
        self.cosines = self._new(3, batch, 1)
        self.cosine = self.cosines.unbind(0)
        self.small = self._new(3, batch, 1).unbind(0)
        self.one = torch.ones(batch, 1, dtype=dtype, device=projected.device)
        self.z, self.mixed = self._new(2, batch, n).unbind(0)

    def _new(self, *shape: int, dtype: Optional[torch.dtype] = None) -> Tensor:
        return torch.empty(shape, dtype=dtype or self.dtype, device=self.projected.device)

    def kept(self) -> _Kept:
        """What the backward pass needs."""
        return _Kept(
            self.pre,
            self.states,
            self.products,
            self.scales,
            self.divisor,
            self.norms,
            self.gates,
            self.factors,
            self.memory,
        )

    def __call__(self) -> Tuple[Tensor, Tensor, Optional[Tensor]]:
        careful = False
        for low, high in self.blocks:
            self.mended = False
            self._run_block(low, high, careful)
            if not (careful or self.lambda_) and self._unusual(low, high):
                self._run_block(low, high, True)
            careful = self.mended  # unusual rows come in company
        outputs = self.states[:-1] if self.reverse else self.states[1:]
        if self.padded is not None:
            outputs = outputs.masked_fill(self.padded, 0.0)
        last = self.states[0 if self.reverse else self.steps].clone()
        final = None if self.memory is None else self.memory.to(self.memory_dtype)
        return outputs.detach(), last, final

    def _run_block(self, low: int, high: int, careful: bool) -> None:
        n, size, reverse = self.n, high - low, self.reverse
        block = self.pre[low:high] if self.block is None else self.block[:size]
        source = self.projected[low:high]
        if block.shape == source.shape:
            block.copy_(source)
        else:
            block[..., :n] = source[..., :n]
            block[..., -n:] = source[..., -n:]
        if self.padded is not None:  # what padded inputs hold must not get anywhere
            block.masked_fill_(self.padded[low:high], 0.0)
        taus, es = block[..., :n].unbind(0), block[..., -n:].unbind(0)
        middles = block[..., n : 2 * n].unbind(0)
        lines = block[..., : self.weight.shape[1]].unbind(0)
        first = low if self.keep else 0
        gates = None if self.gates is None else self.gates[first : first + size].unbind(0)
        factors = None if self.factors is None else self.factors[first : first + size].unbind(0)
        states = self.states[low : high + 1].unbind(0)
        direct = self.projected.dtype == self.dtype
        for i in reversed(range(size)) if reverse else range(size):
            t, tau, e = low + i, taus[i], es[i]
            before, after = states[i + 1 - self.shift], states[i + self.shift]
            h = before.to(self.dtype)
            if direct:
                lines[i].addmm_(h, self.weight)
            else:
                lines[i].add_(torch.mm(before.to(self.projected.dtype), self.weight))
            of_e, of_tau = self._numbers(t, tau, e, h, careful)
            if self.memory is None:
                torch.addcmul(h, e, of_e, out=self.z).addcmul_(tau, of_tau)
                if t in self.half_turns:
                    rows, p, s = self.half_turns[t]
                    self.z[rows] = e[rows] + _half_turn(h[rows], p, s)
                gate = middles[i].sigmoid_() if self.gated else None
            else:
                gate = torch.sigmoid(middles[i], out=gates[i]) if self.gated else None
                torch.addcmul(h, e, of_e, out=middles[i]).addcmul_(tau, of_tau)
                self._turn_memory(t, block[i].view(self.batch, 3, n), h, factors[i])
            candidate = self.activate(self.z)
            if self.memory is not None:
                middles[i].copy_(candidate)
            self._mix(t, candidate, gate, h, before, after)
        if self.keep and self.block is not None:
            self.pre[low:high] = block

    def _numbers(
        self, t: int, tau: Tensor, e: Tensor, h: Tensor, careful: bool
    ) -> Tuple[Tensor, Tensor]:
        """The coefficients of e and tau in Rotation h - h; for lambda = 0 in e + Rotation h - h."""
        tau_tau, tau_e, tau_h, e_h = self.terms
        product, scale, divisor = self.products[t], self.scales[t], self.divisor[t]
        inverse_both, inverse_tau, inverse_e = scale.unbind(0)
        torch.mul(tau, tau, out=tau_tau)
        torch.mul(tau, e, out=tau_e)
        torch.mul(tau, h, out=tau_h)
        torch.mul(e, h, out=e_h)
        # A product with ones sums faster than sum does.
        torch.addmv(self.bias, self.terms_flat, self.ones, out=product.view(-1))
        torch.rsqrt(product[0], out=inverse_tau)
        torch.mul(inverse_tau, inverse_e, out=inverse_both)
        torch.mul(product[1:], scale, out=self.cosines)
        c, q_h, p_h = self.cosine
        torch.add(c, self.offset[t], out=divisor)
        if careful or (self.lambda_ and self._unusual(t, t + 1)):
            self._mend(t, tau, e)
        kab, of_e, of_tau = self.small
        torch.add(q_h, p_h, out=kab).div_(divisor)
        torch.sub(p_h, kab, alpha=0.5, out=of_tau).mul_(inverse_tau).mul_(2)
        if self.lambda_:
            torch.mul(kab, inverse_e, out=of_e).neg_()
        else:
            torch.addcmul(self.one, kab, inverse_e, value=-1, out=of_e)
        return of_e, of_tau

    def _unusual(self, low: int, high: int) -> bool:
        """Whether a row of these steps is close to antiparallel, or has a tau close to 0."""
        bad = (self.divisor[low:high] < NEAR_ANTIPARALLEL) | (
            self.scales[low:high, 1] >= self.limit
        )
        return bool((bad & self.turns[low:high]).any())

    def _mend(self, t: int, tau: Tensor, e: Tensor) -> None:
        """The numbers of step t with c from the vector w, and rows that do not turn taken out."""
        turns, scales, divisor = self.turns[t], self.scales[t], self.divisor[t]
        p = e * self.inverse_e[t]
        w = torch.addcmul(p, tau, scales[1])
        square = (w * w).sum(-1, keepdim=True)
        live = turns & (scales[1] < self.limit)
        opposite = live & (square < self.eps)
        usual = live & ~opposite
        near = usual & (divisor < NEAR_ANTIPARALLEL)
        torch.where(near, square / 2, divisor, out=divisor).masked_fill_(~usual, float("inf"))
        torch.mul(self.inverse_e[t], usual, out=scales[2])
        torch.mul(scales[1], scales[2], out=scales[0])
        torch.mul(self.products[t, 1:], scales, out=self.cosines)
        self.mended = self.mended or bool((near | (turns & ~usual)).any())
        self.half_turns.pop(t, None)
        if bool(opposite.any()):
            rows = opposite.squeeze(-1).nonzero().squeeze(-1)
            self.half_turns[t] = (rows, p[rows], _perpendicular(p[rows]))

    def _turn_memory(self, t: int, vectors: Tensor, h: Tensor, factors: Tensor) -> None:
        """R <- R Rotation for the vectors tau, Rotation h, e (B, 3, N), and z = e + R h."""
        memory, (r_tau, r_h, r_e) = self.memory, self.images.unbind(1)
        inverse_both, inverse_tau, inverse_e = self.scales[t].unbind(0)
        turned = self.half_turns.get(t)
        if turned is not None:
            rows, p, s = turned
            vectors[rows, 1] = _half_turn(h[rows], p, s)
        torch.bmm(vectors, memory.transpose(1, 2), out=self.images)
        minus_k, of_tau, of_e = self.small
        torch.reciprocal(self.divisor[t], out=minus_k).neg_()
        torch.mul(minus_k, inverse_tau, out=of_tau)
        torch.mul(minus_k, inverse_e, out=of_e)
        r_w = torch.mul(r_e, inverse_e, out=self.mixed).addcmul_(r_tau, inverse_tau)
        by_tau, by_e = factors.unbind(1)
        torch.mul(r_w, of_tau, out=by_tau)
        torch.mul(r_w, of_e, out=by_e).addcmul_(r_tau, inverse_both, value=2)
        memory.baddbmm_(factors.transpose(1, 2), vectors[:, ::2])
        if turned is not None:
            memory[rows] = _half_turn_rows(memory[rows], p, s)
        torch.add(vectors[:, 2], r_h, out=self.z)

    def _mix(
        self,
        t: int,
        candidate: Tensor,
        gate: Optional[Tensor],
        h: Tensor,
        before: Tensor,
        after: Tensor,
    ) -> None:
        """h_t = u h + (1 - u) f(z), flushed, normalized, and as before where padded."""
        new = candidate
        if gate is not None:
            plain = self.eta is None and self.padded is None and after.dtype == self.dtype
            new = torch.lerp(candidate, h, gate, out=after if plain else self.mixed)
        if t % FLUSH_EVERY == 0:
            torch.ops.aten.hardshrink.out(new, DENORMAL_FLOOR, out=new)
        if self.norms is not None:
            norm = torch.linalg.vector_norm(new, dim=-1, keepdim=True, out=self.norms[t])
            new = new.mul_(self.eta / norm.clamp_min(NORM_FLOOR))
        if self.padded is not None:
            after.copy_(torch.where(self.padded[t], before, new.to(before.dtype)))
        elif new is not after:
            after.copy_(new)


class _BackwardPass:
    """The gradients of one run; see the module's equations.

    The coefficients of the vectors in de, dtau and dh are linear in gp and gq, so
    that all that multiplies these two is computed for all steps together.
    """

    def __init__(
        self,
        kept: _Kept,
        half_turns: Dict[int, HalfTurn],
        weight: Tensor,
        padded: Optional[Tensor],
        reverse: bool,
        settings: RumSettings,
        needed: Tuple[bool, ...],
    ) -> None:
        self.kept, self.half_turns, self.weight, self.settings = kept, half_turns, weight, settings
        self.padded = None if padded is None else padded.unsqueeze(-1)
        self.reverse, self.needed = reverse, needed
        self.shift = 0 if reverse else 1
        self.steps, self.batch, _ = kept.pre.shape
        self.n = weight.shape[1]
        self.dtype = kept.products.dtype
        self.direct = kept.pre.dtype == self.dtype
        self.ones = torch.ones(self.n, dtype=self.dtype, device=weight.device)
        terms, sums = self._new(2, self.batch, self.n), self._new(2 * self.batch)
        self.terms, self.terms_flat = terms.unbind(0), terms.view(2 * self.batch, self.n)
        self.sum_pair = sums.view(2, self.batch, 1)
        self.sums_flat, self.sums = sums, self.sum_pair.unbind(0)
        self.sum_flat = sums[: self.batch]
        self.y = self._new(self.batch, self.n)

        t_e, t_h, e_h = kept.products[:, 1:].unbind(1)
        self.ie_it, self.it, self.ie = kept.scales.unbind(1)
        self.k = kept.divisor.reciprocal()
        self.c, self.be, self.al = t_e * self.ie_it, t_h * self.it, e_h * self.ie
        if settings.lambda_:
            self._prepare_memory()
        else:
            self._prepare_linear()

    def _new(self, *shape: int, dtype: Optional[torch.dtype] = None) -> Tensor:
        return torch.empty(shape, dtype=dtype or self.dtype, device=self.weight.device)

    def _prepare_linear(self) -> None:
        """What multiplies gp and gq, ``(T, 7, B, 1)`` each, and the constants of y."""
        c, k, it, ie, al, be = self.c, self.k, self.it, self.ie, self.al, self.be
        k_e, k_t = k * ie, k * it
        s_q = be - 2 * c * al  # s = al gp + s_q gq
        by_p = [
            -k_e,  # y, of e
            -k_t,  # y, of tau
            -k_e,  # de, of h
            k_e * ie * al,  # de, of e
            -k_t,  # dtau, of h
            2 * k_t * ie * al,  # dtau, of e
            k_t * it * al,  # dtau, of tau
        ]
        by_q = [
            (2 - k) * ie,
            -k_t,
            (1 + 2 * c) * k_e,
            k_e * ie * s_q,
            -k_t,
            2 * k_t * ie * s_q,
            k_t * it * s_q,
        ]
        self.by_p, self.by_q = torch.stack(by_p, 1), torch.stack(by_q, 1)
        self.units = torch.stack((ie, it), 1)
        self.e_of_y, self.tau_of_y = -k_e * (al + be), k_t * ((1 + 2 * c) * al - be)
        self.coefficients = self._new(7, self.batch, 1)
        self.coefficient = self.coefficients.unbind(0)
        kab = (al + be) / self.kept.divisor
        self.z_of_e, self.z_of_tau = 1 - kab * ie, (2 * al - kab) * it

    def _prepare_memory(self) -> None:
        batch, n, k = self.batch, self.n, self.k
        self.k_e, self.k_t = k * self.ie, k * self.it
        self.minus_k_e, self.minus_k_t = -self.k_e, -self.k_t
        self.tau_of_ze = self.k_t * (1 + 2 * self.c) * self.ie
        self.tau_of_zt = -self.k_t * self.it
        self.s_in_e, self.s_in_tau = self.k_e * self.ie, self.k_t * self.it
        self.twice_ie_it, self.twice_k_ie_it = 2 * self.ie_it, 2 * self.k_e * self.it
        self.left, self.right = self._new(batch, 6, n), self._new(batch, 6, n)
        self.z_pair = self._new(batch, 2, n)
        self.z_w = self._new(batch, n)

    def __call__(
        self, g_out: Optional[Tensor], g_last: Optional[Tensor], g_memory: Optional[Tensor]
    ) -> Tuple[Optional[Tensor], ...]:
        kept, n, batch = self.kept, self.n, self.batch
        rows = self.weight.shape[0]
        g = torch.zeros(batch, n, dtype=self.dtype, device=self.weight.device)
        if g_last is not None:
            g.copy_(g_last)
        self.memory = self.skew = self.g_memory = None
        if kept.memory is not None:
            self.memory = kept.memory.clone()
            self.skew = torch.zeros_like(self.memory)
            if self.needed[2]:
                self.g_memory = torch.zeros_like(self.memory)
            if g_memory is not None:
                g_memory = g_memory.to(self.dtype)
                product = torch.bmm(self.memory.transpose(1, 2), g_memory)
                torch.sub(product, product.transpose(1, 2), out=self.skew)
                if self.g_memory is not None:
                    self.g_memory.copy_(g_memory)
        width = rows + n
        g_projected = self._new(self.steps, batch, width, dtype=kept.pre.dtype)
        for low, high in reversed(_blocks(self.steps, batch * n, self.reverse)):
            g_block = g_projected[low:high] if self.direct else self._new(high - low, batch, width)
            self._run_block(low, high, g, g_out, g_block)
            if not self.direct:
                g_projected[low:high] = g_block
        g_weight = None
        if self.needed[3]:
            before = kept.states[1:] if self.reverse else kept.states[:-1]
            flat = g_projected[..., :rows].reshape(-1, rows)
            g_weight = torch.mm(flat.t(), before.reshape(-1, n).to(flat.dtype))
        return g_projected, g, self.g_memory, g_weight

    def _run_block(
        self, low: int, high: int, g: Tensor, g_out: Optional[Tensor], g_block: Tensor
    ) -> None:
        n, kept, direct = self.n, self.kept, self.direct
        block = kept.pre[low:high].to(self.dtype)
        states = kept.states[low : high + 1].to(self.dtype)
        before, after = (states[1:], states[:-1]) if self.reverse else (states[:-1], states[1:])
        of_z, of_u, of_h = self._slopes(low, high, block, before, after)
        if g_out is not None:
            g_out = g_out[low:high].to(self.dtype)
            if self.padded is not None:
                g_out = g_out.masked_fill(self.padded[low:high], 0.0)
        through_norm = None
        if kept.norms is not None:
            norms = kept.norms[low:high]
            through_norm = (norms > NORM_FLOOR).to(self.dtype).mul_(-(self.settings.eta**-2))
            if self.padded is not None:
                through_norm.masked_fill_(self.padded[low:high], 0.0)
        g_taus, g_es = g_block[..., :n].unbind(0), g_block[..., -n:].unbind(0)
        g_us, lines = g_block[..., n : 2 * n].unbind(0), g_block[..., :-n].unbind(0)
        taus, es, hs = block[..., :n].unbind(0), block[..., -n:].unbind(0), before.unbind(0)
        g_outs = None if g_out is None else g_out.unbind(0)
        by_z, by_u, by_h = (None if x is None else x.unbind(0) for x in (of_z, of_u, of_h))
        for i in range(high - low) if self.reverse else reversed(range(high - low)):
            t = low + i
            if g_outs is not None:
                g.add_(g_outs[i])
            if through_norm is not None:
                torch.mul(g, after[i], out=self.terms[0])
                torch.mv(self.terms[0], self.ones, out=self.sum_flat)
                g.addcmul_(after[i], self.sums[0].mul_(through_norm[i]))
            rho = torch.mul(g, by_z[i], out=g_es[i])
            if by_u is not None:
                torch.mul(g, by_u[i], out=g_us[i])
            if self.memory is None:
                y = self._through_rotation(t, taus[i], es[i], hs[i], rho, g_taus[i])
            else:
                y = self._through_memory(t, taus[i], es[i], hs[i], rho, g_taus[i])
            if by_h is None:
                g.copy_(y)
            else:
                torch.addcmul(y, g, by_h[i], out=g)
            if direct:
                g.addmm_(lines[i], self.weight)
            else:
                g.add_(torch.mm(lines[i].to(self.weight.dtype), self.weight))

    def _slopes(
        self, low: int, high: int, block: Tensor, before: Tensor, after: Tensor
    ) -> Tuple[Tensor, Optional[Tensor], Optional[Tensor]]:
        """What the gradient to h_t is multiplied by to give those to z, the gate's input and h."""
        n, kept, activation = self.n, self.kept, self.settings.activation
        if self.settings.lambda_:
            candidate = block[..., n : 2 * n]
        else:
            e, tau = block[..., -n:], block[..., :n]
            z = torch.addcmul(before, e, self.z_of_e[low:high])
            z.addcmul_(tau, self.z_of_tau[low:high])
            for t in self.half_turns.keys() & set(range(low, high)):
                rows, p, s = self.half_turns[t]
                z[t - low, rows] = e[t - low, rows] + _half_turn(before[t - low, rows], p, s)
            candidate = _ACTIVATIONS.get(activation, get_activation(activation))(z)
        live = after != 0  # a state that was flushed, or that is 0, passes no gradient
        of_z = SLOPES[activation](candidate)
        of_u = of_h = None
        if self.settings.update_gate:
            u = block[..., n : 2 * n] if kept.gates is None else kept.gates[low:high]
            of_h = u * live
            closed = 1 - u
            of_u = torch.sub(before, candidate).mul_(closed).mul_(of_h)
            of_z.mul_(closed)
        of_z.mul_(live)
        if kept.norms is not None:
            scale = self.settings.eta / kept.norms[low:high].clamp_min(NORM_FLOOR)
            for factor in (of_z, of_u, of_h):
                if factor is not None:
                    factor.mul_(scale)
        if self.padded is not None:
            padded = self.padded[low:high]
            of_z.masked_fill_(padded, 0.0)
            if of_u is not None:
                of_u.masked_fill_(padded, 0.0)
            of_h = padded.to(self.dtype) if of_h is None else of_h.masked_fill_(padded, 1.0)
        return of_z, of_u, of_h

    def _through_rotation(
        self, t: int, tau: Tensor, e: Tensor, h: Tensor, rho: Tensor, g_tau: Tensor
    ) -> Tensor:
        """lambda = 0: adds de to rho, writes dtau, returns y, the gradient to h."""
        terms, sums, y = self.terms, self.sums, self.y
        torch.mul(e, rho, out=terms[0])
        torch.mul(tau, rho, out=terms[1])
        torch.mv(self.terms_flat, self.ones, out=self.sums_flat)
        self.sum_pair.mul_(self.units[t])  # gp, gq
        torch.mul(self.by_p[t], sums[0], out=self.coefficients)
        self.coefficients.addcmul_(self.by_q[t], sums[1])
        y_e, y_tau, e_h, e_e, tau_h, tau_e, tau_tau = self.coefficient
        torch.addcmul(rho, e, y_e, out=y).addcmul_(tau, y_tau)
        if t in self.half_turns:
            rows, p, s = self.half_turns[t]
            y[rows] = _half_turn(rho[rows], p, s)
        rho.addcmul_(y, self.e_of_y[t]).addcmul_(h, e_h).addcmul_(e, e_e)
        torch.mul(y, self.tau_of_y[t], out=g_tau)
        g_tau.addcmul_(h, tau_h).addcmul_(e, tau_e).addcmul_(tau, tau_tau)
        return y

    def _through_memory(
        self, t: int, tau: Tensor, e: Tensor, h: Tensor, rho: Tensor, g_tau: Tensor
    ) -> Tensor:
        """lambda = 1: adds de to rho, writes dtau, takes R and K one step back, returns y."""
        memory, skew, n, batch = self.memory, self.skew, self.n, self.batch
        left, right, terms, sums = self.left, self.right, self.terms, self.sums
        products, ie, it = self.kept.products[t], self.ie[t], self.it[t]
        factors = self.kept.factors[t]
        # The rows of left: y, Ve, Vtau, h, e, tau; of right: h, e, tau, -y, -Ve, -Vtau.
        y, v_e, v_tau = left[:, 0], left[:, 1], left[:, 2]
        torch.bmm(rho.unsqueeze(1), memory, out=self.y.view(batch, 1, n))
        y.copy_(self.y)
        left[:, 3].copy_(h)
        left[:, 4].copy_(e)
        left[:, 5].copy_(tau)
        vectors = left[:, 4:]
        torch.mul(vectors[:, 0], y, out=terms[0])
        torch.mul(vectors[:, 1], y, out=terms[1])
        torch.mv(self.terms_flat, self.ones, out=self.sums_flat)
        # Z = (K + y h' - h y') [e tau]
        torch.bmm(vectors, skew.transpose(1, 2), out=self.z_pair)
        z_e, z_tau = self.z_pair.unbind(1)
        z_e.addcmul_(y, products[3]).addcmul_(h, sums[0], value=-1)
        z_tau.addcmul_(y, products[2]).addcmul_(h, sums[1], value=-1)
        torch.mul(e, z_tau, out=terms[0])
        torch.mv(terms[0], self.ones, out=self.sum_flat)
        s = sums[0].mul_(self.ie_it[t])
        z_w = torch.mul(z_e, ie, out=self.z_w).addcmul_(z_tau, it)
        if self.g_memory is not None:
            self._turn_memory_gradient(t, vectors, rho, h, products)
        rho.addcmul_(z_w, self.minus_k_e[t]).addcmul_(e, self.s_in_e[t] * s)
        s_e = self.twice_k_ie_it[t] * s
        torch.mul(z_e, self.tau_of_ze[t], out=g_tau).addcmul_(z_tau, self.tau_of_zt[t])
        g_tau.addcmul_(e, s_e).addcmul_(tau, self.s_in_tau[t] * s)
        torch.mul(z_w, self.minus_k_e[t], out=v_e)
        torch.mul(z_w, self.minus_k_t[t], out=v_tau)
        v_tau.addcmul_(z_e, self.twice_ie_it[t]).addcmul_(e, s_e)
        right[:, :3].copy_(left[:, 3:])
        torch.neg(left[:, :3], out=right[:, 3:])
        skew.baddbmm_(left.transpose(1, 2), right)
        pair = torch.stack((tau, e), 1)
        memory.baddbmm_(factors.transpose(1, 2), pair, alpha=-1)
        if t in self.half_turns:
            rows, p, half = self.half_turns[t]
            memory[rows] = _half_turn_rows(memory[rows], p, half)
            turned = _half_turn_rows(skew[rows], p, half).transpose(1, 2)
            skew[rows] = _half_turn_rows(turned, p, half).transpose(1, 2)
            if self.g_memory is not None:
                self.g_memory[rows] = _half_turn_rows(self.g_memory[rows], p, half)
        return self.y

    def _turn_memory_gradient(
        self, t: int, vectors: Tensor, rho: Tensor, h: Tensor, products: Tensor
    ) -> None:
        """G <- (G + rho h') Rotation', only where R_0 needs a gradient."""
        image_e, image_tau = torch.bmm(vectors, self.g_memory.transpose(1, 2)).unbind(1)
        image_e = torch.addcmul(image_e, rho, products[3])
        image_tau = torch.addcmul(image_tau, rho, products[2])
        image_w = image_e * self.ie[t] + image_tau * self.it[t]
        of_tau = torch.addcmul(image_w * self.minus_k_t[t], image_e, self.twice_ie_it[t])
        left = torch.stack((rho, image_w * self.minus_k_e[t], of_tau), 1)
        right = torch.cat((h.unsqueeze(1), vectors), 1)
        self.g_memory.baddbmm_(left.transpose(1, 2), right)
