"""Knowledge graphs: triples (head, relation, tail) in three splits, and their queries (head, relation, ?).

A folder holds train.txt, valid.txt and test.txt, one triple per line, its three names separated by tabs: the layout of
FB15k-237 and WN18RR. With reciprocal relations every triple answers two queries: (head, relation, ?) and
(tail, relation reversed, ?). The relation r reversed has the number R + r.
"""

import warnings
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path

import torch
from torch import Tensor

from experiments.data import features

SPLITS = ("train", "valid", "test")


class GraphWarning(UserWarning):
    """Triples that were left out, or that make a score mean less."""


@dataclass(frozen=True)
class Queries:
    """Q questions (entity, relation, ?) with their right answers.

    Attributes:
        entity, relation: (Q,).
        starts: (Q + 1,), the answers of question q are ``answers[starts[q]:starts[q + 1]]``.
        answers: entities, one per triple and direction.
    """

    entity: Tensor
    relation: Tensor
    starts: Tensor
    answers: Tensor

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
        first = counts.cumsum(0) - counts
        place = torch.arange(len(row)) - first[row]
        return row, self.answers[self.starts[questions][row] + place]


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
        seen = torch.zeros(self.entities, dtype=torch.bool)
        seen[self.train[:, [0, 2]].flatten()] = True
        return ~(seen[triples[:, 0]] & seen[triples[:, 2]])


def named(name: str) -> LinkGraph:
    """The graph of that name from the folder links of the one that SOFTNCE_DATA names; ``generated``: a small one."""
    if name == "generated":
        return generated()  # quick to make anew
    return _read_once(features.folder(f"links/{name}"))


@cache
def _read_once(folder: Path) -> LinkGraph:
    return read(folder)


def read(folder: str | Path) -> LinkGraph:
    """The graph in a folder. Errors name file and line; duplicates are left out, counted in one warning."""
    parts = {split: _lines(Path(folder) / f"{split}.txt") for split in SPLITS}
    entities: dict[str, int] = {}
    relations: dict[str, int] = {}
    splits = {}
    for split, lines in parts.items():  # train first, so that its entities have the first numbers
        rows = [
            (entities.setdefault(h, len(entities)), relations.setdefault(r, len(relations)),
             entities.setdefault(t, len(entities)))
            for h, r, t in lines
        ]  # fmt: skip
        different = list(dict.fromkeys(rows))
        if len(different) < len(rows):
            _warn(f"{Path(folder) / split}.txt: {len(rows) - len(different)} duplicate triples left out")
        splits[split] = different
    trained = set(splits["train"])
    for split in ("valid", "test"):
        if leaked := sum(row in trained for row in splits[split]):
            _warn(f"{Path(folder) / split}.txt: {leaked} triples are in train.txt too, their scores are too good")
    return LinkGraph(len(entities), len(relations), *(torch.tensor(splits[split]) for split in SPLITS))


def _lines(path: Path) -> list[tuple[str, str, str]]:
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise ValueError(f"{path}: cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}: is not UTF-8 text: {error.reason} at byte {error.start}") from None
    triples = []
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip():
            continue
        names = [name.strip() for name in line.split("\t")]
        if len(names) != 3 or not all(names):
            raise ValueError(f"{path}:{number}: got {line[:80]!r}, need head, relation and tail separated by tabs")
        triples.append((names[0], names[1], names[2]))
    if not triples:
        raise ValueError(f"{path}: is empty, need at least one triple")
    return triples


def _warn(message: str) -> None:
    warnings.warn(message, GraphWarning, stacklevel=3)


def generated(entities: int = 400, relations: int = 6, dim: int = 3, answers: int = 5, seed: int = 0) -> LinkGraph:
    """A graph that a bilinear model can learn: the best answers under random complex embeddings.

    Each (head, relation) has the ``answers`` tails of the highest scores Re⟨h, r, t̄⟩; a tenth of the triples each goes
    to valid and test.
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
