"""Knowledge graphs: triples (head, relation, tail) in three splits, and their queries (head, relation, ?).

A folder holds train.txt, valid.txt and test.txt, one triple per line, its three names separated by tabs: the layout of
FB15k-237 and WN18RR. With reciprocal relations every triple answers two queries: (head, relation, ?) and
(tail, relation reversed, ?). The relation r reversed has the number R + r.
"""

from collections import defaultdict
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path

import torch
from torch import Tensor

from experiments.data import features

SPLITS = ("train", "valid", "test")


@dataclass(frozen=True)
class Queries:
    """Q questions (entity, relation, ?); the right answers of question q are ``answers[starts[q]:starts[q + 1]]``."""

    entity: Tensor
    relation: Tensor
    starts: Tensor
    answers: Tensor  # entities, one per triple and direction

    def __len__(self) -> int:
        return len(self.entity)

    @property
    def counts(self) -> Tensor:
        """How many answers each question has, (Q,)."""
        return self.starts.diff()

    def answers_of(self, questions: Tensor) -> tuple[Tensor, Tensor]:
        """All answers to some questions (N,): positions 0 … N − 1 and entities, (A,) each."""
        counts = self.counts[questions]
        row = torch.arange(len(questions)).repeat_interleave(counts)
        shift = self.starts[questions] - (counts.cumsum(0) - counts)
        return row, self.answers[torch.arange(len(row)) + shift[row]]


@dataclass(frozen=True)
class LinkGraph:
    """A knowledge graph; triples are (n, 3) of head, relation and tail, all different within a split."""

    entities: int
    relations: int
    train: Tensor
    valid: Tensor
    test: Tensor

    def both_ways(self, triples: Tensor) -> Tensor:
        """Each triple and its reverse: (2n, 3) of entity, relation (2R of them) and right answer."""
        head, relation, tail = triples.t()
        return torch.cat([triples, torch.stack([tail, relation + self.relations, head], 1)])

    def questions(self, most: int | None = None) -> Queries:
        """The questions of the training triples; one with more than ``most`` answers is asked several times."""
        return self._queries(self.both_ways(self.train), most)

    @cached_property
    def known(self) -> Queries:
        """The questions of all splits: an evaluation leaves out their other right answers."""
        return self._queries(self.both_ways(torch.cat([self.train, self.valid, self.test])))

    def _queries(self, asked: Tensor, most: int | None = None) -> Queries:
        key, order = self.key(asked).sort(stable=True)
        question, counts = key.unique_consecutive(return_counts=True)
        if most is not None:
            times = (counts + most - 1).div(most, rounding_mode="floor")
            question, full = question.repeat_interleave(times), torch.full((int(times.sum()),), most)
            full[times.cumsum(0) - 1] = counts - (times - 1) * most  # the last part has what is left
            counts = full
        starts = torch.cat([counts.new_zeros(1), counts.cumsum(0)])
        return Queries(question // (2 * self.relations), question % (2 * self.relations), starts, asked[order, 2])

    def key(self, asked: Tensor) -> Tensor:
        """One number per question of rows (entity, relation, …), in the order of :class:`Queries`."""
        return asked[:, 0] * (2 * self.relations) + asked[:, 1]

    def unseen(self, triples: Tensor) -> Tensor:
        """Which triples have an entity that no training triple has, (n,): nothing was learned about it."""
        return ~torch.isin(triples[:, [0, 2]], self.train[:, [0, 2]]).all(1)


@cache
def named(name: str) -> LinkGraph:
    """The graph of that name from the folder links of the one that SOFTNCE_DATA names; ``generated``: a small one."""
    return generated() if name == "generated" else read(features.folder(f"links/{name}"))


def read(folder: str | Path) -> LinkGraph:
    """The graph in a folder, each triple once. Errors name file and line."""
    entities: defaultdict[str, int] = defaultdict(lambda: len(entities))  # a number for each new name
    relations: defaultdict[str, int] = defaultdict(lambda: len(relations))
    splits = []
    for split in SPLITS:  # train first, so that its entities have the first numbers
        triples = dict.fromkeys(_lines(Path(folder) / f"{split}.txt"))
        splits.append(torch.tensor([(entities[head], relations[r], entities[tail]) for head, r, tail in triples]))
    return LinkGraph(len(entities), len(relations), *splits)


def _lines(path: Path) -> list[tuple[str, ...]]:
    try:
        lines = path.read_text(encoding="utf-8").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"{path}: cannot be read as UTF-8 text: {error}") from None
    triples = []
    for number, line in enumerate(lines, 1):
        if triple := tuple(name.strip() for name in line.split("\t") if line.strip()):
            if len(triple) != 3 or not all(triple):
                raise ValueError(f"{path}:{number}: got {line[:80]!r}, need head, relation and tail separated by tabs")
            triples.append(triple)
    if not triples:
        raise ValueError(f"{path}: is empty, need at least one triple")
    return triples


def generated(entities: int = 400, relations: int = 6, dim: int = 3, answers: int = 5, seed: int = 0) -> LinkGraph:
    """A graph that a bilinear model can learn: each (head, relation) has the tails of the highest Re⟨h, r, t̄⟩.

    A tenth of the triples each goes to valid and test.
    """
    generator = torch.Generator().manual_seed(seed)
    h = torch.randn(entities, dim, dtype=torch.complex64, generator=generator)
    r = torch.randn(relations, dim, dtype=torch.complex64, generator=generator)
    scores = torch.einsum("hd,rd,td->hrt", h, r, h.conj()).real
    tails = scores.topk(answers, dim=2).indices
    head, relation, _ = torch.meshgrid(*map(torch.arange, tails.shape), indexing="ij")
    triples = torch.stack([head, relation, tails], -1).view(-1, 3)
    triples = triples[torch.randperm(len(triples), generator=generator)]
    tenth = len(triples) // 10
    return LinkGraph(entities, relations, triples[2 * tenth :], triples[:tenth], triples[tenth : 2 * tenth])
