"""``softnce export``: the network of a checkpoint for use without the laboratory."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from softnce.cli import refuse
from softnce.lab.configuration import from_args, option

HELP = """usage: softnce export CKPT [--format pt2|onnx|weights] [--out FILE]

Write the network of a checkpoint of `softnce train` (a file, or the folder of a run for its best.ckpt) for other uses:

  pt2      a program of torch.export: needs torch only (default)
  onnx     the same for other runtimes; needs softnce[export]
  weights  the network's state_dict alone, for torch.load(..., weights_only=True)

A program returns probabilities (N, K). It takes, of any size N,
  images (N, 3, S, S); or
  tokens (N, L) of sentences, padded with -1; or
  a graph: node features (N, d), edges (2, E) and, if the network uses them, edge features (E, e).

Beside it, a JSON file with the classes' names and how inputs are prepared, and for sentences the tokenizer. What was
written is read again and compared with the network; a difference above 1e-4 in a probability is an error.
"""


@dataclass(frozen=True)
class Options:
    """What to write."""

    format: Literal["pt2", "onnx", "weights"] = option("pt2", "what to write")
    out: str = option("", "the file; empty: beside the checkpoint")


def main(argv: list[str]) -> None:
    if not argv or {"-h", "--help"} & set(argv):
        print(HELP, end="")
        return
    if argv[0].startswith("-"):
        refuse("softnce export: the first argument must be a checkpoint")
    options = from_args(Options, argv[1:], prog="softnce export", description="")
    checkpoint = Path(argv[0])
    if not checkpoint.exists():
        refuse(f"softnce export: no checkpoint {checkpoint}")
    from softnce.lab.train.export import export

    try:
        path, difference = export(checkpoint, Path(options.out) if options.out else None, options.format)
    except (ValueError, OSError) as error:
        refuse(f"softnce export: {error}")
    print(f"{path}\nlargest difference of a probability: {difference:.1g}")
