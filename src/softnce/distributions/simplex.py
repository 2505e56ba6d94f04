"""The density ∝ exp(ω·x) on the probability simplex: its integral with all derivatives, and exact draws.

The textbook form of the integral, Σ_k exp(ω_k) / Π_{j≠k} (ω_k − ω_j), cancels to nothing in floating point beyond about
ten classes, and for ties at any number. The contour integral

    Z = (1/2πi) ∫ exp(C + w) Π_k 1/(C + w − ω_k) dw

does not. C is the saddle point on the real line, right of every ω_k, and the contour leaves it along a hyperbola that
follows the steepest descent, so that the trapezoid rule with 33 nodes on the upper half is exact to rounding.

Draws are made by rejection. The density is K independent exponentials x_k of rates r_k = c − ω_k conditioned on summing
to 1, for any c that keeps the rates positive. Take a *group* G of the k largest ω, and propose

    x_j for j outside G: as they come; S is their sum, T = 1 − S,
    x_i for i in G:      as they come, then rescaled to sum to T.

With v = Σ_G r_i x_i / Σ_G x_i before the rescaling, target over proposal is proportional to v^k T^(k−1) exp(−T v). That
is at most r_max ((k−1)/e)^(k−1), r_max the largest rate in G, or (K/e)^K if G is everything, since then T = 1. Hence

    acceptance = Z exp(−c) Π r_i · Γ(k) (e/(k−1))^(k−1) / r_max    or    Z exp(−c) Π r_i · Γ(K) (e/K)^K,

for the best group at least about 1/√(1 + 1/2 + … + 1/K): 3 proposals per draw at K = 10⁴.
"""

from functools import reduce
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

NODES = 33
NEWTON_STEPS = 10
CUT = 38.0  # −log of the integrand at the last node: exp(−38) is below fp64's resolution
ASPECT = 0.85  # < 1 keeps the asymptotes where Re w² < 0, so a Gaussian bulk of small rates decays along them too
FACTORS = 32  # multiplied before a logarithm is taken; each is within [0.4, 1e6] or so, hence so few
NODES_BLOCK = 2**18  # elements of a (nodes × classes) block: bounds the memory, and fits the cache
DRAWS_BLOCK = 2**22  # elements proposed at a time, which bounds the memory beside the result
ROWS_BLOCK = 2**15  # elements of ω worked on at a time: the many passes over them stay in the cache
SMALLEST_RATE = 1e-6  # a lone largest class wants rate 0; this costs at most exp(−1e-6) of the acceptance


def saddle_point(gaps: Tensor, excluded: Tensor | None = None, floor: float = 1.0) -> Tensor:
    """The c ≥ floor with Σ_k 1/(c + gaps_k) = 1, or floor where the sum is already below 1 there. Shape (..., 1).

    ``gaps`` are max ω − ω_k (..., K), +inf for a class that takes no part; ``excluded`` (..., 1) leaves one class out.
    Newton on 1/Σ − 1, concave in c, climbs to the root from the left. Ten steps reach a relative 1e-6, and nothing here
    needs more: the integral is the same for every c > 0.
    """
    c = gaps.new_full((*gaps.shape[:-1], 1), floor)
    for _ in range(NEWTON_STEPS):
        t = (c + gaps).reciprocal()
        if excluded is not None:
            t = t.scatter(-1, excluded, 0.0)
        total = t.sum(-1, keepdim=True)
        step = (total - 1) * total / t.square().sum(-1, keepdim=True)
        c = c + torch.where(total > 1, step, 0.0)
    return c


