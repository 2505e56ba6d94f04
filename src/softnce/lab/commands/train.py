"""``softnce train``: train a classifier from a recipe, or resume a run."""

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Literal

from softnce.cli import fail, refuse
from softnce.lab import recipes
from softnce.lab.configuration import from_args, option
from softnce.lab.diverged import Diverged
from softnce.lab.recipes.recipe import AnyRecipe, GraphRecipe, Recipe, TextRecipe
from softnce.lab.sweeps import grid
from softnce.lab.sweeps.grid import Training

HELP = """usage: softnce train RECIPE [--out DIR] [--resume] [--any.field value ...]
       softnce train RECIPE --seeds 5 [--folds all] [--any.field a,b,c ...] [--engine ray [--address auto]]
       softnce train --resume DIR

Train a classifier from a recipe: a name that `softnce recipes` lists, or a YAML file. Any value of the recipe can be
set on the command line. `softnce train RECIPE --help` explains all fields and shows the recipe's values.

  softnce train laptop/digits                                        half a minute, nothing to download
  softnce train cifar100/soft-target-info-nce --data.dir ~/cifar     an experiment of the paper
  softnce train laptop/banking77 --data.dir ~/intents                MiniLM fine-tuned on customer questions
  softnce train laptop/tissue                                        nodes of graphs; generated, no download
  torchrun --nproc-per-node 8 -m softnce train imagenet/nll --data.dir /imagenet
  softnce train --resume runs/imagenet-nll                           continue exactly where it stopped

With a RECIPE, --resume continues the run in DIR if there is one and starts it otherwise (for requeued jobs).

Options with several values train every combination, one per GPU or core, and print a table:

  softnce train laptop/digits --seeds 5 --optimiser.base_lr 1e-3,4e-3
  softnce train laptop/tissue --folds all --engine ray --address auto    on a Ray cluster

The same command continues them, and on several machines with a shared folder it shares them.
"""


OUT = (
    "folder of the run, by default runs/RECIPE with -seedN and -foldN where they are not the recipe's; of several runs "
    "runs/RECIPE-sweep"
)


@dataclass(frozen=True)
class Options:
    """Where and how to train."""

    out: Path = field(default_factory=lambda: Path("runs"), metadata={"help": OUT})
    resume: bool = option(False, "continue the run in that folder, if there is one")
    seeds: int = option(1, "train with seeds 0, 1, … instead of one")
    folds: str = option("", "all: train on all folds of the data instead of one")
    engine: Literal["processes", "ray"] = option(
        "processes", "of several trainings: processes of this machine, or a Ray cluster"
    )
    address: str = option("", "of the Ray cluster; auto: the one of this machine; empty: that, or a new one")


@dataclass(frozen=True)
class ImageCommand(Options, Recipe):
    """A recipe of images, and the options."""


@dataclass(frozen=True)
class TextCommand(Options, TextRecipe):
    """A recipe of text, and the options."""


@dataclass(frozen=True)
class GraphCommand(Options, GraphRecipe):
    """A recipe of graphs, and the options."""


@dataclass(frozen=True)
class Command:
    """What the command line asks for; several trainings differ in the options ``varied``."""

    trainings: list[Training]
    varied: list[str]
    options: Options


def parse(argv: list[str]) -> Command:
    """The trainings, and how to do them."""
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
    asks_help = {"-h", "--help"} & set(rest)
    single, varied = (rest, {}) if asks_help else grid.several(recipe, rest)
    read = [read_recipe(name, recipe, options) for options in grid.combinations(single, varied)]
    options = read[0][1]
    given = any(word == "--out" or word.startswith("--out=") for word in rest)
    if not varied:
        out = options.out if given else default_out(name, recipe, read[0][0])
        return Command([Training(read[0][0], out)], [], options)
    if not given:
        options = replace(options, out=options.out.with_name(f"{options.out.name}-sweep"))
    trainings = [Training(chosen, options.out / grid.folder_name(chosen, list(varied))) for chosen, _ in read]
    if len({training.out for training in trainings}) < len(trainings):
        equal = ", ".join(f"--{name} {','.join(values)}" for name, values in varied.items())
        raise ValueError(f"{equal}: two of these trainings are the same to six digits, need different values")
    return Command(trainings, list(varied), options)


