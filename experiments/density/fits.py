"""Many fits of a linear softmax model as one tensor program.

D data sets × L variants (loss, optimiser, learning rate) are fitted together: parameters are one (D, L, K, d)
tensor, a step is one gather, two batched products and a softmax for all of them. Variants of a data set see the
same batches, so their differences are paired. Gradients are written out, not traced: for a linear model they
are the residual times the inputs, and the losses differ in the residual alone.

With scores s = logits + log r, r a weight for each class, and q = softmax(s):

    NLL                         q − onehot(y)       r_k = 1
    InfoNCE                     q − onehot(y)       r_k = n_k / (N η_k), n_k the batch's counts (O(N·K), not O(N²))
    ... without −log η          q − onehot(y)       r_k = n_k
    soft distribution InfoNCE   as InfoNCE          labels redrawn from (1−ε)·onehot(y) + ε/K each time
    expected InfoNCE, labels    q − onehot(y)       r_k = (n_k + m η_k) / ((N + m) η_k), m = K
    soft target cross-entropy   q − p(·|x)          r_k = 1
    soft target InfoNCE         Σ_j w_ij p_j − p_i  r_k = 1/η_k, w_i = softmax over the batch's j of Σ_k p_jk s_ik

NLL with the batch-count correction (q normalised with r_k = n_k / (N η_k)) is InfoNCE: the two differ by a
constant, log n_y, and have the same gradient.

Time per step: O(D·L·N·K·d), with an additional O(D·U²·K) for each soft target InfoNCE variant, U ≤ N the batch's
distinct points; memory O(D·L·N·K), for soft target InfoNCE O(U²).

Gradient noise: near the optimum a loss is a quadratic with curvature H. Along an eigenvector of H with value h and
noise variance c, a step of gradient descent is w ← a·w − lr·ξ with a = 1 − lr·h. An epoch's m batches are drawn without
replacement, so any two noises have covariance −c/(m−1). At the end of an epoch the variance of w is

    v = lr²·c·[S₂ − (S₁² − S₂)/(m−1)] / (1 − a^{2m}),        S_p = Σ_{t<m} a^{p·t},

and the excess KL is ½ Σ h·v. For m → ∞ and small lr it is lr/4 times the trace of the gradient's covariance.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from experiments.density.mixture import Mixture, hessian

Loss = Literal[
    "nll",
    "info-nce",
    "info-nce-without-noise",
    "soft-dist-info-nce",
    "expected-info-nce",
    "soft-ce",
    "soft-target-info-nce",
]
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


@dataclass(frozen=True)
class Stopping:
    """Early stopping on the objective over all training samples (there is no held-out set).

    A fit ends when its objective, computed every ``every`` epochs, has not fallen by more than ``tolerance`` nats
    below its best for ``patience`` epochs. The last parameters are kept, not the best ones.
    """

    patience: int = 20
    tolerance: float = 1e-5
    every: int = 5


@dataclass(frozen=True)
class Fits:
    """Fitted parameters, (D, L, K, d) in double precision, and the epochs each took, (D, L)."""

    weights: Tensor
    epochs: Tensor


def fit(
    data: Mixture,
    variants: Sequence[Variant],
    seeds: Sequence[int],
    *,
    batch_size: int = 1024,
    epochs: int = 500,
    stopping: Stopping | None = None,
    dtype: torch.dtype = torch.float32,
    on_epoch: Callable[[int, Tensor], None] | None = None,
) -> Fits:
    """Fit every variant to every data set, starting at zero, in one tensor program.

    Args:
        data: D data sets.
        variants: L ways to fit.
        seeds: (D,) seed of each data set's batch order. Every epoch is a new order without replacement, cut into
            full batches; the samples left over differ from epoch to epoch.
        stopping: when to stop early; None runs all epochs.
        on_epoch: called after each epoch with its number and all weights (D, L, K, d).
    """
    (D, n), L, (K, d) = data.index.shape, len(variants), data.modes.shape[1:]
    if not 1 <= batch_size <= n:
        raise ValueError(f"batch_size: got {batch_size}, need 1 to {n}, the number of samples")
    gradient = Gradient(data, variants, dtype)
    progress = _Progress.start(D, L, K, d, dtype)
    lr = torch.tensor([variant.lr for variant in variants], dtype=dtype)[:, None, None]
    adam = torch.tensor([variant.optimiser == "adam" for variant in variants])[:, None, None]
    shuffling, redrawing = _generators(seeds, 1), _generators(seeds, 2)
    weights, ended = torch.zeros(D, L, K, d, dtype=torch.float64), torch.zeros(D, L, dtype=torch.long)
    active = torch.arange(D)  # data sets with a variant still running; the others have left the tensors
    step = 0

    for epoch in range(1, epochs + 1):
        used = [seeds[position] for position in active.tolist()]
        samples = _once_per_seed(used, lambda seed: torch.randperm(n, generator=shuffling[seed]))
        chance = drawn = samples.new_zeros(len(active), 0)
        if gradient.redraws:
            chance = _once_per_seed(used, lambda seed: torch.rand(n, generator=redrawing[seed]))
            drawn = _once_per_seed(used, lambda seed: torch.randint(K, (n,), generator=redrawing[seed]))
        for start in range(0, n - batch_size + 1, batch_size):
            step += 1
            batch = slice(start, start + batch_size)
            redrawn = (chance[:, batch], drawn[:, batch]) if gradient.redraws else None
            progress.step(gradient(progress.weights, samples[:, batch], redrawn), step, lr, adam)
        progress.epochs.add_(progress.running)

        if stopping and epoch % stopping.every == 0:
            progress.stop(gradient.objective(progress.weights), stopping)
        weights[active], ended[active] = progress.weights.double(), progress.epochs
        if on_epoch:
            on_epoch(epoch, weights)
        keep = progress.running.any(1)
        if not keep.any():
            break
        if not keep.all():
            active, progress, gradient = active[keep], progress[keep], Gradient(gradient.data[keep], variants, dtype)
    return Fits(weights, ended)


class Gradient:
    """The gradient of every variant's loss on one batch of every data set.

    Args:
        data: D data sets.
        variants: L variants, those of one family next to each other in the order of ``Variant.family``.
        dtype: of the products.
    """

    def __init__(self, data: Mixture, variants: Sequence[Variant], dtype: torch.dtype) -> None:
        families = [variant.family for variant in variants]
        if families != sorted(families):
            raise ValueError(
                "variants: label losses come first, then soft target cross-entropy, then soft target InfoNCE"
            )
        self.data = data
        self.variants = tuple(variants)
        self.hard, self.soft = families.count(0), families.count(0) + families.count(1)
        self.points = data.points.to(dtype).reshape(-1, data.points.shape[2])  # (D·M, d)
        self.targets = data.conditional.to(dtype).reshape(-1, data.num_classes)  # (D·M, K)
        self.log_noise = torch.stack([log_noise(data, variant) for variant in variants], 1).to(dtype)  # (D, L, K)
        self.counted = torch.tensor([variant.loss in COUNTED for variant in variants])[:, None]
        # Classes that expected InfoNCE counts beside the batch's: m·η with m = K.
        more = [data.num_classes * (variant.loss == "expected-info-nce") for variant in variants]
        self.more = self.log_noise.exp() * torch.tensor(more, dtype=dtype)[:, None]  # (D, L, K)
        self.smoothing = torch.tensor([variant.smoothing for variant in variants])[:, None]
        self.redraws = bool(self.smoothing.any())

    def __call__(self, weights: Tensor, samples: Tensor, redrawn: tuple[Tensor, Tensor] | None = None) -> Tensor:
        """(D, L, K, d) gradients of the mean loss over the batch at ``weights`` (D, L, K, d).

        ``samples`` (D, N) are positions in the data sets. ``redrawn``, for soft distribution InfoNCE, holds a
        uniform number and a uniform label for each, (D, N): the label replaces the sample's own where the number is
        below ε.
        """
        (D, L, K, d), N = weights.shape, samples.shape[1]
        first = torch.arange(D)[:, None] * self.data.points.shape[1]
        point = (self.data.index.gather(1, samples) + first).view(-1)
        x = self.points.index_select(0, point).view(D, N, d)
        labels = self.data.labels.gather(1, samples)[:, None].expand(D, L, N)
        if redrawn is not None:
            chance, drawn = redrawn
            labels = torch.where(chance[:, None] < self.smoothing, drawn[:, None], labels)

        log_r = -self.log_noise
        if self.counted.any():
            counts = log_r.new_zeros(D, L, K).scatter_add_(2, labels, log_r.new_ones(()).expand(D, L, N))
            log_r = torch.where(self.counted, log_r + (counts + self.more).log(), log_r)
        # Classes before samples, (D, L·K, N): the softmax over classes then runs along contiguous memory.
        logits = torch.bmm(weights.view(D, L * K, d), x.transpose(1, 2)).view(D, L, K, N)
        scores = logits.add_(log_r[..., None])  # baddbmm would first write log_r to all N columns

        residuals = []
        if self.hard:
            q = scores[:, : self.hard].softmax(2)
            one = q.new_ones(()).expand(D, self.hard, 1, N)
            residuals.append(q.scatter_add_(2, labels[:, : self.hard, None], -one))
        if self.hard < L:
            targets = self.targets.index_select(0, point).view(D, N, K).transpose(1, 2)  # (D, K, N)
            if self.hard < self.soft:
                residuals.append(scores[:, self.hard : self.soft].softmax(2) - targets[:, None])
            if self.soft < L:
                each = [_pick(scores[i, self.soft :], targets[i], point.view(D, N)[i]) for i in range(D)]
                residuals.append(torch.stack(each))
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
                scores = scores + _log_frequency(share.sum(1))[:, None]
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
    distinct, position, count = point.unique(return_inverse=True, return_counts=True)
    sample = position.new_zeros(len(distinct)).scatter_(0, position, torch.arange(len(point)))  # one of each point
    scores, targets = scores[:, :, sample], targets[:, sample]  # (L, K, U), (K, U)
    pick = (scores.transpose(1, 2) @ targets).add_(count.to(targets.dtype).log()).softmax(2)  # (L, U, U candidates)
    return (targets @ pick.transpose(1, 2) - targets)[:, :, position]


def log_noise(data: Mixture, variant: Variant) -> Tensor:
    """(D, K) log η of the variant: the class frequencies of the targets it is trained with; 0 if it uses none."""
    frequency = data.label_share.sum(1)
    match variant.loss:
        case "info-nce" | "expected-info-nce":
            return _log_frequency(frequency)
        case "soft-dist-info-nce":
            return _log_frequency(
                torch.lerp(frequency, torch.full_like(frequency, 1 / data.num_classes), variant.smoothing)
            )
        case "soft-target-info-nce":
            return _log_frequency((data.weight[:, :, None] * data.conditional).sum(1))
        case _:
            return torch.zeros_like(frequency)


def _log_frequency(frequency: Tensor) -> Tensor:
    # A class without samples is in no batch: its count's log, −∞, must not meet another infinity.
    return frequency.clamp_min(1e-30).log()


@dataclass(frozen=True)
class _Progress:
    """Where each fit stands; all tensors begin with (D, L)."""

    weights: Tensor
    mean: Tensor  # Adam's moments
    square: Tensor
    running: Tensor
    epochs: Tensor  # run so far
    best: Tensor  # lowest objective that counted as progress, and its epoch
    best_epoch: Tensor

    @classmethod
    def start(cls, D: int, L: int, K: int, d: int, dtype: torch.dtype) -> "_Progress":
        weights, mean, square = (torch.zeros(D, L, K, d, dtype=dtype) for _ in range(3))
        running = torch.ones(D, L, dtype=torch.bool)
        best = torch.full((D, L), torch.inf, dtype=torch.float64)
        return cls(weights, mean, square, running, torch.zeros_like(running).long(), best, torch.zeros(D, L).long())

    def __getitem__(self, keep: Tensor) -> "_Progress":
        return _Progress(**{field.name: getattr(self, field.name)[keep] for field in fields(self)})

    def step(self, gradient: Tensor, step: int, lr: Tensor, adam: Tensor) -> None:
        """Adam with torch's defaults where ``adam``, else gradient descent; stopped fits stay where they are."""
        self.mean.lerp_(gradient, 0.1)
        self.square.mul_(0.999).addcmul_(gradient, gradient, value=0.001)
        scale = self.square.div(1 - 0.999**step).sqrt_().add_(1e-8)
        move = torch.where(adam, (self.mean / (1 - 0.9**step)).div_(scale), gradient)
        self.weights.sub_(move.mul_(lr).mul_(self.running[..., None, None]))

    def stop(self, objective: Tensor, stopping: Stopping) -> None:
        better = objective < self.best - stopping.tolerance
        self.best.copy_(torch.where(better, objective, self.best))
        self.best_epoch.copy_(torch.where(better, self.epochs, self.best_epoch))
        self.running.logical_and_(self.epochs - self.best_epoch < stopping.patience)


