"""Many fits of a linear softmax model as one tensor program.

D data sets × L variants (loss, optimiser, learning rate) are fitted together: parameters are one (D, L, K, d) tensor.
Variants of a data set see the same batches, so their differences are paired. Gradients are written out, not traced: for
a linear model they are the residual times the inputs. With scores s = logits + log r and q = softmax(s):

    NLL                         q − onehot(y)       r_k = 1
    InfoNCE                     q − onehot(y)       r_k = n_k / (N η_k), n_k the batch's counts (O(N·K), not O(N²))
    ... without −log η          q − onehot(y)       r_k = n_k
    soft distribution InfoNCE   as InfoNCE          labels redrawn from (1−ε)·onehot(y) + ε/K each time
    expected InfoNCE, labels    q − onehot(y)       r_k = (n_k + m η_k) / ((N + m) η_k), m = K
    soft target cross-entropy   q − p(·|x)          r_k = 1
    soft target InfoNCE         Σ_j w_ij p_j − p_i  r_k = 1/η_k, w_i = softmax over the batch's j of Σ_k p_jk s_ik

A step takes O(D·L·N·K·d), and O(U²·K) for each fit of soft target InfoNCE, U ≤ N the batch's distinct points.

Gradient noise: near the optimum a loss is a quadratic with curvature H. Along an eigenvector of H with value h and
noise variance c, a step of gradient descent is w ← a·w − lr·ξ with a = 1 − lr·h. An epoch's m batches are drawn without
replacement, so any two noises have covariance −c/(m−1). At the end of an epoch the variance of w is

    v = lr²·c·[S₂ − (S₁² − S₂)/(m−1)] / (1 − a^{2m}),        S_p = Σ_{t<m} a^{p·t},

and the excess KL is ½ Σ h·v. For m → ∞ and small lr it is lr/4 times the trace of the gradient's covariance.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Generator, Tensor

from experiments.density.mixture import Mixture, hessian

Loss = Literal["nll", "info-nce", "info-nce-without-noise", "soft-dist-info-nce", "expected-info-nce", "soft-ce",
               "soft-target-info-nce"]  # fmt: skip
Optimiser = Literal["adam", "sgd"]
COUNTED = ("info-nce", "info-nce-without-noise", "soft-dist-info-nce", "expected-info-nce")


@dataclass(frozen=True)
class Variant:
    """One way to fit. ``smoothing`` is the ε of soft distribution InfoNCE."""

    loss: Loss = "nll"
    optimiser: Optimiser = "adam"
    lr: float = 1e-3
    smoothing: float = 0.0

    def __post_init__(self) -> None:
        if self.smoothing and self.loss != "soft-dist-info-nce":
            raise ValueError(f"smoothing: got {self.smoothing} for {self.loss}, which draws no labels")

    @property
    def family(self) -> int:
        """How the residual is made: 0 from labels, 1 from soft targets, 2 by picking among soft targets."""
        return {"soft-ce": 1, "soft-target-info-nce": 2}.get(self.loss, 0)


def fit(
    data: Mixture, variants: Sequence[Variant], seeds: Sequence[int], *,
    batch_size: int = 1024, epochs: int = 500, patience: int | None = None, tolerance: float = 1e-5, every: int = 5,
    dtype: torch.dtype = torch.float32, on_epoch: Callable[[int, Tensor], None] | None = None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Fits every variant to every data set, starting at zero: weights (D, L, K, d) in fp64, and epochs taken (D, L).

    With ``patience`` a fit ends when its objective over all training samples (there is no held-out set), computed
    ``every`` epochs, has not fallen by more than ``tolerance`` nats below its best for so many epochs. The last
    parameters are kept, not the best ones.

    Args:
        data: D data sets.
        variants: L ways to fit, in the order of ``Variant.family``.
        seeds: (D,) seed of each data set's batch order.
        on_epoch: called after each epoch with its number and all weights (D, L, K, d).
    """
    (D, n), L, (K, d) = data.index.shape, len(variants), data.modes.shape[1:]
    if not 1 <= batch_size <= n:
        raise ValueError(f"batch_size: got {batch_size}, need 1 to {n}, the number of samples")
    weights, ended = torch.zeros(D, L, K, d, dtype=torch.float64), torch.zeros(D, L, dtype=torch.long)
    running = torch.ones(D, L, dtype=torch.bool)
    best, best_epoch = torch.full((D, L), torch.inf, dtype=torch.float64), torch.zeros(D, L, dtype=torch.long)
    generators = {seed: _generators(seed) for seed in seeds}
    rows, columns = torch.arange(D), torch.arange(L)  # data sets and variants with a fit that runs; others have left
    w, mean, square = torch.zeros(3, D, L, K, d, dtype=dtype)
    gradient, step = Gradient(data, variants, dtype), 0

    for epoch in range(1, epochs + 1):
        here = rows[:, None], columns
        used = [variants[column] for column in columns.tolist()]
        adam = torch.tensor([variant.optimiser == "adam" for variant in used])[:, None, None]
        lr = torch.tensor([variant.lr for variant in used], dtype=dtype) * running[here]  # 0 for stopped fits
        for batch in gradient.batches([generators[seeds[row]] for row in rows.tolist()], batch_size):
            step += 1
            move = gradient(w, *batch)
            if adam.any():  # torch's defaults
                mean.lerp_(move, 0.1)
                square.mul_(0.999).addcmul_(move, move, value=0.001)
                scale = square.div(1 - 0.999**step).sqrt_().add_(1e-8)
                move = torch.where(adam, (mean / (1 - 0.9**step)).div_(scale), move)
            w.sub_(move.mul_(lr[..., None, None]))
        weights[here] = w.double()
        ended[here] += running[here]
        if on_epoch:
            on_epoch(epoch, weights)
        if patience and epoch % every == 0:
            objective = gradient.objective(w)
            better = objective < best[here] - tolerance
            best[here] = torch.where(better, objective, best[here])
            best_epoch[here] = torch.where(better, epoch, best_epoch[here])
            running &= ended - best_epoch < patience
            kept = running[here].any(1), running[here].any(0)
            if not kept[0].any():
                break
            if not (kept[0].all() and kept[1].all()):
                rows, columns = rows[kept[0]], columns[kept[1]]
                w, mean, square = (tensor[kept[0]][:, kept[1]] for tensor in (w, mean, square))
                gradient = Gradient(data[rows], [variants[column] for column in columns.tolist()], dtype)
    return weights, ended