def read_recipe(
    name: str, recipe: AnyRecipe, argv: list[str], prog: str = "softnce train"
) -> tuple[AnyRecipe, Options]:
    """The recipe with the values of the command line, and the other options."""
    kind = type(recipe)
    command_type = {Recipe: ImageCommand, TextRecipe: TextCommand, GraphRecipe: GraphCommand}[kind]
    values = {item.name: getattr(recipe, item.name) for item in fields(kind)}
    command: Any = from_args(
        command_type,
        argv,
        prog=prog,
        description=f"Train a classifier from the recipe {name}. The defaults shown are the recipe's values.",
        defaults=command_type(**values, out=default_out(name, recipe, recipe)),
    )
    chosen = kind(**{item.name: getattr(command, item.name) for item in fields(kind)})
    return chosen, Options(**{item.name: getattr(command, item.name) for item in fields(Options)})


def default_out(name: str, recipe: AnyRecipe, chosen: AnyRecipe) -> Path:
    """The folder of a run without --out: of the recipe's name, and of a seed or fold that is not the recipe's."""
    folder = name.replace("/", "-").removesuffix(".yaml").removesuffix(".yml")
    if chosen.seed != recipe.seed:
        folder += f"-seed{chosen.seed}"
    if isinstance(recipe, GraphRecipe) and isinstance(chosen, GraphRecipe) and chosen.data.fold != recipe.data.fold:
        folder += f"-fold{chosen.data.fold}"
    return Path("runs") / folder


def main(argv: list[str]) -> None:
    if not argv or argv[0] in ("-h", "--help"):
        print(HELP, end="")
        return
    try:
        command = parse(argv)
    except ValueError as error:
        refuse(f"softnce train: {error}")
    if command.varied:
        _train_all(command)
        return
    recipe, out = command.trainings[0].recipe, command.trainings[0].out
    # only now, so that a typo is answered at once
    from softnce.lab.data.batches import CorruptImage
    from softnce.lab.train.checkpoints import Interrupted, NotSaved
    from softnce.lab.train.machine import is_first_process
    from softnce.lab.train.run import Occupied, prepare

    try:
        results = prepare(recipe, out, resume=command.options.resume).run()
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
        last = out / "last.ckpt"
        way = f"; to measure: softnce evaluate {last}" if last.is_file() else ""
        print(f"no epoch was completed, so nothing was measured{way}")


def _train_all(command: Command) -> None:
    """Every training of a sweep, then a table of all runs in the folder."""
    from rich.console import Console

    from softnce.lab.sweeps import many
    from softnce.lab.sweeps.folds import over_specimens
    from softnce.lab.sweeps.table import left_out, read_runs, table

    options, console, failures = command.options, Console(), []
    with ended_in_one_line("softnce train"):
        done = sum(map(many.is_finished, command.trainings))
        engine = many.engine(options.engine, options.address, command.trainings)
        all_trained = many.train_all(command.trainings, options.out, engine)
        print(f"{len(command.trainings) - done} trainings to do, {done} already in {options.out}")
        for number, trained in enumerate(all_trained, 1):
            failures += [f"{trained.run.out.name}: {trained.error}"] if trained.error else []
            print(f"{number}: {trained.run.out.name}{' failed' if trained.error else ''}", flush=True)
        runs = read_runs(options.out)
    if runs:
        console.print(table(runs).rich())
        if pooled := over_specimens(options.out, runs):
            console.print(pooled.rich())
        print("".join(f"{line}\n" for line in left_out(options.out, runs)), end="")
    if failures:
        fail(f"softnce train: {'; '.join(failures)}")


@contextmanager
def ended_in_one_line(prog: str) -> Iterator[None]:
    """How a sweep ends that is refused, loses a training or is interrupted."""
    from softnce.lab.experiment.parallel import Killed

    try:
        yield
    except ValueError as error:
        refuse(f"{prog}: {error}")
    except Killed as error:
        fail(f"{prog}: a training failed, {error}")
    except KeyboardInterrupt:
        print(f"{prog}: interrupted; to continue, run the same command again", file=sys.stderr)
        sys.exit(130)


def _show(results: dict[str, Any], out: Path) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(str(out), *results)
    for metric in next(iter(results.values())):
        values = [columns.get(metric) for columns in results.values()]
        form = "{:g}" if metric in ("epoch", "step") else "{:.4f}"
        table.add_row(metric, *("" if value is None else form.format(value) for value in values))
    Console().print(table)