def contour(inverse_rates: Tensor) -> tuple[Tensor, Tensor]:
    """Nodes w on the upper half of the hyperbola and log dw/2πi there, both (..., NODES) and complex.

    w(u) = i·d·sinh u − q·d·(cosh u − 1). Its curvature at the saddle is the steepest descent's, q/2d = κ₃/3κ₂ with
    κ_p = Σ_k r_k^{−p}. The last node is where the integrand has fallen to exp(−CUT).
    """
    t = inverse_rates
    k2, k3 = t.square().sum(-1, keepdim=True), t.pow(3).sum(-1, keepdim=True)
    d = 1.5 * ASPECT * k2 / k3
    # −log|integrand| is nearly linear in h = cosh u − 1, from the Gaussian regime to the exponential one, so rescaling
    # h by CUT / (its value at h) converges at once.
    h = CUT / (k2 * d.square())
    for _ in range(4):
        x, y_squared = -ASPECT * d * h, d.square() * h * (h + 2)
        fall = 0.5 * torch.log1p(t * (2 * x + (x.square() + y_squared) * t)).sum(-1, keepdim=True) - x
        h = h * CUT / fall
    step = torch.acosh(1 + h) / (NODES - 1)
    u = step * torch.arange(NODES, dtype=t.dtype, device=t.device)
    w = torch.complex(-ASPECT * d * (torch.cosh(u) - 1), d * torch.sinh(u))
    dw = torch.complex(d * torch.cosh(u), ASPECT * d * torch.sinh(u))  # w'(u)/i
    weight = step / torch.pi * dw
    weight[..., 0] /= 2
    return w, weight.log()


