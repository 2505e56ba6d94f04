"""``softnce predict``: the most probable classes of images or sentences."""

import sys
from pathlib import Path

from softnce.lab.train.predict import predict

HELP = """usage: softnce predict CKPT IMAGE [IMAGE ...]
       softnce predict CKPT "a sentence" ["another one" ...]

Print the five most probable classes of each image or sentence with their probabilities. CKPT is a checkpoint of
`softnce train`, or the folder of a run for its best.ckpt.
"""


def main(argv: list[str]) -> None:
    if not argv or argv[0] in ("-h", "--help"):
        print(HELP, end="")
        return
    if len(argv) < 2:
        sys.exit(f"softnce predict: a checkpoint and at least one image or sentence are needed\n\n{HELP}")
    checkpoint, *inputs = argv
    try:
        answers = predict(Path(checkpoint), inputs)
    except ValueError as error:
        sys.exit(f"softnce predict: {error}")
    for item, answer in zip(inputs, answers, strict=True):
        print(item)
        for name, probability in answer:
            print(f"  {100 * probability:6.2f} %  {name}")
