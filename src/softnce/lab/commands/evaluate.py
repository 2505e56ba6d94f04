"""``softnce evaluate``: measure a checkpoint and draw its reliability diagram."""

import csv
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from softnce.cli import fail, printable, refuse
from softnce.lab.atomic import why
from softnce.lab.configuration import from_args, option

HELP = """usage: softnce evaluate CKPT [--data.dir DIR] [--out DIR] [...]

Evaluate a checkpoint of `softnce train` (a file, or the folder of a run for its best.ckpt) on its evaluation data:
top-1, top-5, class average, negative log-likelihood, Brier score and calibration errors, with a reliability diagram.
Writes evaluation.json and reliability.png, and for graphs confusion.png, to --out (default: the checkpoint's folder);
with --samples true also samples.csv, one line per image, sentence or node.
"""


@dataclass(frozen=True)
class Source:
    """Where the data come from."""

    dir: str = option("", "folder of the data set, if it has moved since training")
    workers: int = option(8, "loader processes (images)", least=0)


@dataclass(frozen=True)
class Options:
    """What to evaluate on."""

    data: Source = field(default_factory=Source)

    split: Literal["validation", "test"] = option(
        "test", "test: the data set's evaluation split; validation: the data that chose the best epoch, if different"
    )
    batch: int = option(0, "images or graphs per step; 0: as in training", least=0)
    progress: bool = option(True, "show a progress bar")
    samples: bool = option(False, "also write samples.csv: label, prediction and probabilities of every sample")
    out: Path = field(default_factory=lambda: Path("."), metadata={"help": "folder for the results"})


def main(argv: list[str]) -> None:
    if not argv or argv[0] in ("-h", "--help"):
        print(HELP, end="")
        return
    if argv[0].startswith("-"):
        refuse("softnce evaluate: the first argument must be a checkpoint")
    checkpoint = Path(argv[0])
    folder = checkpoint if checkpoint.is_dir() else checkpoint.parent
    options = from_args(
        Options, argv[1:], prog="softnce evaluate", description=f"Evaluate {checkpoint}.", defaults=Options(out=folder)
    )
    if not checkpoint.exists():
        refuse(f"softnce evaluate: no checkpoint {checkpoint}")
    try:
        options.out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        refuse(f"softnce evaluate: out: cannot write in {options.out}: {why(error)}")
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    from softnce.lab.data.batches import CorruptImage
    from softnce.lab.report import drawing
    from softnce.lab.report.evaluation import confusion, reliability
    from softnce.lab.train.evaluate import evaluate

    try:
        evaluation = evaluate(
            checkpoint,
            split=options.split,
            data_dir=options.data.dir,
            batch=options.batch,
            workers=options.data.workers,
            progress=options.progress,
        )
    except ValueError as error:
        refuse(f"softnce evaluate: {error}")
    except CorruptImage as error:
        refuse(f"softnce evaluate: {error.words}")
    table = Table("metric", "value", title=escape(printable(f"{checkpoint}, {options.split}")))
    for name, value in evaluation.results.items():
        table.add_row(name, f"{value:.4f}")
    Console().print(table)
    described: dict[str, Any] = {"checkpoint": str(checkpoint), "split": options.split, **evaluation.results}
    pictures = [reliability(evaluation.curve, evaluation.results, folder.name)]
    if evaluation.confusions is not None:
        pictures.append(confusion(evaluation.confusions.sum(0), evaluation.classes, f"{folder.name}, {options.split}"))
    try:
        (options.out / "evaluation.json").write_text(json.dumps(described, indent=2))
        for picture in pictures:
            (options.out / f"{picture.name}.png").write_bytes(drawing.png(picture))
        if options.samples:
            rows = evaluation.samples()
            with (options.out / "samples.csv").open("w", encoding="utf-8", newline="") as file:
                writer = csv.DictWriter(file, rows[0].keys())
                writer.writeheader()
                writer.writerows(rows)
    except OSError as error:
        fail(f"softnce evaluate: out: cannot write in {options.out}: {why(error)}")
    print(f"reliability diagram: {options.out / 'reliability.png'}")