def _blocks(omega: Tensor) -> list[slice]:
    size = max(1, min(NODES, NODES_BLOCK // max(omega.numel(), 1)))
    return [slice(start, start + size) for start in range(0, NODES, size)]


def _one_plus(t: Tensor, w: Tensor) -> Tensor:
    """1 + t_k w_n for a block of nodes: (..., K), (..., nodes) → (..., nodes, K), complex."""
    return torch.addcmul(w.new_ones(()), t.to(w.dtype).unsqueeze(-2), w.unsqueeze(-1))


def _resolvent_power(t: Tensor, w: Tensor, p: int) -> Tensor:
    """(1/t_k + w_n)^{−p} for a block of nodes, (..., nodes, K), complex; 0 where t = 0."""
    return reduce(torch.mul, [t.unsqueeze(-2) / _one_plus(t, w)] * p)


# The integral is built of three maps between classes and nodes. The derivative of each is made of the same three, so
# derivatives of every order are exact, and none keeps a (nodes × classes) tensor. C and w are constants to them: the
# integral depends on neither.


class _Map(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.p = inputs[-1] if isinstance(inputs[-1], int) else 0
        ctx.save_for_backward(*(each for each in inputs if isinstance(each, Tensor)))


class _LogProduct(_Map):
    """−Σ_k log(C + w_n − ω_k), for every node: (..., K) → (..., NODES), complex, phase modulo 2π."""

    @staticmethod
    def forward(omega: Tensor, position: Tensor, w: Tensor) -> Tensor:
        rates = position - omega
        t = 1 / rates
        factors = min(FACTORS, t.shape[-1])
        padded = pad(t, (0, -t.shape[-1] % factors))
        products = [_one_plus(padded, w[..., b]).unflatten(-1, (factors, -1)).prod(-2) for b in _blocks(omega)]
        logs = torch.cat([torch.complex(p.abs().log().sum(-1), p.angle().sum(-1)) for p in products], dim=-1)
        return -logs - torch.where(t > 0, rates, 1.0).log().sum(-1, keepdim=True)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        omega, position, w = ctx.saved_tensors
        return _ToClasses.apply(omega, grad.conj(), position, w, 1), None, None


class _ToClasses(_Map):
    """Re Σ_n v_n (C + w_n − ω_k)^{−p}, for every class: (..., K), (..., NODES) → (..., K)."""

    @staticmethod
    def forward(omega: Tensor, v: Tensor, position: Tensor, w: Tensor, p: int) -> Tensor:
        t, total = 1 / (position - omega), torch.zeros_like(omega)
        for b in _blocks(omega):
            total = total + (v[..., None, b] @ _resolvent_power(t, w[..., b], p)).real.squeeze(-2)
        return total

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None, None, None]:
        omega, v, position, w = ctx.saved_tensors
        to_omega = ctx.p * grad * _ToClasses.apply(omega, v, position, w, ctx.p + 1)
        return to_omega, _ToNodes.apply(omega, grad, position, w, ctx.p).conj(), None, None, None


class _ToNodes(_Map):
    """Σ_k a_k (C + w_n − ω_k)^{−p}, for every node: the transpose of _ToClasses."""

    @staticmethod
    def forward(omega: Tensor, a: Tensor, position: Tensor, w: Tensor, p: int) -> Tensor:
        t, a = 1 / (position - omega), a.to(w.dtype).unsqueeze(-1)
        return torch.cat([(_resolvent_power(t, w[..., b], p) @ a).squeeze(-1) for b in _blocks(omega)], dim=-1)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None, None, None]:
        omega, a, position, w = ctx.saved_tensors
        to_omega = ctx.p * a * _ToClasses.apply(omega, grad.conj(), position, w, ctx.p + 1)
        return to_omega, _ToClasses.apply(omega, grad.conj(), position, w, ctx.p), None, None, None


class SimplexIntegral:
    """log ∫ exp(ω·x) dx over the simplex, and the moments of the density ∝ exp(ω·x), in fp64.

    ``natural`` is ω (..., K); −inf fixes a component at 0 (at least one must be finite), and dx is Lebesgue measure on
    all but one of the others. O(33·K) time and O(K) memory per row; differentiable to any order.
    """

    def __init__(self, natural: Tensor):
        omega = natural.double()
        top = omega.detach().amax(-1, keepdim=True)
        omega = omega - top  # first, so that rates are exact however large ω is
        with torch.no_grad():
            position = saddle_point(-omega)
            w, log_weight = contour(1 / (position - omega))
        log_terms = _LogProduct.apply(omega, position, w) + w + log_weight
        scale = log_terms[..., :1].real.detach()  # the saddle's term is real and the largest
        terms = (log_terms - scale).exp()
        total = terms.real.sum(-1, keepdim=True)
        self.log_value: Tensor = (top + position + scale + total.log()).squeeze(-1)
        self._omega, self._position, self._w, self._node_weights = omega, position, w, terms / total

    def moment(self, p: int) -> Tensor:
        """E[x_k^p] / p!, shape (..., K)."""
        value: Tensor = _ToClasses.apply(self._omega, self._node_weights, self._position, self._w, p)
        return value

    def covariance(self) -> Tensor:
        """Cov[x_j, x_k], shape (..., K, K)."""
        g = _resolvent_power(1 / (self._position - self._omega), self._w, 1)
        cross: Tensor = ((g * self._node_weights.unsqueeze(-1)).mT @ g).real
        mean = self.moment(1)
        return cross + torch.diag_embed(self.moment(2)) - mean.unsqueeze(-1) * mean.unsqueeze(-2)


class Proposal(NamedTuple):
    """A rejection proposal for each row of ω. B rows, K classes; fp64 except ``group``."""

    inverse_rates: Tensor  # (B, K), 0 for an absent class
    group: Tensor  # (B, K), bool
    size: Tensor  # (B,), k
    log_bound: Tensor  # (B,), of log target over proposal
    log_factor: Tensor  # (B,), log acceptance − log Z

    def log_acceptance(self, log_integral: Tensor) -> Tensor:
        return log_integral + self.log_factor


def _log_group_factor(k: Tensor) -> Tensor:
    """log Γ(k) (e/(k−1))^(k−1), about ½ log 2πk; increasing in k."""
    return torch.lgamma(k) + (k - 1) - torch.xlogy(k - 1, k - 1)


def best_proposal(omega: Tensor) -> Proposal:
    """The group and the tilt c that accept most, for omega (B, K), −inf for an absent class. O(K log K) per row."""
    blocks = [_best_proposal(block) for block in omega.split(max(1, ROWS_BLOCK // max(1, omega.shape[-1])))]
    return Proposal(*(torch.cat(parts) for parts in zip(*blocks, strict=True)))


def _best_proposal(omega: Tensor) -> Proposal:
    omega = omega.double()
    top = omega.amax(-1, keepdim=True)
    gaps = top - omega
    present = gaps.isfinite()
    classes = present.sum(-1, keepdim=True).double()
    c = saddle_point(gaps)

    ordered, order = gaps.sort(dim=-1)
    t = 1 / (c + ordered)
    k = torch.arange(1, omega.shape[-1] + 1, dtype=t.dtype, device=t.device)
    # A group accepts most with the tilt c at which Σ 1/r without its k-th class is 1. The gain over the saddle point,
    # to second order in the change of c, is t²/2(κ₂ − t²); it is never above 1.
    t2 = t.square()
    gain = t2 / (2 * (t2.sum(-1, keepdim=True) - t2).maximum(t2 / 2))
    score, last = (t.log() + _log_group_factor(k) + gain).max(-1, keepdim=True)
    log_whole = torch.lgamma(classes) + classes - torch.xlogy(classes, classes)
    whole = log_whole >= score

    edge = ordered.gather(-1, last)
    if not whole.all():
        c_group = saddle_point(gaps, excluded=order.gather(-1, last), floor=SMALLEST_RATE)
        c = torch.where(whole, c, c_group)
    group = torch.where(whole, present, gaps <= edge)
    size = group.sum(-1, keepdim=True).double()
    log_edge_rate = (c + edge).log()
    rest = size - 1
    log_bound = torch.where(whole, torch.xlogy(size, size) - size, torch.xlogy(rest, rest) - rest + log_edge_rate)
    log_constant = torch.where(whole, log_whole, _log_group_factor(size) - log_edge_rate)
    log_rates = torch.where(present, c + gaps, 1.0).log().sum(-1, keepdim=True)
    log_factor = log_constant + log_rates - c - top
    if not log_factor.isfinite().all():  # rejection would never end
        raise ValueError("natural parameters must have no NaN, no +inf, and a finite one in every row")
    return Proposal(1 / (c + gaps), group, size[:, 0], log_bound[:, 0], log_factor[:, 0])


def draw(proposal: Proposal, num_draws: int, dtype: torch.dtype, generator: torch.Generator | None = None) -> Tensor:
    """num_draws exact draws for each row: (num_draws, B, K). Sums and the acceptance test are in fp64."""
    rows, classes = proposal.group.shape
    inverse_rates = proposal.inverse_rates.to(dtype)
    result = inverse_rates.new_empty(num_draws * rows, classes)
    for pending in torch.arange(len(result), device=result.device).split(max(1, DRAWS_BLOCK // classes)):
        while len(pending):
            row = pending % rows
            group, size = proposal.group[row], proposal.size[row]
            x = torch.empty(len(pending), classes, dtype=dtype, device=result.device).exponential_(generator=generator)
            unit_sum = x.masked_fill(~group, 0).sum(-1, dtype=torch.float64)
            x *= inverse_rates[row]
            group_sum = x.masked_fill(~group, 0).sum(-1, dtype=torch.float64)
            rest = 1 - x.masked_fill(group, 0).sum(-1, dtype=torch.float64)
            v = unit_sum / group_sum
            log_ratio = torch.xlogy(size, v) + torch.xlogy(size - 1, rest) - rest * v - proposal.log_bound[row]
            chance = torch.rand(len(pending), dtype=torch.float64, device=result.device, generator=generator)
            accepted = (rest > 0) & (chance.log() < log_ratio)
            x = torch.where(group, x * (rest / group_sum).to(dtype).unsqueeze(-1), x)
            result[pending[accepted]] = x[accepted]
            pending = pending[~accepted]
    return result.view(num_draws, rows, classes)
