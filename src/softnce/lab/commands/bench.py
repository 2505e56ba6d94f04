"""``softnce bench``: time and memory of the losses compared with others, or of the parts of a recipe's update."""

import torch

from softnce.cli import refuse
from softnce.lab.bench.run import PRESETS, Config, run
from softnce.lab.configuration import from_args

DESCRIPTION = """Time and memory of the losses compared with others, forward and backward, in one table.

Every loss gets the same batch, after MixUp with label smoothing. In each round every loss runs once, in a new order;
the table shows the ratio to F.cross_entropy within a round, the time, and the peak memory of a step:

  0.56x · 61.2 ms ± 3 % · 45.1 MB      medians over rounds; ± is half the interquartile range

Peak memory is traced at torch's allocator in a second process: gradients and everything temporary, not the inputs.
Further tables: losses from features and a table of label embeddings, how cost grows with rows N, candidates M and
classes K, the bytes that ranks exchange, and (--preset paper) the limits that the losses should keep. The last line
says so if other programs kept the processor busy.

  softnce bench                               a minute; small sizes, a first look
  softnce bench --preset paper                tables of docs/speed.md: twenty minutes, 16 GB of memory, an idle machine
  softnce bench --sizes [[256,50000]]         your own N and K
  softnce bench --threads 1 --clock cpu       one thread, processor time: for a shared machine
  softnce bench --device cuda                 on a GPU; wall time, and the peak of its allocator
  softnce bench RECIPE                        instead, the parts of an update of a recipe: network, loss, optimiser

Results are written to OUT: bench.jsonl (one line per measurement, never overwritten), bench.md (the tables) and
figures/*.png.
"""


def main(argv: list[str]) -> None:
    if argv and not argv[0].startswith("-"):
        _bench_recipe(*argv)
        return
    if {"-h", "--help"} & set(argv):
        print(DESCRIPTION)  # here, because the parser would join its lines
    config = from_args(Config, argv, prog="softnce bench", description="", presets=PRESETS)
    if config.threads is not None:
        torch.set_num_threads(config.threads)
    try:
        run(config)
    except ValueError as error:
        refuse(f"softnce bench: {error}")


def _bench_recipe(name: str, *options: str) -> None:
    from rich.console import Console

    from softnce.lab import recipes
    from softnce.lab.bench import update

    description = f"Time and memory of the parts of an update of the recipe {name}."
    config = from_args(update.Config, options, prog=f"softnce bench {name}", description=description)
    try:
        table = update.measure(recipes.load(name), config)
    except ValueError as error:
        refuse(f"softnce bench: {error}")
    Console().print(table.rich())
