"""``python -m experiments``: list, run, train, evaluate, report."""

import os
import sys
from collections.abc import Sequence
from difflib import get_close_matches
from importlib import import_module
from pathlib import Path
from textwrap import fill
from typing import NoReturn

COMMANDS = {
    "list": "the experiments: question and minutes",
    "run": "run NAME [--preset quick|paper] [--engine processes|ray] [--out DIR] [options]; `run all`",
    "train": "train CELL [options]: a network of the paper or a small recipe",
    "evaluate": "evaluate CHECKPOINT: accuracy and calibration",
    "report": "report: tables and figures of the documentation; report DIR: DIR/index.html",
}
USAGE = "usage: python -m experiments COMMAND [...]\n\n" + "\n".join(
    fill(text, 98, initial_indent=f"  {name:<10}", subsequent_indent=" " * 12) for name, text in COMMANDS.items()
)
BUSY = 0.5
"""Load per core from which on the machine is called busy."""


def main(argv: Sequence[str]) -> int:
    """The command; returns its exit code."""
    if not argv or argv[0] in ("help", "-h", "--help"):
        print(USAGE)
        return 0
    command, *rest = argv
    if command not in COMMANDS:
        refuse(f"{command!r} is no command;{near(command, list(COMMANDS))} `python -m experiments help` lists them")
    try:
        if command in ("train", "evaluate"):
            return int(getattr(import_module("experiments.cells.commands"), command)(rest) or 0)
        return {"list": list_experiments, "run": run, "report": report}[command](rest)
    except ValueError as error:
        refuse(str(error))
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

    for name in names():
        experiment = load(name)
        print(f"{name:<15}{experiment.minutes:>5g} min  " + fill(experiment.question, 74, subsequent_indent=" " * 26))
    print("\n`python -m experiments run NAME --help` shows the options of an experiment.")
    return 0


def run(argv: Sequence[str]) -> int:
    from experiments.harness.experiment import load, names

    if not argv or argv[0] in ("help", "-h", "--help"):
        print(f"usage: python -m experiments run {COMMANDS['run'][4:]}")
        return list_experiments(())
    name, *options = argv
    options = ["--help" if word == "help" else word for word in options]
    every = names()
    if name != "all" and name not in every:
        refuse(f"run: {name!r} is no experiment;{near(name, every)} `python -m experiments list` lists them")
    codes = []
    for one in every if name == "all" else [name]:
        try:
            codes.append(run_one(load(one), options, shared_only=name == "all"))
        except ValueError as error:
            if name != "all":
                raise
            print(f"experiments run {one}: {error}", file=sys.stderr)
            codes.append(2)
    return max(codes, default=0)


def run_one(experiment, options: Sequence[str], *, shared_only: bool = False) -> int:
    """Does the missing runs of one experiment and prints its tables."""
    from experiments.harness.options import parse
    from experiments.harness.report import evidence
    from experiments.harness.runs import cores, make

    prog, presets = f"python -m experiments run {experiment.name}", experiment.presets
    if shared_only:
        where, _ = parse(options, prog="python -m experiments run all", description="Every experiment.")
        chosen = presets[where.preset]
    else:
        where, chosen = parse(options, prog=prog, description=experiment.question, presets=presets)
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0
    if load > BUSY * cores():
        print(
            f"This machine is busy (load {load:.1f}, {cores()} cores): runs take longer, and times are not comparable."
        )
    failures = make(experiment, chosen, where)
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

    if any(word in ("help", "-h", "--help") for word in argv):
        print(f"usage: python -m experiments report [DIR]\n\n{COMMANDS['report']}")
        return 0
    if len(argv) > 1 or (argv and argv[0].startswith("-")):
        refuse(f"report: got {' '.join(argv)!r}, need one folder or nothing")
    if argv:
        if not Path(argv[0]).is_dir():
            refuse(f"report: {argv[0]} is no folder")
        path, problems = write_page(Path(argv[0]))
        print(path)
    else:
        written, problems = update_docs()
        print("\n".join(map(str, written)))
    for line in problems:
        print(f"warning: {line}", file=sys.stderr)
    return 1 if problems else 0


def near(name: str, known: list[str]) -> str:
    found = get_close_matches(name.lower(), known, n=1, cutoff=0.5)
    return f" did you mean {found[0]!r}?" if found else ""


def refuse(line: str) -> NoReturn:
    """Prints what is wrong with the input; exit code 2."""
    print(f"experiments: {line}", file=sys.stderr)
    raise SystemExit(2)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