def _generators(seed: int) -> tuple[Generator, Generator]:
    """Of the order of samples, and of redrawn labels."""
    return Generator().manual_seed(3 * seed + 1), Generator().manual_seed(3 * seed + 2)


class Gradient:
    """The gradient of L variants' losses on one batch of each of D data sets, in a dtype."""

    def __init__(self, data: Mixture, variants: Sequence[Variant], dtype: torch.dtype) -> None:
        families = [variant.family for variant in variants]
        assert families == sorted(families), "label losses first, then soft target cross-entropy, soft target InfoNCE"
        self.data, self.variants = data, tuple(variants)
        self.hard, self.soft = families.count(0), families.count(0) + families.count(1)
        self.points = data.points.to(dtype).flatten(0, 1)  # (D·M, d)
        self.targets = data.conditional.to(dtype).flatten(0, 1)  # (D·M, K)
        self.log_noise = torch.stack([log_noise(data, variant) for variant in variants], 1).to(dtype)  # (D, L, K)
        self.counted = torch.tensor([variant.loss in COUNTED for variant in variants])[:, None]
        # Classes that expected InfoNCE counts beside the batch's: m·η with m = K.
        more = [data.num_classes * (variant.loss == "expected-info-nce") for variant in variants]
        self.more = self.log_noise.exp() * torch.tensor(more, dtype=dtype)[:, None]  # (D, L, K)
        self.smoothing = torch.tensor([variant.smoothing for variant in variants])[:, None]

    def batches(self, generators: Sequence[tuple[Generator, Generator]], size: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Points (D, N) and labels (D, 1 or L, N) of an epoch's full batches, in a new order without replacement.

        Data sets with the same generators share one order. Soft distribution InfoNCE redraws each label with
        probability ε.
        """
        (D, n), K = self.data.index.shape, self.data.num_classes
        orders = {pair: torch.randperm(n, generator=pair[0]) for pair in dict.fromkeys(generators)}
        order = torch.stack([orders[pair] for pair in generators])
        first = torch.arange(D)[:, None] * self.data.points.shape[1]
        point, labels = (self.data.index + first).gather(1, order), self.data.labels.gather(1, order)[:, None]
        chances = {pair: torch.rand(n, generator=pair[1]) for pair in orders}
        redrawn = {pair: torch.randint(K, (n,), generator=pair[1]) for pair in orders}
        if self.smoothing.any():
            chance, drawn = (torch.stack([of[pair] for pair in generators])[:, None] for of in (chances, redrawn))
            labels = torch.where(chance < self.smoothing, drawn, labels)
        for start in range(0, n - size + 1, size):
            yield point[:, start : start + size], labels[..., start : start + size]

    def __call__(self, weights: Tensor, point: Tensor, labels: Tensor) -> Tensor:
        """(D, L, K, d) gradients at ``weights`` (D, L, K, d) of the mean loss over a batch of :meth:`batches`."""
        (D, L, K, d), N = weights.shape, point.shape[1]
        flat = point.reshape(-1)
        x = self.points.index_select(0, flat).view(D, N, d)
        log_r = -self.log_noise
        if self.counted.any():
            one = log_r.new_ones(()).expand_as(labels)
            counts = log_r.new_zeros(D, labels.shape[1], K).scatter_add_(2, labels, one)
            log_r = torch.where(self.counted, log_r + (counts + self.more).log(), log_r)
        # Classes before samples, (D, L·K, N): the softmax over classes then runs along contiguous memory.
        logits = torch.bmm(weights.view(D, L * K, d), x.transpose(1, 2)).view(D, L, K, N)
        scores = logits.add_(log_r[..., None])  # baddbmm would first write log_r to all N columns

        residuals = []
        if self.soft:
            residuals.append(scores[:, : self.soft].softmax(2))
        if self.hard:
            own = labels[:, : self.hard, None].expand(D, self.hard, 1, N)
            residuals[0][:, : self.hard].scatter_add_(2, own, scores.new_full((), -1.0).expand_as(own))
        if self.hard < L:
            targets = self.targets.index_select(0, flat).view(D, N, K).transpose(1, 2)  # (D, K, N)
            if self.hard < self.soft:
                residuals[0][:, self.hard :].sub_(targets[:, None])
            if self.soft < L:
                residuals.append(torch.stack([_pick(scores[i, self.soft :], targets[i], point[i]) for i in range(D)]))
        residual = residuals[0] if len(residuals) == 1 else torch.cat(residuals, 1)
        return torch.bmm(residual.view(D, L * K, N), x).view(D, L, K, d) / N

    def objective(self, weights: Tensor) -> Tensor:
        """(D, L) loss over all training samples at once, double precision, up to a constant.

        For InfoNCE on all samples n_k = n·η_k exactly, with or without m·η_k more, so its objective is NLL's.
        """
        data, K = self.data, self.data.num_classes
        share, weight = data.label_share, data.weight
        logits = torch.einsum("dmj,dlkj->dlmk", data.points, weights.double())
        values = []
        for position, variant in enumerate(self.variants):
            scores = logits[:, position]
            target = share
            if variant.loss == "info-nce-without-noise":
                scores = scores + log_noise(data, Variant("info-nce"))[:, None]
            elif variant.loss == "soft-dist-info-nce":
                target = torch.lerp(share, weight[:, :, None] / K, variant.smoothing)
            elif variant.family > 0:
                target = weight[:, :, None] * data.conditional
            if variant.loss == "soft-target-info-nce":
                scores = scores - log_noise(data, variant)[:, None]
                sigma = torch.bmm(scores, data.conditional.transpose(1, 2))  # (D, M, M)
                normaliser = torch.logsumexp(sigma + weight.log()[:, None], 2)
                values.append((weight * normaliser).sum(1) - (target * scores).sum((1, 2)))
            else:
                values.append(-(target * scores.log_softmax(2)).sum((1, 2)))
        return torch.stack(values, 1)


def _pick(scores: Tensor, targets: Tensor, point: Tensor) -> Tensor:
    """(L, K, N) residuals of soft target InfoNCE on one data set from scores (L, K, N) and targets (K, N).

    Samples of the same point have equal scores and targets: each point is computed once, and counted as a candidate
    as often as it is in the batch.
    """
    count = point.bincount()
    position = (count > 0).cumsum(0)[point] - 1  # as unique(return_inverse=True), without sorting
    count = count[count > 0]
    sample = position.new_zeros(len(count)).scatter_(0, position, torch.arange(len(point)))  # one of each point
    scores, targets = scores[:, :, sample], targets[:, sample]  # (L, K, U), (K, U)
    pick = (scores.transpose(1, 2) @ targets).add_(count.to(targets.dtype).log()).softmax(2)  # (L, U, U candidates)
    return (targets @ pick.transpose(1, 2) - targets)[:, :, position]


def log_noise(data: Mixture, variant: Variant) -> Tensor:
    """(D, K) log η of the variant: the class frequencies of the targets it is trained with; 0 if it uses none."""
    match variant.loss:
        case "info-nce" | "expected-info-nce" | "soft-dist-info-nce":
            eta = (1 - variant.smoothing) * data.label_share.sum(1) + variant.smoothing / data.num_classes
        case "soft-target-info-nce":
            eta = (data.weight[:, :, None] * data.conditional).sum(1)
        case _:
            return torch.zeros_like(data.modes[..., 0])
    # A class without samples is in no batch: its count's log, −∞, must not meet another infinity.
    return eta.clamp_min(1e-30).log()


@dataclass(frozen=True)
class GradientNoise:
    """Attributes:
    curvature: (D, Kd) eigenvalues of the Hessian of the mean NLL at the point.
    variance: (D, L, Kd) variance of each variant's batch gradient along those eigenvectors.
    along_mean: (D, L) part of the total variance along the mean of x: Σ_k Var(g_k·x̄/‖x̄‖).
    """

    curvature: Tensor
    variance: Tensor
    along_mean: Tensor

    @property
    def total(self) -> Tensor:
        """(D, L) trace of the gradient's covariance."""
        return self.variance.sum(2)

    def excess_kl(self, lr: float, batches_per_epoch: int) -> Tensor:
        """(D, L) KL that gradient descent adds to the optimum's; infinite where it is unstable (lr·h ≥ 2)."""
        a = 1 - lr * self.curvature
        t = torch.arange(batches_per_epoch)
        S1, S2 = (a[..., None] ** t).sum(-1), (a[..., None] ** (2 * t)).sum(-1)
        repeated = (S1.square() - S2) / max(batches_per_epoch - 1, 1)
        # The flat directions, h = 0, cost nothing however far the weights drift.
        decay = torch.where(self.curvature > 1e-12, 1 - a ** (2 * batches_per_epoch), 1)
        gain = self.curvature * lr**2 * (S2 - repeated) / decay
        gain = torch.where(a.abs() < 1, gain, torch.where(self.curvature > 1e-12, torch.inf, 0))
        return (self.variance * gain[:, None]).sum(2) / 2


def measure_noise(
    data: Mixture, weights: Tensor, variants: Sequence[Variant], *, batch_size: int, epochs: int, seed: int
) -> GradientNoise:
    """Variance of the batch gradient at ``weights`` (D, K, d), over ``epochs`` random orders of each data set.

    Batches are without replacement, as in a fit. Time O(epochs·n·L·K·d) per data set.
    """
    D, L, (K, d) = len(data), len(variants), weights.shape[1:]
    q = torch.einsum("dmj,dkj->dmk", data.points, weights).softmax(2)
    systems = [torch.linalg.eigh(hessian(data.points[i], data.weight[i], q[i])) for i in range(D)]
    gradient, shared = Gradient(data, variants, torch.float64), [(Generator().manual_seed(seed),) * 2] * D
    at = weights[:, None].expand(D, L, K, d).contiguous()
    found = torch.stack([gradient(at, *b) for _ in range(epochs) for b in gradient.batches(shared, batch_size)], 2)
    along = found.flatten(3).flatten(1, 2) @ torch.stack([system.eigenvectors for system in systems])  # (D, L·B, Kd)
    mean = F.normalize(torch.einsum("dm,dmj->dj", data.weight, data.points), dim=1)
    return GradientNoise(
        torch.stack([system.eigenvalues for system in systems]).clamp_min(0),
        along.view(D, L, -1, K * d).var(2),
        torch.einsum("dlbkj,dj->dlbk", found, mean).var(2).sum(2),
    )


def fit_plainly(
    data: Mixture, variant: Variant, seed: int, *, batch_size: int, epochs: int, dtype: torch.dtype = torch.float32
) -> Tensor:
    """(K, d) weights of one variant on one data set by autograd, with the batches and draws of :func:`fit`."""
    points, targets = data.points[0].to(dtype), data.conditional[0].to(dtype)
    index, labels = data.index[0], data.labels[0]
    n, (K, d) = len(index), data.modes.shape[1:]
    log_eta = log_noise(data, variant)[0].to(dtype)
    model = torch.nn.Linear(d, K, bias=False, dtype=dtype)
    torch.nn.init.zeros_(model.weight)
    optimiser = {"adam": torch.optim.Adam, "sgd": torch.optim.SGD}[variant.optimiser](model.parameters(), lr=variant.lr)
    shuffling, redrawing = _generators(seed)
    for _ in range(epochs):
        order = torch.randperm(n, generator=shuffling)
        y = labels[order]
        if variant.smoothing:
            chance = torch.rand(n, generator=redrawing)
            y = torch.where(chance < variant.smoothing, torch.randint(K, (n,), generator=redrawing), y)
        for batch, label in zip(order.split(batch_size), y.split(batch_size), strict=True):
            if len(batch) < batch_size:
                break
            soft = targets[index[batch]]
            scores = model(points[index[batch]]) - log_eta
            if variant.loss in COUNTED:
                more = K * log_eta.exp() if variant.loss == "expected-info-nce" else 0.0
                scores = scores + (torch.bincount(label, minlength=K).to(dtype) + more).log()
            elif variant.loss == "soft-target-info-nce":
                scores, label = scores @ soft.T, torch.arange(batch_size)
            loss = F.cross_entropy(scores, soft if variant.loss == "soft-ce" else label)
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
    return model.weight.detach()
