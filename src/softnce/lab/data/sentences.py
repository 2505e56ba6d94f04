"""Sentences and their intents: Banking77 and CLINC150 in their published files, and generated requests."""

import csv
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from softnce.lab.data.images import stratified
from softnce.lab.recipes.recipe import TextData

Split = Literal["train", "validation", "test"]


@dataclass(frozen=True)
class Sentences:
    """Texts, the class of each (N,), and the names of the classes in alphabetical order."""

    texts: list[str]
    labels: Tensor
    classes: list[str]

    def part(self, rows: Tensor) -> "Sentences":
        return Sentences([self.texts[row] for row in rows.tolist()], self.labels[rows], self.classes)


def open_sentences(data: TextData, split: Split) -> Sentences:
    """The sentences of a split.

    With ``data.holdout`` validation is on a part of the training set that training leaves out, the same for every
    seed; else on CLINC150's validation split, and on Banking77's test split, since it has no other.
    """
    folder = data.dir.expanduser()
    if not folder.is_dir() and data.kind != "requests":
        raise ValueError(f"data.dir {folder} is not a folder; it should hold {data.kind} (see docs/text.md)")
    read = {"banking77": _banking77, "clinc150": _clinc150, "requests": _requests}[data.kind]
    if split == "test" or (split == "validation" and data.holdout == 0):
        return read(folder, split)
    whole = read(folder, "train")
    if data.holdout == 0:
        return whole
    kept, held = stratified(whole.labels, data.holdout)
    return whole.part(kept if split == "train" else held)


def _banking77(folder: Path, split: Split) -> Sentences:
    """``banking77_train.csv`` and ``banking77_test.csv``, or ``train.csv`` and ``test.csv``: text,category."""
    known, _ = _csv_rows(folder, "train")
    classes = sorted({row[1] for row in known})
    rows, path = _csv_rows(folder, "train" if split == "train" else "test")
    return _sentences(rows, classes, path)


def _csv_rows(folder: Path, part: str) -> tuple[list[list[str]], Path]:
    names = f"banking77_{part}.csv", f"{part}.csv"
    path = next((folder / name for name in names if (folder / name).is_file()), None)
    if path is None:
        raise ValueError(f"data.dir {folder} has no {' or '.join(names)}; they hold Banking77 (see docs/text.md)")
    try:
        with path.open(newline="", encoding="utf-8") as lines:
            reader = csv.reader(lines, strict=True)
            header, rows = next(reader, []), [(reader.line_num, row) for row in reader]
    except (UnicodeDecodeError, csv.Error) as error:
        raise ValueError(f"{path} is not a CSV file in UTF-8: {error}") from None
    if header != ["text", "category"]:
        raise ValueError(f"{path}: the first line must be text,category, got {','.join(header)!r}")
    for line, row in rows:
        if len(row) != 2:
            raise ValueError(f"{path}: line {line} has {len(row)} columns, need text and category")
        if not row[0].strip():
            raise ValueError(f"{path}: line {line} has no sentence, got {row[0]!r}")
    return [row for _, row in rows], path


SPLITS = {"train": "train", "validation": "val", "test": "test"}


def _clinc150(folder: Path, split: Split) -> Sentences:
    """``clinc150_full.json`` or ``data_full.json``; out-of-scope sentences, which have no intent, are left out."""
    names = "clinc150_full.json", "data_full.json"
    path = next((folder / name for name in names if (folder / name).is_file()), None)
    if path is None:
        raise ValueError(f"data.dir {folder} has no {' or '.join(names)}; it holds CLINC150 (see docs/text.md)")
    try:
        stored: Any = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:  # not UTF-8, or not JSON
        raise ValueError(f"{path} is not a JSON file: {error}") from None
    for name in SPLITS.values():
        rows = stored.get(name) if isinstance(stored, dict) else None
        if not isinstance(rows, list) or not all(
            isinstance(row, list) and len(row) == 2 and all(isinstance(x, str) for x in row) for row in rows
        ):
            raise ValueError(f"{path}: {name} must be a list of [text, intent]")
        for number, (text, _) in enumerate(rows):
            if not text.strip():
                raise ValueError(f"{path}: {name}[{number}] has no sentence, got {text!r}")
    return _sentences(stored[SPLITS[split]], sorted({row[1] for row in stored["train"]}), path)


OPENINGS = ("please", "i want to", "can you", "how do i", "i need to", "help me")
ACTIONS = {
    "book": ("book", "reserve", "order"),
    "cancel": ("cancel", "call off", "undo the booking of"),
}
THINGS = {
    "flight": ("a flight", "a plane ticket"),
    "hotel": ("a hotel room", "a place to stay"),
    "table": ("a table for two", "dinner at a restaurant"),
    "taxi": ("a taxi", "a ride"),
}


def _requests(folder: Path, split: Split) -> Sentences:
    """Eight intents, an action and a thing each: 216 sentences for training and 72 for evaluation; needs no folder."""
    rows = [
        (f"{opening} {verb} {thing}", f"{action} {name}")
        for action, verbs in ACTIONS.items()
        for name, things in THINGS.items()
        for opening in OPENINGS
        for verb in verbs
        for thing in things
    ]
    whole = _sentences(rows, sorted({name for _, name in rows}), folder)
    kept, held = stratified(whole.labels, 0.25)
    return whole.part(kept if split == "train" else held)


def _sentences(rows: Sequence[Sequence[str]], classes: list[str], path: Path) -> Sentences:
    if not rows:
        raise ValueError(f"{path} holds no sentences")
    number = {name: label for label, name in enumerate(classes)}
    strangers = sorted({name for _, name in rows} - set(classes))
    if strangers:
        raise ValueError(f"{path} has classes that training has not: {', '.join(strangers[:5])}")
    return Sentences([text for text, _ in rows], torch.tensor([number[name] for _, name in rows]), classes)
