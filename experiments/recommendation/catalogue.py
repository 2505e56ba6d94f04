"""A table of users and a table of items, cosine scores, trained on which items each user chose.

Losses of a user's whole set of items see users as rows, the others see pairs (user, item). A row of a user weighs as
many pairs as it has, so that an epoch is every training pair once for every loss.
"""

import math
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import Optimizer

from experiments.harness import Diverged
from experiments.recommendation.data import Histories, held_out, places
from softnce import BatchCandidates, functional, ranking

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
    targets, pairs = train.targets(users), train.counts[users].float()
    if run.loss == "soft-target-info-nce":  # up to 811 pairs per row: dense rows over the items that occur are smaller
        classes, targets = targets.compact()
        logits = tables.features(users) @ tables.columns(classes).t() / run.temperature
        noise = eta[classes] / eta[classes].sum()
        return functional.soft_target_info_nce(logits, targets.to_dense(), noise, sample_weight=pairs)
    given = (tables.users(users), tables.items.weight, targets)
    options: dict[str, Any] = {"cosine": True, "temperature": run.temperature, "sample_weight": pairs}
    if run.loss == "soft-ce":
        return functional.linear_soft_target_cross_entropy(*given, **options)
    options |= {"sparse": True, "candidates": BatchCandidates(), "negatives": "mean"}
    own_out = run.loss == "expected-own-out"
    return functional.linear_expected_info_nce(*given, eta, drop_own_classes=own_out, **options)


def loss_of_pairs(run: Run, tables: Tables, users: Tensor, items: Tensor, eta: Tensor) -> Tensor:
    """The mean loss of pairs; negatives are shared by the batch, those of BPR one per pair."""
    if run.loss == "info-nce":
        given = (tables.users(users), tables.items.weight, items, eta)
        return functional.linear_info_nce(*given, cosine=True, sparse=True, temperature=run.temperature)
    features, own = tables.features(users), tables.columns(items)
    if run.loss == "bpr":
        other = tables.columns(torch.randint(len(eta), items.shape))
        return F.softplus((features * (other - own)).sum(1) / run.temperature).mean()
    drawn = torch.multinomial(eta, run.negatives, replacement=True)
    scores = features @ tables.columns(drawn).t() / run.temperature
    hit = drawn[None] == items[:, None]
    way = sampled_softmax if run.loss == "sampled-softmax" else corrected_log_q
    return way((features * own).sum(1) / run.temperature, scores, hit, eta, items, drawn)


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


def trained(
    epochs: int, losses: Callable[[], Iterable[Tensor]], optimisers: Sequence[Optimizer], looks: Collection[int],
    scores: Callable[[], dict[str, float]],
) -> list[dict[str, float]]:  # fmt: skip
    """Minimises the ``losses`` of each epoch; returns ``scores`` after the epochs ``looks``.

    Processor seconds count steps, not evaluations.
    """
    course, used = [], 0.0
    for epoch in range(1, epochs + 1):
        start = time.process_time()
        for value in losses():
            for optimiser in optimisers:
                optimiser.zero_grad()
            value.backward()
            with torch.sparse.check_sparse_tensor_invariants(enable=False):  # else Adagrad warns that nobody decided
                for optimiser in optimisers:
                    optimiser.step()
        used += time.process_time() - start
        if not math.isfinite(value.item()):
            raise Diverged(f"the loss is {value.item()} in epoch {epoch}")
        if epoch in looks:
            course.append({"epoch": epoch, "cpu_seconds": round(used, 1), **scores()})
    return course


def train(run: Run) -> dict[str, Any]:
    """Scores in the course of training and at its end."""
    torch.manual_seed(run.seed)
    known, wanted = places(run.data)
    if not run.final:
        known, wanted = held_out(known)
    eta = known.popularity()
    tables = Tables(len(known), known.num_items, run.dim, sparse=run.loss != "soft-ce")
    optimiser = torch.optim.Adagrad(tables.parameters(), lr=run.lr)
    users = known.users()
    rows = len(known) if run.loss in SETS else len(users)
    schedule = torch.optim.lr_scheduler.LinearLR(optimiser, 1.0, 0.0, run.epochs * math.ceil(rows / run.batch))
    shuffled = torch.randperm(len(known), generator=torch.Generator().manual_seed(0))

    def losses() -> Iterator[Tensor]:
        for part in torch.randperm(rows).split(run.batch):
            if run.loss in SETS:
                yield loss_of_users(run, tables, known, part, eta)
            else:
                yield loss_of_pairs(run, tables, users[part], known.items[part], eta)
            schedule.step()  # after the optimiser's

    looks = {math.ceil(run.epochs * k / 10) for k in range(1, 11)}
    course = trained(run.epochs, losses, [optimiser], looks, lambda: scores(tables, shuffled[:1_000], known, wanted))
    end = scores(tables, shuffled if run.final else shuffled[:4_000], known, wanted)
    return {"course": course, "test" if run.final else "held_out": end, "cpu_seconds": course[-1]["cpu_seconds"]}


@torch.no_grad()
def scores(tables: Tables, users: Tensor, seen: Histories, wanted: Histories, k: int = 20) -> dict[str, float]:
    """Recall@20 and nDCG@20, means over users, all items ranked but those seen."""
    features, table = tables.features(users), tables.columns(None)
    found = ranking.linear_ranks(features, table, wanted.targets(users), exclude=seen.ragged(users))
    return {"recall": found.recall(k).mean().item(), "ndcg": found.ndcg(k).mean().item()}
