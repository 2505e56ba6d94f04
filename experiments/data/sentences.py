"""Sentences and their classes: Banking77, CLINC150, generated requests, and CSV files of one's own."""

import csv
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from experiments.data.images import stratified
from experiments.data.targets import hard_labels

Split = Literal["train", "validation", "test"]


@dataclass(frozen=True)
class Sentences:
    """Texts, the class of each (N,), the names of the classes in alphabetical order, and votes (N, K) if there are."""

    texts: list[str]
    labels: Tensor
    classes: list[str]
    votes: Tensor | None = None

    def __len__(self) -> int:
        return len(self.texts)

    def __getitem__(self, rows: Tensor) -> "Sentences":
        votes = None if self.votes is None else self.votes[rows]
        return Sentences([self.texts[row] for row in rows.tolist()], self.labels[rows], self.classes, votes)

    @property
    def targets(self) -> Tensor:
        """Votes (N, K) if there are any, else labels (N,)."""
        return self.labels if self.votes is None else self.votes


def open_sentences(kind: str, folder: Path, split: Split, files: tuple[str, str] = ("", "")) -> Sentences:
    """The sentences of a split; validation is the test split where a data set has no other.

    Args:
        kind: the data set, or CSV files.
        folder: of its files.
        split: train, validation or test.
        files: names of the CSV files for training and for evaluation; empty: train.csv and test.csv.
    """
    folder = folder.expanduser()
    if kind == "requests":
        return _requests(split)
    if not folder.is_dir():
        raise ValueError(f"data.dir {folder} is not a folder; it should hold {kind} (see docs/experiments.md)")
    found = _clinc150(folder, split) if kind == "clinc150" else _csv(kind, folder, split, files)
    if split == "train" and len(found.classes) < 2:
        raise ValueError(f"data.dir {folder}: all training sentences are of class {found.classes[0]!r}, need two")
    return found


def _csv(kind: str, folder: Path, split: Split, files: tuple[str, str]) -> Sentences:
    """A CSV of sentences for training, another for evaluation, with the same classes."""
    own = [(name,) if name else () for name in files]
    standard = [(f"banking77_{part}.csv", f"{part}.csv") if kind == "banking77" else (f"{part}.csv",) for part in
                ("train", "test")]  # fmt: skip
    train, test = (given or usual for given, usual in zip(own, standard, strict=True))
    path = _first(folder, train)
    classes = sorted({label for _, label in read_csv(path)[0]})
    if split != "train":
        path = _first(folder, test)
    rows, has_annotators = read_csv(path)
    return _sentences(rows, classes, path, has_annotators)


def _first(folder: Path, names: Sequence[str]) -> Path:
    path = next((folder / name for name in names if (folder / name).is_file()), None)
    if path is None:
        raise ValueError(f"data.dir {folder} has no {' or '.join(names)} (see docs/experiments.md)")
    return path


def read_csv(path: Path) -> tuple[list[tuple[str, str]], bool]:
    """Pairs (text, label) of a CSV in UTF-8, with or without a byte order mark; True if a row is one person's vote.

    The header names the columns, in any order: ``text`` and ``label`` or ``category``, and ``annotator`` for votes.
    """
    try:
        with path.open(newline="", encoding="utf-8-sig") as lines:
            reader = csv.reader(lines, strict=True)
            header, rows = next(reader, []), [(reader.line_num, row) for row in reader if row]
    except (UnicodeDecodeError, csv.Error) as error:
        raise ValueError(f"{path} is not a CSV file in UTF-8: {error}") from None
    label = next((name for name in ("label", "category") if name in header), None)
    if "text" not in header or label is None:
        raise ValueError(f"{path}: the first line must name text and label (or category), got {','.join(header)!r}")
    text, named = header.index("text"), header.index(label)
    for line, row in rows:
        if len(row) != len(header):
            raise ValueError(f"{path}: line {line} has {len(row)} columns, need {len(header)}")
        if not row[text].strip() or not row[named].strip():
            raise ValueError(f"{path}: line {line} has no {'label' if row[text].strip() else 'sentence'}")
    return [(row[text], row[named]) for _, row in rows], "annotator" in header


def _clinc150(folder: Path, split: Split) -> Sentences:
    """``clinc150_full.json`` or ``data_full.json``; out-of-scope sentences, which have no intent, are left out."""
    path = _first(folder, ("clinc150_full.json", "data_full.json"))
    try:
        stored: Any = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is not a JSON file: {error}") from None
    name = {"train": "train", "validation": "val", "test": "test"}[split]
    parts = []
    for part in ("train", name):
        rows = stored.get(part) if isinstance(stored, dict) else None
        if not isinstance(rows, list) or not all(
            isinstance(row, list) and len(row) == 2 and all(isinstance(x, str) and x.strip() for x in row)
            for row in rows
        ):
            raise ValueError(f"{path}: {part} must be a list of [text, intent], neither of them blank")
        parts.append([(text, intent) for text, intent in rows])
    return _sentences(parts[1], sorted({row[1] for row in parts[0]}), path)


OPENINGS = ("please", "i want to", "can you", "how do i", "i need to", "help me")
ACTIONS = {"book": ("book", "reserve", "order"), "cancel": ("cancel", "call off", "undo the booking of")}
THINGS = {
    "flight": ("a flight", "a plane ticket"),
    "hotel": ("a hotel room", "a place to stay"),
    "table": ("a table for two", "dinner at a restaurant"),
    "taxi": ("a taxi", "a ride"),
}


def _requests(split: Split) -> Sentences:
    """Eight intents, an action and a thing each: 216 sentences for training and 72 for evaluation; needs no folder."""
    rows = [
        (f"{opening} {verb} {thing}", f"{action} {name}")
        for action, verbs in ACTIONS.items()
        for name, things in THINGS.items()
        for opening in OPENINGS
        for verb in verbs
        for thing in things
    ]
    whole = _sentences(rows, sorted({name for _, name in rows}), Path("requests"))
    kept, held = stratified(whole.labels, 0.25)
    return whole[kept if split == "train" else held]


def _sentences(rows: Sequence[tuple[str, str]], classes: list[str], path: Path, votes: bool = False) -> Sentences:
    """Sentences of pairs; with ``votes``, one row per text, in order of first appearance."""
    if not rows:
        raise ValueError(f"{path} holds no sentences")
    number = {name: label for label, name in enumerate(classes)}
    if strangers := sorted({name for _, name in rows} - set(classes)):
        raise ValueError(f"{path} has classes that training has not: {', '.join(strangers[:5])}")
    if not votes:
        return Sentences([text for text, _ in rows], torch.tensor([number[name] for _, name in rows]), classes)
    place = {text: row for row, text in enumerate(dict.fromkeys(text for text, _ in rows))}
    counts = torch.zeros(len(place), len(classes))
    for text, name in rows:
        counts[place[text], number[name]] += 1
    return Sentences(list(place), hard_labels(counts), classes, counts)
