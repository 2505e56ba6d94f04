"""``softnce predict``: the most probable classes of images or sentences."""

import json
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path

from softnce.cli import printable, refuse
from softnce.lab.configuration import from_args, option

HELP = """usage: softnce predict CKPT IMAGE [IMAGE ...] [--top 5] [--json true]
       softnce predict CKPT "a sentence" ["another one" ...] [--top 5] [--json true]

Print the most probable classes of each image or sentence with their probabilities. CKPT is a checkpoint of
`softnce train`, or the folder of a run for its best.ckpt.

  --top K      number of classes per image or sentence (default: 5)
  --json true  one JSON object per line: {"input": …, "classes": [{"name": …, "probability": …}, …]}
"""


@dataclass(frozen=True)
class Options:
    """How to print."""

    top: int = option(5, "number of classes per image or sentence", least=1)
    json: bool = option(False, "print one JSON object per line")


def main(argv: list[str]) -> None:
    if not argv or {"-h", "--help"} & set(argv):
        print(HELP, end="")
        return
    words = list(takewhile(lambda word: not word.startswith("--"), argv))
    options = from_args(Options, argv[len(words) :], prog="softnce predict", description="")
    if len(words) < 2:
        refuse("softnce predict: need a checkpoint and at least one image or sentence; see `softnce predict --help`")
    checkpoint, inputs = Path(words[0]), words[1:]
    if not checkpoint.exists():
        refuse(f"softnce predict: no checkpoint {checkpoint}")
    from softnce.lab.train.predict import predict

    try:
        answers = predict(checkpoint, inputs, options.top)
    except ValueError as error:
        refuse(f"softnce predict: {error}")
    for item, answer in zip(inputs, answers, strict=True):
        if options.json:
            classes = [{"name": name, "probability": probability} for name, probability in answer]
            print(json.dumps({"input": item, "classes": classes}))
            continue
        print(printable(item))
        for name, probability in answer:
            print(f"  {100 * probability:6.2f} %  {printable(name)}")
