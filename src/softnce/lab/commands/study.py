"""``softnce study``: run one of the experiments, or all of them."""

import sys

from softnce.lab.configuration import from_args
from softnce.lab.experiment.results import damage_on_stderr
from softnce.lab.experiment.study import DEFAULT_OUT, Study, StudyConfig
from softnce.lab.studies import in_order, load, names


def main(argv: list[str]) -> None:
    """The command ``softnce study``."""
    if not argv or argv[0] in ("list", "-h", "--help"):
        print("usage: softnce study NAME [--preset quick|paper] [--seeds N] [--out DIR] [--option value …]\n\nstudies:")
        print("\n".join(f"  {name:<14}{load(name).description.splitlines()[0]}" for name in names()))
        print("\nsoftnce study NAME --help explains a study and its options; softnce study all does every one of them.")
        return
    name, *options = argv
    if name == "all":
        _run_all(options)
    elif name in names():
        print(f"softnce report {_run_one(load(name), options)} makes the page")
    else:
        print(f"softnce study: unknown study {name!r}; the studies are {', '.join(names())}", file=sys.stderr)
        raise SystemExit(2)


def _run_one(study: Study, options: list[str]) -> str:
    """Run a study as the command line says; returns where its results are."""
    prog, run = f"softnce study {study.name}", study.run
    config = from_args(run.Config, options, prog=prog, description=study.description, presets=run.PRESETS)
    try:
        with damage_on_stderr():
            study.make(config)
    except ValueError as error:
        print(f"{prog}: {error}", file=sys.stderr)
        raise SystemExit(2) from None
    return config.out


def _run_all(options: list[str]) -> None:
    """Every study in the order of the page, with the options they share; one that cannot run does not stop the rest."""
    missing, out = [], DEFAULT_OUT
    for study in in_order():
        config = from_args(
            StudyConfig, options, prog="softnce study all", description="All studies, one after another, to one page.",
            presets=dict.fromkeys(study.run.PRESETS, StudyConfig()),
        )  # fmt: skip
        out = config.out
        try:
            _run_one(study, options)
        except SystemExit as stop:
            if stop.code != 2:
                raise
            missing.append(study.name)
    print(f"softnce report {out} makes the page")
    if missing:
        print(f"softnce study all: could not run {', '.join(missing)}; see above", file=sys.stderr)
        raise SystemExit(2)
