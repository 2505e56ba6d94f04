"""``softnce study``: run one of the experiments, or all of them."""

import sys

from softnce.lab.configuration import from_args
from softnce.lab.experiment.results import damage_on_stderr
from softnce.lab.experiment.study import DEFAULT_OUT, Study, StudyConfig
from softnce.lab.studies import first_line, load, names


def main(argv: list[str]) -> None:
    """The command ``softnce study``."""
    if not argv or argv[0] in ("list", "-h", "--help"):
        print("usage: softnce study NAME [--preset quick|paper] [--seeds N] [--out DIR] [--option value …]\n\nstudies:")
        print("\n".join(f"  {name:<14}{first_line(name)}" for name in names()))
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
    prog, module = f"softnce study {study.name}", study.module
    config = from_args(module.Config, options, prog=prog, description=module.__doc__ or "", presets=module.PRESETS)
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
    for study in sorted(map(load, names()), key=lambda study: study.module.ORDER):
        config = from_args(
            StudyConfig, options, prog="softnce study all", description="All studies, one after another, to one page.",
            presets=dict.fromkeys(study.module.PRESETS, StudyConfig()),
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
