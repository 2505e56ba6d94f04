"""``softnce train``: train a classifier from a recipe, or resume a run."""

import signal
import sys
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from softnce.cli import fail, refuse
from softnce.lab import recipes
from softnce.lab.configuration import from_args, option
from softnce.lab.recipes.recipe import AnyRecipe, GraphRecipe, Recipe, TextRecipe

HELP = """usage: softnce train RECIPE [--out DIR] [--resume] [--any.field value ...]
       softnce train --resume DIR

Train a classifier from a recipe: a name that `softnce recipes` lists, or a YAML file. Any value of the recipe can be
set on the command line. `softnce train RECIPE --help` explains all fields and shows the recipe's values.

  softnce train laptop/digits                                        half a minute, nothing to download
  softnce train cifar100/soft-target-info-nce --data.dir ~/cifar     an experiment of the paper
  softnce train laptop/banking77 --data.dir ~/intents                MiniLM fine-tuned on customer questions
  softnce train laptop/tissue                                        nodes of graphs; generated, no download
  torchrun --nproc-per-node 8 -m softnce train imagenet/nll --data.dir /imagenet --compute.micro_batch 64
  softnce train --resume runs/imagenet-nll                           continue exactly where it stopped

With a RECIPE, --resume continues the run in DIR if there is one and starts it otherwise (for requeued jobs).
"""


OUT = "folder of the run; by default runs/RECIPE, with -seedN and -foldN where they are not the recipe's"


@dataclass(frozen=True)
class Run(Recipe):
    """A recipe and the folder of its run."""

    out: Path = field(default_factory=lambda: Path("runs"), metadata={"help": OUT})
    resume: bool = option(False, "continue the run in that folder, if there is one")


@dataclass(frozen=True)
class TextRun(TextRecipe):
    """A recipe of text and the folder of its run."""

    out: Path = field(default_factory=lambda: Path("runs"), metadata={"help": "folder of the run"})
    resume: bool = option(False, "continue the run in that folder, if there is one")


@dataclass(frozen=True)
class GraphRun(GraphRecipe):
    """A recipe of graphs and the folder of its run."""

    out: Path = field(default_factory=lambda: Path("runs"), metadata={"help": OUT})
    resume: bool = option(False, "continue the run in that folder, if there is one")


def parse(argv: list[str]) -> tuple[AnyRecipe, Path, bool]:
    """Recipe, folder, and whether to resume."""
    words = list(argv)
    if "--resume" in words:
        place = words.index("--resume")
        bare = place + 1 == len(words) or words[place + 1].startswith("--")
        named = words[0] if words and not words[0].startswith("-") else None
        if named is None and not bare:  # --resume DIR
            out = Path(words[place + 1])
            if not (out / "recipe.yaml").is_file():
                raise ValueError(f"--resume {out}: no run there (no recipe.yaml)")
            if any(word == "--out" or word.startswith("--out=") for word in words):
                raise ValueError(f"--resume {out} continues in {out}: omit --out")
            del words[place : place + 2]
            words = [str(out / "recipe.yaml"), *words, "--out", str(out), "--resume=true"]
        elif bare:
            words[place] = "--resume=true"
    if not words or words[0].startswith("-"):
        raise ValueError("the first argument must be a RECIPE: `softnce recipes` lists them")
    name, rest = words[0], words[1:]
    recipe = recipes.load(name)
    kind = type(recipe)
    run_type = {Recipe: Run, TextRecipe: TextRun, GraphRecipe: GraphRun}[kind]
    values = {item.name: getattr(recipe, item.name) for item in fields(kind)}
    run: Any = from_args(
        run_type,
        rest,
        prog="softnce train",
        description=f"Train a classifier from the recipe {name}. The defaults shown are the recipe's values.",
        defaults=run_type(**values, out=default_out(name, recipe, recipe)),
    )
    chosen = kind(**{item.name: getattr(run, item.name) for item in fields(kind)})
    given = any(word == "--out" or word.startswith("--out=") for word in rest)
    return chosen, run.out if given else default_out(name, recipe, chosen), run.resume


def default_out(name: str, recipe: AnyRecipe, chosen: AnyRecipe) -> Path:
    """The folder of a run without --out: of the recipe's name, and of a seed or fold that is not the recipe's."""
    folder = name.replace("/", "-").removesuffix(".yaml").removesuffix(".yml")
    if chosen.seed != recipe.seed:
        folder += f"-seed{chosen.seed}"
    if isinstance(recipe, GraphRecipe) and isinstance(chosen, GraphRecipe) and chosen.data.fold != recipe.data.fold:
        folder += "-folds" if chosen.data.fold == -1 else f"-fold{chosen.data.fold}"
    return Path("runs") / folder


def main(argv: list[str]) -> None:
    if not argv or argv[0] in ("-h", "--help"):
        print(HELP, end="")
        return
    try:
        recipe, out, resume = parse(argv)
    except ValueError as error:
        refuse(f"softnce train: {error}")
    # only now, so that a typo is answered at once
    from softnce.lab.data.batches import CorruptImage
    from softnce.lab.train.checkpoints import Interrupted, NotSaved
    from softnce.lab.train.classifier import Diverged
    from softnce.lab.train.machine import is_first_process
    from softnce.lab.train.run import Occupied, prepare

    try:
        if isinstance(recipe, GraphRecipe) and recipe.data.fold == -1:
            _train_folds(recipe, out, resume)
            return
        results = prepare(recipe, out, resume=resume).run()
    except (ValueError, Occupied) as error:
        refuse(f"softnce train: {error}")
    except CorruptImage as error:
        refuse(f"softnce train: {error.words}")
    except (Diverged, NotSaved) as error:
        fail(f"softnce train: {error}")
    except Interrupted:
        if is_first_process():
            print(f"stopped; to continue: softnce train --resume {out}", file=sys.stderr)
        sys.exit(128 + signal.SIGTERM)
    if not is_first_process():
        return
    if results["best"]:
        _show(results, out)
    else:
        print(f"no epoch was completed, so nothing was measured; to measure: softnce evaluate {out / 'last.ckpt'}")


def _train_folds(recipe: GraphRecipe, out: Path, resume: bool) -> None:
    from rich.console import Console
    from rich.table import Table

    from softnce.lab.train.folds import METRICS, train_folds

    found = train_folds(recipe, out, resume=resume)
    folds = [f"fold {number}" for number in range(len(found.each))]
    table = Table(str(out), *folds, "mean of folds", f"{found.pooled.specimens} specimens")
    for metric in METRICS:
        each = [f"{getattr(fold, metric):.4f}" for fold in found.each]
        pooled = f"{getattr(found.pooled, metric):.4f} ± {getattr(found.pooled, f'{metric}_deviation'):.4f}"
        table.add_row(metric, *each, f"{found.mean(metric):.4f}", pooled)
    Console().print(table)


def _show(results: dict[str, Any], out: Path) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(str(out), *results)
    for metric in next(iter(results.values())):
        values = [columns.get(metric) for columns in results.values()]
        form = "{:g}" if metric in ("epoch", "step") else "{:.4f}"
        table.add_row(metric, *("" if value is None else form.format(value) for value in values))
    Console().print(table)
