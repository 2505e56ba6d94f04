"""``softnce predict``: the most probable classes of images."""

import sys
from pathlib import Path

from softnce.lab.train.predict import predict

HELP = """usage: softnce predict CKPT IMAGE [IMAGE ...]

Print the five most probable classes of each image with their probabilities. CKPT is a checkpoint of `softnce train`, or
the folder of a run for its best.ckpt.
"""


def main(argv: list[str]) -> None:
    if not argv or argv[0] in ("-h", "--help"):
        print(HELP, end="")
        return
    if len(argv) < 2:
        sys.exit(f"softnce predict: a checkpoint and at least one image are needed\n\n{HELP}")
    paths = [Path(word) for word in argv[1:]]
    try:
        answers = predict(Path(argv[0]), paths)
    except ValueError as error:
        sys.exit(f"softnce predict: {error}")
    for path, answer in zip(paths, answers, strict=True):
        print(path)
        for name, probability in answer:
            print(f"  {100 * probability:6.2f} %  {name}")
