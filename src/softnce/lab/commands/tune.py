"""``softnce tune``: search for good values of a recipe's options."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Literal

from softnce.cli import fail, refuse
from softnce.lab import recipes
from softnce.lab.atomic import write_text
from softnce.lab.commands.train import ended_in_one_line, read_recipe
from softnce.lab.configuration import field_types, from_args, option
from softnce.lab.recipes.recipe import AnyRecipe
from softnce.lab.sweeps.grid import Training, pairs, short_names
from softnce.lab.sweeps.tune import Metric, Search, Trial, search_space

HELP = """usage: softnce tune RECIPE --any.field LOW..HIGH [--any.field a,b,c ...] [--trials N] [--metric M] [--out DIR]

Search for good values of a recipe's options by Optuna (its TPE sampler), one training per GPU or core:

  softnce tune laptop/digits --data.holdout 0.2 --optimiser.base_lr 1e-3..1e-1 --targets.smoothing 0..0.3 --trials 30

A range is searched on a logarithmic scale if it is positive and spans a factor of ten. Values are judged at the best
epoch on the validation data, so these must not be the test data: set --data.holdout for images, --data.protocol honest
for graphs. All other options are those of `softnce train`.

  --trials N        trials in all (default: 20); the same command continues a search, a larger N extends it
  --metric NAME     top1 (highest), or nll, ece, brier (lowest) (default: top1)
  --out DIR         folder of the search (default: runs/RECIPE-tune); processes that share it share the trials
  --engine ray      on a Ray cluster; --address as for `softnce train`

Writes best.yaml, the recipe of the best trial, to --out. Needs softnce[tune].
"""


@dataclass(frozen=True)
class Options:
    """How to search."""

    trials: int = option(20, "trials in all", least=1)
    metric: Metric = option("top1", "what is judged")
    out: str = option("", "folder of the search")
    engine: Literal["processes", "ray"] = option("processes", "processes of this machine, or a Ray cluster")
    address: str = option("", "of the Ray cluster")


def main(argv: list[str]) -> None:
    if not argv or {"-h", "--help"} & set(argv):
        print(HELP, end="")
        return
    if argv[0].startswith("-"):
        refuse("softnce tune: the first argument must be a RECIPE: `softnce recipes` lists them")
    name, rest = argv[0], argv[1:]
    try:
        recipe = recipes.load(name)
        own, types = {item.name for item in fields(Options)}, field_types(type(recipe))
        if unknown := _words(rest, lambda key: key not in own and key not in types):
            read_recipe(name, recipe, unknown, prog="softnce tune")  # names what was meant
        options = from_args(Options, _words(rest, lambda key: key in own), prog="softnce tune", description="")
        single, space = search_space(recipe, _words(rest, lambda key: key not in own))
    except ValueError as error:
        refuse(f"softnce tune: {error}")

    def build(values: Mapping[str, str]) -> AnyRecipe:
        chosen = [word for key, value in values.items() for word in (f"--{key}", value)]
        return read_recipe(name, recipe, [*single, *chosen], prog="softnce tune")[0]

    first = {key: searched.ends[0] for key, searched in space.items()}
    lowest = build(first)
    for key, searched in space.items():  # a value that is refused is refused now, not when a trial draws it
        for value in searched.ends:
            build(first | {key: value})
    if not lowest.data.keeps_test_apart:
        refuse("softnce tune: the validation data are the test data: set --data.holdout, or --data.protocol honest")
    out = Path(options.out or f"runs/{name.replace('/', '-').removesuffix('.yaml').removesuffix('.yml')}-tune")

    from rich.console import Console

    from softnce.lab.experiment.table import Table
    from softnce.lab.sweeps.many import engine

    with ended_in_one_line("softnce tune"):
        search = Search(out, space, options.metric, build)
        execute = engine(options.engine, options.address, [Training(lowest, out)])
        for trial in search.run(options.trials, execute):
            print(f"trial {trial.number}: {_said(trial)}", flush=True)
    if not (ranked := search.best_first()):
        fail("softnce tune: no trial has ended well")
    rows = [[str(t.number), *t.values.values(), f"{t.metric:.4f}"] for t in ranked[:10]]
    title = f"{len(ranked)} trials in {out}, best first"
    Console().print(Table(title, ["trial", *short_names(list(space)), options.metric], rows).rich())
    write_text(out / "best.yaml", recipes.to_yaml(search.recipe(ranked[0])))
    print(f"{out / 'best.yaml'}")


def _words(options: list[str], wanted: Callable[[str], bool]) -> list[str]:
    """The options whose name is wanted."""
    return [f"--{key}" if value is None else f"--{key}={value}" for key, value in pairs(options) if wanted(key)]


def _said(trial: Trial) -> str:
    values = ", ".join(f"{key} {value}" for key, value in trial.values.items())
    return f"{values}: {'failed' if trial.metric is None else f'{trial.metric:.4f}'}"
