"""``python -m experiments``: list, run, train, evaluate, report."""

import os
import sys
from collections.abc import Collection, Sequence
from importlib import import_module
from pathlib import Path
from textwrap import fill

COMMANDS = {
    "list": "the experiments: question and minutes",
    "run": "run NAME... [--preset quick|paper] [--engine processes|ray] [--out DIR] [options]; `run all`",
    "train": "train CELL [options]: a network of the paper or a small recipe",
    "evaluate": "evaluate CHECKPOINT: accuracy and calibration",
    "report": "report: tables and figures of the documentation; report DIR: DIR/index.html",
}
EXAMPLES = """
examples:
  python -m experiments run digits                    three seeds of six losses, in seconds
  python -m experiments run digits --help             the options of an experiment
  python -m experiments run density --preset paper    as in the documentation
"""
USAGE = "usage: python -m experiments COMMAND [...]\n\n" + "\n".join(
    fill(text, 98, initial_indent=f"  {name:<10}", subsequent_indent=" " * 12) for name, text in COMMANDS.items()
)
HELP = ("help", "-h", "--help")
BUSY = 0.5
"""Load per core from which on the machine is called busy."""


def main(argv: Sequence[str]) -> int:
    """The command; returns its exit code, or exits with 2 where the input is wrong."""
    command, *rest = argv or ["help"]
    try:
        if command in HELP:
            print(USAGE + "\n" + EXAMPLES)
            return 0
        if command not in COMMANDS:
            raise ValueError(unknown(command, "command", COMMANDS, "help"))
        if command in ("train", "evaluate"):
            return int(getattr(import_module("experiments.cells.commands"), command)(rest))
        if rest and rest[0] in HELP:
            print(f"usage: python -m experiments {command}\n\n{COMMANDS[command]}\n{EXAMPLES}")
            return 0
        return {"list": list_experiments, "run": run, "report": report}[command](rest)
    except (ValueError, ModuleNotFoundError) as error:
        absent = isinstance(error, ModuleNotFoundError)
        line = f'no module {error.name}: pip install ".[vision,text,graph]"' if absent else str(error)
        print(f"experiments: {line}", file=sys.stderr)
        raise SystemExit(2) from None
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:  # nobody reads on, as after `| head`
        sys.stdout = None  # type: ignore[assignment]
        return 0
    except OSError as error:
        place = f"{error.filename}: " if error.filename else ""
        print(f"experiments {command}: {place}{error.strerror or error}", file=sys.stderr)
        return 1


def list_experiments(argv: Sequence[str]) -> int:
    from experiments.harness.experiment import load, names

    if argv:
        raise ValueError(f"list: got {' '.join(argv)!r}, need nothing more")
    experiments = sorted(map(load, names()), key=lambda experiment: experiment.minutes)
    for title, least, most in (("minutes", 0, 5), ("up to an hour", 5, 60), ("longer", 60, float("inf"))):
        print(f"{title}, on two cores:")
        for one in experiments:
            if least <= one.minutes < most:
                print(f"  {one.name:<15}{one.minutes:>5g} min  " + fill(one.question, 72, subsequent_indent=" " * 28))
    print("\n`python -m experiments run NAME --help` shows the options of an experiment.")
    return 0


def run(argv: Sequence[str]) -> int:
    """Does the missing runs of some experiments or of all, and prints their tables."""
    from experiments.harness.experiment import load, names
    from experiments.harness.runs import cores

    every = names()
    first_option = next((place for place, word in enumerate(argv) if word.startswith("-") or word in HELP), len(argv))
    chosen, options = argv[:first_option], ["--help" if word == "help" else word for word in argv[first_option:]]
    for name in chosen:
        if name not in (*every, "all"):
            raise ValueError(unknown(name, "experiment", every, "list"))
    if not chosen:
        raise ValueError("run: which experiment? `python -m experiments list` lists them")
    wanted = every if "all" in chosen else chosen
    busy = os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0
    if busy > BUSY * cores() and not set(HELP) & set(options):
        print(f"This machine is busy (load {busy:.1f}, {cores()} cores): times are longer and not comparable.")
    codes = []
    for name in wanted:
        try:
            codes.append(run_one(load(name), options, alone=len(wanted) == 1))
        except ValueError as error:
            if len(wanted) == 1:
                raise
            print(f"experiments run {name}: {error}", file=sys.stderr)
            codes.append(2)
    return max(codes)


def run_one(experiment, options: Sequence[str], *, alone: bool) -> int:
    """Not ``alone``: the options are those that all experiments have."""
    from experiments.harness.options import parse
    from experiments.harness.report import evidence
    from experiments.harness.runs import make

    prog, presets = f"python -m experiments run {experiment.name if alone else 'NAME...'}", experiment.presets
    where, chosen = parse(options, prog=prog, description=experiment.question, presets=presets if alone else None)
    failures = make(experiment, chosen or presets[where.preset], where)
    found = evidence(Path(where.out), [experiment.name])
    for table in found.tables.values():
        table.show()
    for line in found.problems:
        print(f"warning: {line}", file=sys.stderr)
    for line in failures:
        print(f"{experiment.name}: a run failed, {line}", file=sys.stderr)
    print(f"rows: {Path(where.out) / experiment.name}.jsonl; a page: python -m experiments report {where.out}")
    return 1 if failures else 0


def report(argv: Sequence[str]) -> int:
    from experiments.harness.report import update_docs, write_page

    if len(argv) > 1 or (argv and argv[0].startswith("-")):
        raise ValueError(f"report: got {' '.join(argv)!r}, need one folder or nothing")
    if argv and not Path(argv[0]).is_dir():
        raise ValueError(f"report: {argv[0]} is no folder")
    written, problems = write_page(Path(argv[0])) if argv else update_docs()
    print("\n".join(map(str, written)))
    for line in problems:
        print(f"warning: {line}", file=sys.stderr)
    return 1 if problems else 0


def unknown(name: str, kind: str, known: Collection[str], command: str) -> str:
    from experiments.harness.options import near

    return f"{name!r} is no {kind}{near(name, known)}; `python -m experiments {command}` lists them"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
