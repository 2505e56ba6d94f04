"""Random calls of the three sums, and the sums as obviously as they can be written, in float64 on dense rows."""

from dataclasses import dataclass
from typing import Any

import torch
from reference import contrast, expected_of_counts
from torch import Tensor

from softnce._core import autograd


@dataclass
class Rows:
    """Soft targets as the sums read them."""

    index: Tensor | None
    weight: Tensor | None
    smoothing: float | Tensor = 0.0
    smoothing_dist: Tensor | None = None
    mask: Tensor | None = None

    def dense(self, classes: int) -> Tensor:
        weight = self.weight
        if self.index is None:
            rows = weight.double()
        else:
            if weight is None:
                mass = torch.as_tensor(self.smoothing, dtype=torch.float64)
                weight = (1 - mass).reshape(-1, 1).expand(self.index.shape)
            rows = torch.zeros(len(self.index), classes, dtype=torch.float64)
            rows = rows.scatter_add(1, self.index, weight.double())
        background = 1 / classes if self.smoothing_dist is None else self.smoothing_dist.double()
        mass = self.smoothing.double()[:, None] if isinstance(self.smoothing, Tensor) else self.smoothing
        return rows + mass * background


def finite(logits: Tensor) -> Tensor:
    return logits.double().clamp(min=-1e30)


def counted(s: Tensor, alpha: Tensor, counts: Tensor | None, adds_own: bool, class_weight: Tensor | None) -> Tensor:
    a = alpha if class_weight is None else alpha * class_weight.double()
    losses = []
    for i in range(len(s)):
        n = torch.ones(s.shape[1], dtype=torch.float64) if counts is None else counts.clone()
        n = n + alpha[i] if adds_own else n
        if not (n > 0).any():
            losses.append(0 * s[i].sum())
            continue
        losses.append(a[i].sum() * (s[i][n > 0] + n[n > 0].log()).logsumexp(0) - (a[i] * s[i]).sum())
    return torch.stack(losses)


def expected(
    s: Tensor, alpha: Tensor, counts: Tensor, own: Tensor | None, drops: bool, exclude: Tensor | None
) -> Tensor:
    losses = []
    for i in range(len(s)):
        n = counts.clone()
        if drops:
            n[alpha[i] > 0] = 0
        elif own is not None:
            n = (n - own[i]).clamp(min=0)
        if exclude is not None:
            n[exclude[i][exclude[i] >= 0]] = 0
        losses.append(expected_of_counts(s[i], alpha[i], n))
    return torch.stack(losses)


def reference(name: str, call: dict[str, Any], logits: Tensor) -> Tensor:
    """What ``softnce._core.autograd.<name>(logits, **call)`` must return, of ``logits`` in float64."""
    classes, targets = logits.shape[1], call["targets"]
    temperature = call.get("temperature", 1.0)
    mask = targets.mask
    x = logits if mask is None else logits.masked_fill(~mask[:, None], 0)
    s = finite(x) / (temperature.double() if isinstance(temperature, Tensor) else temperature)
    if call.get("log_noise") is not None:
        s = s - call["log_noise"].double()
    alpha = targets.dense(classes)
    if name == "counted":
        losses = counted(s, alpha, call.get("counts"), call.get("adds_own", False), call.get("class_weight"))
    elif name == "expected":
        own = None if call.get("own") is None else call["own"].dense(classes)
        losses = expected(s, alpha, call["counts"], own, call.get("drop_own_classes", False), call.get("exclude"))
    else:
        others = call["candidates"]
        dense = others.dense(classes)
        losses = contrast(s, alpha, dense, call.get("own"), others.mask, call.get("remove_hits", False))
    losses = losses if mask is None else torch.where(mask, losses, 0)
    if call.get("row_weight") is not None:
        losses = losses * call["row_weight"].double()
    if not call.get("reduced"):
        return losses
    return losses.sum() / call["divisor"] if call.get("divisor") is not None else losses.sum()


class Draw:
    """Random choices from one seed."""

    def __init__(self, seed: int) -> None:
        self.generator = torch.Generator().manual_seed(seed)

    def int(self, low: int, high: int) -> int:
        return int(torch.randint(low, high + 1, (), generator=self.generator))

    def flag(self, share: float = 0.5) -> bool:
        return float(torch.rand((), generator=self.generator)) < share

    def one(self, *choices: Any) -> Any:
        return choices[self.int(0, len(choices) - 1)]

    def rand(self, *shape: int) -> Tensor:
        return torch.rand(*shape, generator=self.generator)

    def randn(self, *shape: int) -> Tensor:
        return torch.randn(*shape, generator=self.generator)

    def classes(self, *shape: int, below: int) -> Tensor:
        return torch.randint(below, shape, generator=self.generator)

    def simplex(self, *shape: int) -> Tensor:
        rows = self.rand(*shape) ** 3
        rows = rows * (self.rand(*shape) < 0.6) if self.flag(0.3) else rows
        rows[..., 0] += 1e-3
        return rows / rows.sum(-1, keepdim=True)

    def rows(self, n: int, classes: int, dtype: torch.dtype = torch.float32, may_ignore: bool = True) -> Rows:
        form = self.one("labels", "labels", "pairs", "pairs", "dense")
        dist = self.simplex(classes).to(dtype) if self.flag(0.3) else None
        smoothing: float | Tensor = self.one(0.0, 0.0, 0.1)
        if self.flag(0.15):
            smoothing = self.rand(n).to(dtype) * 0.5
        index = weight = None
        left = (1 - torch.as_tensor(smoothing, dtype=torch.float64).reshape(-1, 1)).to(dtype)
        if form == "labels":
            index = self.classes(n, 1, below=classes)
        elif form == "pairs":
            size = self.one(1, 2, 2, 3)
            index, weight = self.classes(n, size, below=classes), self.simplex(n, size).to(dtype) * left
            if size > 1 and self.flag(0.2):
                weight[:, 0] += weight[:, -1]
                weight[:, -1] = 0
        else:
            weight = self.simplex(n, classes).to(dtype) * left
        if isinstance(smoothing, float) and smoothing == 0:
            dist = None
        mask = self.rand(n) < 0.8 if may_ignore and self.flag(0.2) else None
        return Rows(index, weight, smoothing, dist, mask)


