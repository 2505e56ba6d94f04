"""A table of users and a table of items, cosine scores, trained on which items each user chose.

Losses of a user's whole set of items see users as rows, the others see pairs (user, item). A row of a user weighs as
many pairs as it has, so that an epoch is every training pair once for every loss.
"""

import math
import time
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from experiments.harness import Diverged
from experiments.recommendation.data import Histories, held_out, places
from softnce import BatchCandidates, SoftTargets, functional, ranking

SETS = ("soft-ce", "expected-info-nce", "expected-own-out", "soft-target-info-nce")  # rows are users
PAIRS = ("info-nce", "sampled-softmax", "corrected-log-q", "bpr")
LOSSES = (*SETS, *PAIRS)


@dataclass(frozen=True)
class Run:
    """One training. ``final``: on all training pairs, scored on the test items; else a tenth is held out and scored."""

    data: str
    loss: str
    lr: float
    temperature: float
    epochs: int
    batch: int
    negatives: int
    seed: int
    final: bool
    dim: int = 64


class Tables(nn.Module):
    """Embeddings of users and items; scores are cosines over the temperature."""

    def __init__(self, users: int, items: int, dim: int, sparse: bool) -> None:
        super().__init__()
        self.users = nn.Embedding(users, dim, sparse=True)
        self.items = nn.Embedding(items, dim, sparse=sparse)
        for table in (self.users, self.items):
            nn.init.normal_(table.weight, std=1 / math.sqrt(dim))

    def features(self, users: Tensor) -> Tensor:
        return F.normalize(self.users(users), dim=1)

    def columns(self, items: Tensor | None) -> Tensor:
        """Unit vectors of some items, or of all."""
        return F.normalize(self.items.weight if items is None else self.items(items), dim=1)


def loss_of_users(run: Run, tables: Tables, train: Histories, users: Tensor, eta: Tensor) -> Tensor:
    """The mean loss per pair of users with all their items as one soft target."""
    row, items = train.of(users)
    counts = train.counts[users].float()
    everything = run.loss == "soft-ce"
    classes, place = (None, items) if everything else items.unique(return_inverse=True)
    logits = tables.features(users) @ tables.columns(classes).t() / run.temperature
    if everything:
        own = torch.zeros(len(users)).index_add(0, row, logits[row, place] / counts[row])
        losses = logits.logsumexp(1) - own
    else:
        share = torch.zeros_like(logits, requires_grad=False).index_put_((row, place), (1 / counts)[row])
        noise = eta[classes] / eta[classes].sum()
        if run.loss == "expected-own-out":
            losses = own_out(logits, share, noise)
        else:
            of = getattr(functional, run.loss.replace("-", "_"))
            losses = of(logits, SoftTargets.from_dense(share), noise, candidates=BatchCandidates(), reduction="none")
    return losses @ counts / counts.sum()


def own_out(logits: Tensor, share: Tensor, noise: Tensor) -> Tensor:
    """Σ_k α_k log(1 + Σ_{j: α_j = 0} n_j e^{s_j − s_k}): expected InfoNCE, own classes out of the negatives."""
    scores = logits - noise.log()
    rest = (scores + share.sum(0).log()).masked_fill(share > 0, -math.inf).logsumexp(1, keepdim=True)
    return (share * F.softplus(rest - scores)).sum(1)


def loss_of_pairs(run: Run, tables: Tables, users: Tensor, items: Tensor, eta: Tensor) -> Tensor:
    """The mean loss of pairs; negatives are shared by the batch, those of BPR one per pair."""
    features = tables.features(users)
    if run.loss == "info-nce":
        classes, place = items.unique(return_inverse=True)
        logits = features @ tables.columns(classes).t() / run.temperature
        return functional.info_nce(logits, place, eta[classes] / eta[classes].sum())
    if run.loss == "bpr":
        other = torch.randint(len(eta), items.shape)
        gap = (features * (tables.columns(items) - tables.columns(other))).sum(1)
        return F.softplus(-gap / run.temperature).mean()
    drawn = torch.multinomial(eta, run.negatives, replacement=True)
    own = (features * tables.columns(items)).sum(1) / run.temperature
    scores = features @ tables.columns(drawn).t() / run.temperature
    hit = drawn[None] == items[:, None]
    return (sampled_softmax if run.loss == "sampled-softmax" else corrected_log_q)(own, scores, hit, eta, items, drawn)