def _generators(seeds: Sequence[int], purpose: int) -> dict[int, torch.Generator]:
    return {seed: torch.Generator().manual_seed(3 * seed + purpose) for seed in seeds}


def _once_per_seed(seeds: Sequence[int], draw: Callable[[int], Tensor]) -> Tensor:
    """(D, n): data sets with the same seed share one draw."""
    drawn = {seed: draw(seed) for seed in dict.fromkeys(seeds)}
    return torch.stack([drawn[seed] for seed in seeds])


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
    (D, n), (K, d), L = data.index.shape, weights.shape[1:], len(variants)
    q = torch.einsum("dmj,dkj->dmk", data.points, weights).softmax(2)
    systems = [torch.linalg.eigh(hessian(data.points[i], data.weight[i], q[i])) for i in range(D)]
    curvature = torch.stack([system.eigenvalues for system in systems]).clamp_min(0)
    basis = torch.stack([system.eigenvectors for system in systems])  # (D, Kd, Kd), columns

    gradient = Gradient(data, variants, torch.float64)
    generator = torch.Generator().manual_seed(seed)
    at = weights[:, None].expand(D, L, K, d).contiguous()
    mean = torch.nn.functional.normalize(torch.einsum("dm,dmj->dj", data.weight, data.points), dim=1)
    along, along_mean = [], []
    for _ in range(epochs):
        order = torch.randperm(n, generator=generator).expand(D, n)
        chance, drawn = torch.rand(D, n, generator=generator), torch.randint(K, (D, n), generator=generator)
        for start in range(0, n - batch_size + 1, batch_size):
            batch = slice(start, start + batch_size)
            redrawn = (chance[:, batch], drawn[:, batch]) if gradient.redraws else None
            g = gradient(at, order[:, batch], redrawn)
            along.append(torch.bmm(g.view(D, L, K * d), basis))
            along_mean.append(torch.einsum("dlkj,dj->dlk", g, mean))
    return GradientNoise(curvature, torch.stack(along).var(0), torch.stack(along_mean).var(0).sum(2))


