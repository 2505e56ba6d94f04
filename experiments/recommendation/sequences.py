"""A small transformer predicts a user's next item; its item table is input and output (SASRec's size and protocol).

The last item of every user is the test, the one before it validation, which chooses the epoch. Losses without the whole
catalogue see the items of the batch or 256 to 1,024 drawn ones, and give sparse gradients of the table.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from experiments.recommendation.catalogue import sampled_softmax, trained
from experiments.recommendation.data import Histories, sequences
from softnce import BatchCandidates, SoftTargets, functional, ranking

FULL = ("softmax", "softmax-several")  # score all items
LOSSES = (*FULL, "sampled-softmax", "info-nce", "info-nce-user-out", "expected-several", "gbce", "bce")
LENGTH, SEVERAL = 50, 3  # items read; next items of a soft target, with weights 4, 2 and 1
CERTAINTY = 0.75  # t of gBCE
EVERY = 2  # epochs between validations


@dataclass(frozen=True)
class Run:
    """One training. The epoch is chosen on validation; ``final``: the test is scored then."""

    data: str
    loss: str
    lr: float
    dropout: float
    epochs: int
    batch: int
    negatives: int
    seed: int
    final: bool
    dim: int = 64


@dataclass(frozen=True)
class Rows:
    """P positions of a batch of users."""

    features: Tensor  # (P, d)
    user: Tensor  # row of the batch, (P,)
    following: Tensor  # the next items, (P, 3), −1 after the end; the first is the label
    inputs: Tensor  # items of the batch, (B, L), −1 where padded


class Sequential(nn.Module):
    """Two transformer layers over item and position embeddings; features score items by dot products."""

    def __init__(self, num_items: int, dim: int, dropout: float, sparse: bool) -> None:
        super().__init__()
        self.items = nn.Embedding(num_items, dim, sparse=sparse)
        self.places = nn.Parameter(torch.empty(LENGTH, dim))
        self.offset = nn.Parameter(torch.tensor(-5.0))  # of gBCE: else all items drift together and the inputs collapse
        self.start = nn.Sequential(nn.LayerNorm(dim), nn.Dropout(dropout))
        layers = [nn.TransformerEncoderLayer(dim, 2, 4 * dim, dropout, "gelu", batch_first=True) for _ in range(2)]
        self.layers = nn.ModuleList(layers)
        for weight in (self.items.weight, self.places):
            nn.init.normal_(weight, std=0.02)

    def forward(self, items: Tensor) -> Tensor:
        """(B, L) items, padded by −1 at the end, which no earlier position sees → (B, L, d)."""
        length = items.shape[1]
        states = self.start(self.items(items.clamp(min=0)) + self.places[:length])
        later = nn.Transformer.generate_square_subsequent_mask(length)
        for layer in self.layers:
            states = layer(states, src_mask=later, is_causal=True)
        return states


def padded(whole: Histories, users: Tensor, drop: int, length: int) -> Tensor:
    """The last ``length`` items of users without their ``drop`` newest, (B, L), filled up by −1."""
    stop = whole.starts[1:][users] - drop
    start = torch.maximum(whole.starts[:-1][users], stop - length)
    place = start[:, None] + torch.arange(int((stop - start).max()))
    return torch.where(place < stop[:, None], whole.items[place.clamp(max=len(whole.items) - 1)], -1)


def batches(whole: Histories, size: int) -> Iterator[Tensor]:
    """Users in random order, those of about the same length together."""
    for pool in torch.randperm(len(whole)).split(20 * size):
        parts = pool[whole.counts[pool].clamp(max=LENGTH + 3).argsort(stable=True)].split(size)
        for i in torch.randperm(len(parts)).tolist():
            yield parts[i]


def rows_of(network: Sequential, whole: Histories, users: Tensor) -> Rows:
    """Training positions: every item but the first is the label of the one before it."""
    items = padded(whole, users, 2, LENGTH + 1)
    following = F.pad(items[:, 1:], (0, SEVERAL - 1), value=-1).unfold(1, SEVERAL, 1)
    counts = following[:, :, 0] >= 0
    return Rows(network(items[:, :-1])[counts], counts.nonzero()[:, 0], following[counts].contiguous(), items)


def loss_of(run: Run, network: Sequential, rows: Rows, eta: Tensor) -> Tensor:
    labels, table = rows.following[:, 0].contiguous(), network.items
    given, targets = (rows.features, table.weight), several(rows.following, len(eta))
    match run.loss:
        case "softmax":
            return functional.linear_nll(*given, labels)
        case "softmax-several":
            return functional.linear_soft_target_cross_entropy(*given, targets)
        case "info-nce" | "info-nce-user-out":  # or no item of the row's user is its negative
            exclude = rows.inputs[rows.user] if run.loss == "info-nce-user-out" else None
            return functional.linear_info_nce(*given, labels, eta, sparse=True, exclude=exclude)
        case "expected-several":
            options: dict[str, Any] = {"candidates": BatchCandidates(), "negatives": "mean", "sparse": True}
            return functional.linear_expected_info_nce(*given, targets, eta, **options)
    return loss_of_drawn(run, rows.features, labels, table, eta, network.offset)


def several(following: Tensor, num_items: int) -> SoftTargets:
    """The next items as a soft target: weights 4, 2 and 1, less where the sequence ends."""
    weight = torch.tensor([4.0, 2.0, 1.0])[: following.shape[1]] * (following >= 0)
    index = torch.where(following >= 0, following, following[:, :1])
    return SoftTargets(num_items, index, weight / weight.sum(1, keepdim=True))


def loss_of_drawn(
    run: Run, features: Tensor, labels: Tensor, table: nn.Embedding, eta: Tensor, offset: Tensor
) -> Tensor:
    """Negatives drawn for the batch: by popularity for sampled softmax, uniformly for gBCE, one per row for BCE."""
    own = (features * table(labels)).sum(1)
    if run.loss == "bce":
        other = (features * table(torch.randint(len(eta), labels.shape))).sum(1)
        return (F.softplus(-own) + F.softplus(other)).mean()
    if run.loss == "sampled-softmax":
        drawn = torch.multinomial(eta, run.negatives, replacement=True)
    else:
        drawn = torch.randperm(len(eta))[: min(256, run.negatives)]
    scores, hit = features @ table(drawn).t(), drawn[None] == labels[:, None]
    if run.loss == "sampled-softmax":
        return sampled_softmax(own, scores, hit, eta, labels, drawn)
    rate = len(drawn) / (len(eta) - 1)
    power = rate * ((1 - 1 / rate) * CERTAINTY + 1 / rate)
    others = F.softplus(scores + offset).masked_fill(hit, 0.0).sum(1)
    return (power * F.softplus(-(own + offset)) + others).mean() / (1 + len(drawn))


def train(run: Run) -> dict[str, Any]:
    """Validation scores in the course of training, then the chosen epoch's."""
    torch.manual_seed(run.seed)
    whole = sequences(run.data)
    newest = torch.arange(len(whole.items)) - whole.starts[1:][whole.users()]  # −1 for the last item
    eta = whole.select(newest < -2).popularity()
    network = Sequential(whole.num_items, run.dim, run.dropout, sparse=run.loss not in FULL)
    rest = [weight for name, weight in network.named_parameters() if name != "items.weight"]
    ways = (torch.optim.Adam if run.loss in FULL else torch.optim.SparseAdam, torch.optim.Adam)
    optimisers = [way(of, lr=run.lr) for way, of in zip(ways, ([network.items.weight], rest), strict=True)]
    best, weights = -1.0, {}

    def losses() -> Iterator[Tensor]:
        return (loss_of(run, network, rows_of(network, whole, users), eta) for users in batches(whole, run.batch))

    def validated() -> dict[str, float]:
        nonlocal best, weights
        found = scores(network, whole, newest, 1)
        if found["ndcg"] > best:
            best, weights = found["ndcg"], {name: value.clone() for name, value in network.state_dict().items()}
        return found

    course = trained(run.epochs, losses, optimisers, {*range(EVERY, run.epochs, EVERY), run.epochs}, validated)
    chosen = max(course, key=lambda point: point["ndcg"])
    result = {"course": course, "epoch": chosen["epoch"], "held_out": chosen, "cpu_seconds": course[-1]["cpu_seconds"]}
    if run.final:
        network.load_state_dict(weights)
        result["test"] = scores(network, whole, newest, 0)
    return result


@torch.no_grad()
def scores(network: Sequential, whole: Histories, newest: Tensor, drop: int, k: int = 10) -> dict[str, float]:
    """HR@10 and nDCG@10 of the item ``drop`` before the last, all items ranked but those before it."""
    network.eval()
    features = []
    for users in torch.arange(len(whole)).split(500):
        items = padded(whole, users, 1 + drop, LENGTH)
        last = (items >= 0).sum(1) - 1
        features.append(network(items)[torch.arange(len(users)), last])
    network.train()
    wanted, seen = whole.select(newest == -1 - drop), whole.select(newest < -1 - drop)
    exclude = seen.ragged(torch.arange(len(whole)))
    found = ranking.linear_ranks(torch.cat(features), network.items.weight, wanted.items, exclude=exclude)
    return {"hits": found.hits(k).mean().item(), "ndcg": found.ndcg(k).mean().item()}