def class_mass(rows: Rows, classes: int) -> Tensor:
    dense = rows.dense(classes)
    return (dense if rows.mask is None else dense[rows.mask]).sum(0)


def case(seed: int, largest: int = 70, dtype: torch.dtype = torch.float32) -> tuple[str, dict[str, Any], Tensor]:
    """The name of a sum, the arguments of a call, and logits."""
    draw = Draw(seed)
    n, classes = draw.int(1, largest), draw.int(1, largest)
    name = draw.one("counted", "expected", "soft_target")
    targets = draw.rows(n, classes, dtype)
    logits = draw.randn(n, classes).to(dtype) * draw.one(0.1, 1.0, 1.0, 5.0, 30.0)
    if draw.flag(0.1):  # no class that a target has weight on
        free = (targets.dense(classes) == 0) & (draw.rand(n, classes) < 0.3)
        logits = logits.masked_fill(free, -torch.inf)
    if targets.mask is not None and draw.flag():
        logits[~targets.mask] = torch.nan
    call: dict[str, Any] = {"targets": targets}
    if draw.flag(0.3):
        temperature = draw.one(0.2, 0.7, 3.0)
        call["temperature"] = torch.tensor(temperature, dtype=dtype) if draw.flag(0.3) else temperature
    if draw.flag(0.3):
        call["log_noise"] = draw.simplex(classes).add(1e-3).log().to(dtype)
    if draw.flag(0.3):
        call["row_weight"] = draw.rand(n).to(dtype)
    if draw.flag():
        call["reduced"] = True
        call["divisor"] = draw.one(None, float(n), torch.tensor(3.0))
    {"counted": _counted, "expected": _expected, "soft_target": _soft_target}[name](draw, call, n, classes, dtype)
    return name, call, logits


def _counts(draw: Draw, call: dict[str, Any], n: int, classes: int) -> Tensor:
    if draw.flag():
        return class_mass(call["targets"], classes)
    return torch.randint(4, (classes,), generator=draw.generator).double()


def _counted(draw: Draw, call: dict[str, Any], n: int, classes: int, dtype: torch.dtype) -> None:
    call["adds_own"] = draw.flag(0.3)
    if draw.flag():
        call["counts"] = _counts(draw, call, n, classes)
    if draw.flag(0.2):
        call["class_weight"] = draw.rand(classes).to(dtype) * 3


def _expected(draw: Draw, call: dict[str, Any], n: int, classes: int, dtype: torch.dtype) -> None:
    call["counts"] = _counts(draw, call, n, classes)
    kind = draw.one("none", "same", "same", "other", "drop")
    if kind == "same":
        call["own"] = call["targets"]
        call["counts"] = class_mass(call["targets"], classes) + draw.one(0, 0, 1)
    elif kind == "other":
        call["own"] = draw.rows(n, classes, dtype, may_ignore=False)
    elif kind == "drop":
        call["drop_own_classes"] = True
    if draw.flag(0.2):
        call["exclude"] = draw.classes(n, draw.int(1, 3), below=classes + 1) - 1


def _soft_target(draw: Draw, call: dict[str, Any], n: int, classes: int, dtype: torch.dtype) -> None:
    targets = call["targets"]
    kind = draw.one("batch", "more", "other")
    if kind == "batch":
        call["candidates"], call["own"] = targets, torch.arange(n)
    elif kind == "more":  # the batch in another order, and some of it again
        place = torch.cat([torch.randperm(n, generator=draw.generator), draw.classes(draw.int(0, 70), below=n)])
        parts = (targets.index, targets.weight, targets.smoothing)
        index, weight, smoothing = (t[place] if isinstance(t, Tensor) else t for t in parts)
        call["candidates"] = Rows(index, weight, smoothing, targets.smoothing_dist)
        call["own"] = place[:n].argsort()
    else:
        call["candidates"] = draw.rows(draw.int(1, 70), classes, dtype)
    call["remove_hits"] = draw.flag(0.2)


SUMS = ("counted", "expected", "soft_target")


def simple_call(name: str, rows: Rows, classes: int, count: float = 1.0) -> dict:
    """Counts of ``count`` each, or the rows against themselves."""
    counts = {"counts": torch.full((classes,), count, dtype=torch.float64)}
    return {"targets": rows} | ({"candidates": rows} if name == "soft_target" else counts)


def run(name: str, call: dict, logits: torch.Tensor) -> torch.Tensor:
    return getattr(autograd, name)(logits, **call)


def value_and_gradient(function, name, call, logits, upstream=None):
    x = logits.clone().requires_grad_()
    value = function(name, call, x)
    upstream = torch.ones_like(value) if upstream is None else upstream
    return value.detach(), torch.autograd.grad(value, x, upstream)[0]


def upstream_of(call: dict, logits: Tensor) -> Tensor:
    return (torch.tensor(2.0) if call.get("reduced") else torch.linspace(0.5, 1.5, len(logits))).to(logits)
