"""Sentences and their classes: Banking77, CLINC150, generated requests, and CSV files of one's own."""

import csv
import json
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch.nn.functional import one_hot

from experiments.data.samples import Samples, first_of, numbered

Split = Literal["train", "validation", "test"]
Rows = Sequence[Sequence[str]]
"""Pairs of a sentence and the name of its class."""
OPENINGS = ("please", "i want to", "can you", "how do i", "i need to", "help me")
ACTIONS = {"book": ("book", "reserve", "order"), "cancel": ("cancel", "call off", "undo the booking of")}
THINGS = {
    "flight": ("a flight", "a plane ticket"),
    "hotel": ("a hotel room", "a place to stay"),
    "table": ("a table for two", "dinner at a restaurant"),
    "taxi": ("a taxi", "a ride"),
}


def open_sentences(kind: str, folder: Path, split: Split) -> Samples:
    """The sentences of a split; validation is the test split where a data set has no other."""
    folder = folder.expanduser()
    if kind == "requests":
        return _requests(split)
    if not folder.is_dir():
        raise ValueError(f"data.dir {folder} is not a folder; it should hold {kind} (see docs/experiments.md)")
    if kind == "clinc150":
        path = first_of(folder, "clinc150_full.json", "data_full.json")
        training, rows = _clinc150(path, {"train": "train", "validation": "val", "test": "test"}[split])
        found = _sentences(rows, training, path)
    else:
        named = ["banking77_{}.csv", "{}.csv"] if kind == "banking77" else ["{}.csv"]
        training, path = (
            first_of(folder, *(name.format(part) for name in named))
            for part in ("train", "train" if split == "train" else "test")
        )
        rows, are_votes = read_csv(path)
        found = _sentences(rows, read_csv(training)[0], path, are_votes)
    if split == "train" and len(found.classes) < 2:
        raise ValueError(f"data.dir {folder}: all training sentences are of class {found.classes[0]!r}, need two")
    return found


def read_csv(path: Path) -> tuple[Rows, bool]:
    """The sentences of a CSV in UTF-8, with or without a byte order mark; True if a row is one person's vote.

    The header names the columns, in any order: ``text`` and ``label`` or ``category``, and ``annotator`` for votes.
    """
    try:
        with path.open(newline="", encoding="utf-8-sig") as lines:
            reader = csv.DictReader(lines, strict=True)
            header, rows = reader.fieldnames or [], [(reader.line_num, row) for row in reader]
    except (UnicodeDecodeError, csv.Error) as error:
        raise ValueError(f"{path} is not a CSV file in UTF-8: {error}") from None
    label = "label" if "label" in header else "category"
    if not {"text", label} <= set(header):
        raise ValueError(f"{path}: the first line must name text and label (or category), got {','.join(header)!r}")
    for line, row in rows:
        if None in row or None in row.values():
            raise ValueError(f"{path}: line {line} has more or fewer columns than the first, {len(header)}")
        if not row["text"].strip() or not row[label].strip():
            raise ValueError(f"{path}: line {line} has no {'label' if row['text'].strip() else 'sentence'}")
    return [(row["text"], row[label]) for _, row in rows], "annotator" in header


def _clinc150(path: Path, part: str) -> tuple[Rows, Rows]:
    """The training sentences and those of ``part``; out-of-scope sentences, which have no intent, are left out."""
    try:
        stored: Any = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is not a JSON file: {error}") from None
    for name in ("train", part):
        rows = stored.get(name) if isinstance(stored, dict) else None
        if not isinstance(rows, list) or not all(
            isinstance(row, list) and len(row) == 2 and all(isinstance(x, str) and x.strip() for x in row)
            for row in rows
        ):
            raise ValueError(f"{path}: {name} must be a list of [text, intent], neither of them blank")
    return stored["train"], stored[part]


def _requests(split: Split) -> Samples:
    """Eight intents, an action and a thing each: 216 sentences for training and 72 for evaluation; needs no folder."""
    rows = [
        (f"{opening} {verb} {thing}", f"{action} {name}")
        for (action, verbs), (name, things) in product(ACTIONS.items(), THINGS.items())
        for opening, verb, thing in product(OPENINGS, verbs, things)
    ]
    return _sentences(rows, rows, Path("requests")).split(0.25)[split != "train"]


def _sentences(rows: Rows, training: Rows, path: Path, are_votes: bool = False) -> Samples:
    """The sentences of pairs, with the classes of training; of votes, a row per text in order of first appearance."""
    if not rows:
        raise ValueError(f"{path} holds no sentences")
    texts, names = zip(*rows, strict=True)
    classes = sorted({name for _, name in training})
    targets = numbered(names, classes, path)
    if are_votes:
        place = {text: row for row, text in enumerate(dict.fromkeys(texts))}
        of = torch.tensor([place[text] for text in texts])
        targets = torch.zeros(len(place), len(classes)).index_add(0, of, one_hot(targets, len(classes)).float())
        texts = tuple(place)
    return Samples(np.array(texts), targets, classes, str(path))