def fit_plainly(
    data: Mixture, variant: Variant, seed: int, *, batch_size: int, epochs: int, dtype: torch.dtype = torch.float32
) -> Tensor:
    """(K, d) weights of one variant on one data set by autograd, with the batches and draws of :func:`fit`."""
    if len(data) != 1:
        raise ValueError(f"data: got {len(data)} data sets, need one")
    points, targets = data.points[0].to(dtype), data.conditional[0].to(dtype)
    index, labels = data.index[0], data.labels[0]
    n, (K, d) = len(index), data.modes.shape[1:]
    log_eta = log_noise(data, variant)[0].to(dtype)
    model = torch.nn.Linear(d, K, bias=False, dtype=dtype)
    torch.nn.init.zeros_(model.weight)
    optimiser = {"adam": torch.optim.Adam, "sgd": torch.optim.SGD}[variant.optimiser](model.parameters(), lr=variant.lr)
    shuffling = torch.Generator().manual_seed(3 * seed + 1)
    redrawing = torch.Generator().manual_seed(3 * seed + 2)
    for _ in range(epochs):
        order = torch.randperm(n, generator=shuffling)
        y = labels[order]
        if variant.smoothing:
            chance = torch.rand(n, generator=redrawing)
            y = torch.where(chance < variant.smoothing, torch.randint(K, (n,), generator=redrawing), y)
        for start in range(0, n - batch_size + 1, batch_size):
            batch, label = order[start : start + batch_size], y[start : start + batch_size]
            scores = model(points[index[batch]]) - log_eta
            if variant.loss == "soft-target-info-nce":
                soft = targets[index[batch]]
                loss = F.cross_entropy(scores @ soft.T, torch.arange(batch_size))
            elif variant.loss == "soft-ce":
                loss = F.cross_entropy(scores, targets[index[batch]])
            else:
                if variant.loss in COUNTED:
                    more = K * log_eta.exp() if variant.loss == "expected-info-nce" else 0.0
                    scores = scores + (torch.bincount(label, minlength=K).to(dtype) + more).log()
                loss = F.cross_entropy(scores, label)
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
    return model.weight.detach()