def sampled_softmax(own: Tensor, scores: Tensor, hit: Tensor, eta: Tensor, items: Tensor, drawn: Tensor) -> Tensor:
    """Sampled softmax with log Q as usual: the own class is corrected as if it had been drawn, too."""
    own = own - (len(drawn) * eta[items]).log()
    rest = (scores - (len(drawn) * eta[drawn]).log()).masked_fill(hit, -math.inf)
    return (torch.cat([own[:, None], rest], 1).logsumexp(1) - own).mean()


def corrected_log_q(own: Tensor, scores: Tensor, hit: Tensor, eta: Tensor, items: Tensor, drawn: Tensor) -> Tensor:
    """The corrected log Q of arXiv 2507.09331.

    The draws other than the own class y have the probabilities Q/(1 − Q_y). A row is weighted by its probability of
    being wrong, 1 − p, without gradient: (1 − p)·(log Σ_{j ≠ y} e^{s_j} − s_y) has the gradient of cross-entropy.
    """
    kept = (~hit).sum(1, keepdim=True).clamp(min=1)
    importance = eta[drawn].log() - (1 - eta[items]).log()[:, None] + kept.log()
    rest = (scores - importance).masked_fill(hit, -math.inf).logsumexp(1)
    wrong = torch.sigmoid(rest - own).detach()
    return (wrong * (rest - own)).mean()


def train(run: Run) -> dict[str, Any]:
    """Scores in the course of training and at its end; processor seconds count steps, not evaluations."""
    torch.manual_seed(run.seed)
    known, wanted = places(run.data)
    if not run.final:
        known, wanted = held_out(known)
    eta = known.popularity()
    tables = Tables(len(known), known.num_items, run.dim, sparse=run.loss != "soft-ce")
    optimiser = torch.optim.Adagrad(tables.parameters(), lr=run.lr)
    users = known.users()
    rows = len(known) if run.loss in SETS else len(users)
    steps = run.epochs * math.ceil(rows / run.batch)
    schedule = torch.optim.lr_scheduler.LinearLR(optimiser, 1.0, 0.0, steps)
    shuffled = torch.randperm(len(known), generator=torch.Generator().manual_seed(0))
    watched_at = {math.ceil(run.epochs * k / 10) for k in range(1, 11)}
    course: list[dict[str, float]] = []
    used = 0.0
    for epoch in range(1, run.epochs + 1):
        start = time.process_time()
        for part in torch.randperm(rows).split(run.batch):
            if run.loss in SETS:
                value = loss_of_users(run, tables, known, part, eta)
            else:
                value = loss_of_pairs(run, tables, users[part], known.items[part], eta)
            optimiser.zero_grad()
            value.backward()
            with torch.sparse.check_sparse_tensor_invariants(enable=False):
                optimiser.step()
            schedule.step()
        used += time.process_time() - start
        if not math.isfinite(value.item()):
            raise Diverged(f"the loss is {value.item()} in epoch {epoch}")
        if epoch in watched_at:
            reached = scores(tables, shuffled[:1_000], known, wanted)
            course.append({"epoch": epoch, "cpu_seconds": round(used, 1), **reached})
    end = scores(tables, shuffled if run.final else shuffled[:4_000], known, wanted)
    return {"course": course, "test" if run.final else "held_out": end, "cpu_seconds": round(used, 1)}


@torch.no_grad()
def scores(tables: Tables, users: Tensor, seen: Histories, wanted: Histories, k: int = 20) -> dict[str, float]:
    """Recall@20 and nDCG@20, means over users, all items ranked but those seen."""
    features, table = tables.features(users), tables.columns(None)
    found = ranking.linear_ranks(features, table, wanted.targets(users), exclude=seen.ragged(users))
    return {"recall": found.recall(k).mean().item(), "ndcg": found.ndcg(k).mean().item()}
