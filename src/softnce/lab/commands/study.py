"""``softnce study``: run one experiment, or all."""

from softnce.cli import Refused, did_you_mean, fail, refuse
from softnce.lab.configuration import from_args
from softnce.lab.diverged import Diverged
from softnce.lab.experiment.parallel import Killed
from softnce.lab.experiment.results import damage_on_stderr
from softnce.lab.experiment.study import DEFAULT_OUT, Study, StudyConfig
from softnce.lab.studies import in_order, load, names


def main(argv: list[str]) -> None:
    """The command ``softnce study``."""
    if not argv or argv[0] in ("list", "-h", "--help"):
        print("usage: softnce study NAME [--preset quick|paper] [--seeds N] [--out DIR] [--option value …]\n\nstudies:")
        print("\n".join(f"  {name:<14}{load(name).description.splitlines()[0]}" for name in names()))
        print("\nsoftnce study NAME --help explains a study and its options; softnce study all runs all studies.")
        return
    name, *options = argv
    if name == "all":
        _run_all(options)
    elif name in names():
        print(f"to build the page: softnce report {_run_one(load(name), options)}")
    else:
        near = did_you_mean(name, [*names(), "all", "list"])
        refuse(f"softnce study: unknown study {name!r};{near} `softnce study list` lists the studies")


def _run_one(study: Study, options: list[str]) -> str:
    """Run a study with the options of the command line; returns the folder of its results."""
    prog, run = f"softnce study {study.name}", study.run
    config = from_args(run.Config, options, prog=prog, description=study.description, presets=run.PRESETS)
    try:
        with damage_on_stderr():
            study.make(config)
    except ValueError as error:
        refuse(f"{prog}: {error}")
    except Killed as error:
        fail(f"{prog}: a run failed, {error}; finished runs are saved")
    except Diverged as error:
        fail(f"{prog}: a run diverged, {error}; finished runs are saved; try smaller learning rates")
    return config.out


def _run_all(options: list[str]) -> None:
    """Every study in the order of the page, with the options they share; if one cannot run, the others still do."""
    missing, out = [], DEFAULT_OUT
    for study in in_order():
        config = from_args(
            StudyConfig, options, prog="softnce study all", description="All studies, one after another, to one page.",
            presets=dict.fromkeys(study.run.PRESETS, StudyConfig()),
        )  # fmt: skip
        out = config.out
        try:
            _run_one(study, options)
        except Refused:
            missing.append(study.name)
    print(f"to build the page: softnce report {out}")
    if missing:
        refuse(f"softnce study all: could not run {', '.join(missing)}; see above")
