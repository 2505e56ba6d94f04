"""One fit at a time by autograd and ``torch.optim``: what ``fits`` is held to, and timed against."""

import torch
import torch.nn.functional as F
from torch import Tensor

from softnce.lab.studies.density.fits import COUNTED, Variant, log_noise
from softnce.lab.studies.density.mixture import Mixture


def fit_one(
    data: Mixture, variant: Variant, seed: int, *, batch_size: int, epochs: int, dtype: torch.dtype = torch.float32
) -> Tensor:
    """(K, d) weights of one variant on one data set, with the batches and draws ``fits.fit`` uses for the seed."""
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
