"""Users and their items: Gowalla's check-ins, Amazon's Beauty and Sports, and small generated catalogues.

A line of a file is a user's number and its items, separated by spaces. Items of Beauty and Sports are in time order.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import torch
from torch import Tensor

from experiments.data.features import folder
from softnce import SoftTargets

FILES = {"beauty": "Beauty.txt", "sports": "Sports_and_Outdoors.txt"}
FIRST = {"gowalla": 0, "beauty": 1, "sports": 1}  # number of the first item
ITEMS = {"gowalla": 40_981, "beauty": 12_101, "sports": 18_357}


@dataclass(frozen=True)
class Histories:
    """Items of U users: those of user u are ``items[starts[u]:starts[u + 1]]``.

    Attributes:
        items: (P,), numbers from 0.
        starts: (U + 1,).
        num_items: K.
    """

    items: Tensor
    starts: Tensor
    num_items: int

    def __len__(self) -> int:
        return len(self.starts) - 1

    @property
    def counts(self) -> Tensor:
        return self.starts.diff()

    def users(self) -> Tensor:
        """The user of every item, (P,)."""
        return torch.arange(len(self)).repeat_interleave(self.counts)

    def places(self, users: Tensor) -> tuple[Tensor, Tensor]:
        """Of all items of some users (N,): positions 0 … N − 1 and places in each user's list, (A,)."""
        counts = self.counts[users]
        row = torch.arange(len(users)).repeat_interleave(counts)
        return row, torch.arange(len(row)) - (counts.cumsum(0) - counts)[row]

    def of(self, users: Tensor) -> tuple[Tensor, Tensor]:
        """All items of some users (N,): positions 0 … N − 1 and items, (A,) each."""
        row, place = self.places(users)
        return row, self.items[self.starts[users][row] + place]

    def targets(self, users: Tensor) -> SoftTargets:
        """All items of some users, each with the same weight."""
        (row, place), counts = self.places(users), self.counts[users]
        index, weight = torch.zeros(2, len(users), int(counts.max()))
        weight[row, place] = (1 / counts)[row]
        return SoftTargets(self.num_items, index.long().index_put_((row, place), self.of(users)[1]), weight)

    def ragged(self, users: Tensor) -> tuple[Tensor, Tensor]:
        """Offsets (N + 1,) and items of some users, as :mod:`softnce.ranking` excludes them."""
        counts = self.counts[users]
        return torch.cat([counts.new_zeros(1), counts.cumsum(0)]), self.of(users)[1]

    def select(self, kept: Tensor) -> "Histories":
        """The items where ``kept`` (P,) is true, of the same users."""
        counts = torch.zeros(len(self), dtype=torch.long).index_add_(0, self.users(), kept.long())
        return histories(self.items[kept], counts, self.num_items)

    def popularity(self) -> Tensor:
        """Share of each item, (K,); an item without users gets a tenth of a user."""
        counts = self.items.bincount(minlength=self.num_items).double().clamp(min=0.1)
        return (counts / counts.sum()).float()


def histories(items: Tensor, counts: Tensor, num_items: int) -> Histories:
    return Histories(items, torch.cat([counts.new_zeros(1), counts.cumsum(0)]), num_items)


def read_histories(path: Path, num_items: int, first: int = 0, users: Sequence[int] | None = None) -> Histories:
    """Histories of a file in order of its users, which must be ``users`` if given; items count from ``first``."""
    if not path.is_file():
        raise ValueError(f"{path} is missing; it holds a user and its items per line")
    found: dict[int, list[int]] = {}
    with path.open(encoding="utf-8", errors="replace") as lines:
        for number, line in enumerate(lines, 1):
            where, words = f"{path}:{number}", line.split()
            if not all(word.isascii() and word.isdigit() for word in words):
                raise ValueError(f"{where}: got {line.strip()[:40]!r}, need a user and its items as whole numbers")
            if len(words) < 2:
                raise ValueError(f"{where}: {f'user {words[0]} has no items' if words else 'the line is empty'}")
            user, *items = map(int, words)
            strange = next((item for item in items if not first <= item < first + num_items), None)
            if strange is not None:
                raise ValueError(f"{where}: item {strange}, need {first} to {first + num_items - 1}")
            if user in found:
                raise ValueError(f"{where}: user {user} has a line already")
            found[user] = items
    if not found:
        raise ValueError(f"{path} has no users")
    missing = sorted(set(users if users is not None else found) ^ found.keys())
    if missing:
        raise ValueError(f"{path}: user {missing[0]} is in one of training and test only")
    order = sorted(found)
    items = torch.tensor([item - first for user in order for item in found[user]])
    return histories(items, torch.tensor([len(found[user]) for user in order]), num_items)


@cache
def places(name: str) -> tuple[Histories, Histories]:
    """Training and test items of the users of "gowalla", or of 300 generated users of 400 items, "places"."""
    if name == "places":
        return generated_places()
    path = folder("recommendation") / name
    train = read_histories(path / "train.txt", ITEMS[name], FIRST[name])
    return train, read_histories(path / "test.txt", ITEMS[name], FIRST[name], range(len(train)))


@cache
def sequences(name: str) -> Histories:
    """Items of every user in time order: "beauty", "sports", or 300 generated "walks" over 200 items."""
    if name == "walks":
        return generated_sequences()
    path = folder("recommendation") / FILES[name]
    whole = read_histories(path, ITEMS[name], FIRST[name])
    if len(short := (whole.counts < 3).nonzero()):
        raise ValueError(f"{path}: user {int(short[0]) + 1} has fewer than 3 items")
    return whole


def held_out(train: Histories, every: int = 10) -> tuple[Histories, Histories]:
    """Training items without, and only, a random tenth of each user's items (at least one of every user)."""
    generator = torch.Generator().manual_seed(0)
    key = torch.rand(len(train.items), generator=generator)
    order = torch.argsort(train.users().double() + key.double())  # users stay together, each in random order
    rank = order.argsort() - train.starts[:-1][train.users()]
    away = rank < (train.counts / every).ceil().long()[train.users()]
    return train.select(~away), train.select(away)


def generated_places(users: int = 300, items: int = 400, groups: int = 10) -> tuple[Histories, Histories]:
    """Users of a group like the items of their group, some far more than others."""
    generator = torch.Generator().manual_seed(0)
    liking = 1 + 30.0 * (torch.arange(users)[:, None] % groups == torch.arange(items)[None] % groups)
    liking = liking / (1 + torch.arange(items) // groups)  # popular items of each group come first
    drawn = torch.multinomial(liking, 12, generator=generator)
    nine, three = torch.full((users,), 9), torch.full((users,), 3)
    return histories(drawn[:, :9].flatten(), nine, items), histories(drawn[:, 9:].flatten(), three, items)


def generated_sequences(users: int = 300, items: int = 200) -> Histories:
    """Walks that mostly step to the next item or the one after it."""
    generator = torch.Generator().manual_seed(0)
    counts = torch.randint(5, 15, (users,), generator=generator)
    steps = 1 + (torch.rand(users, 15, generator=generator) < 0.3).long()
    start = torch.randint(items, (users, 1), generator=generator)
    walks = (start + steps.cumsum(1)) % items
    return histories(walks[torch.arange(15) < counts[:, None]], counts, items)
