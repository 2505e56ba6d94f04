"""``softnce report``: the page and the figures of a directory of results."""

import traceback
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.progress import track

from softnce.cli import refuse
from softnce.lab import studies
from softnce.lab.atomic import why, write_text
from softnce.lab.experiment import choices, claims
from softnce.lab.experiment.results import Row, damage_on_stderr
from softnce.lab.experiment.study import DEFAULT_OUT, Study
from softnce.lab.experiment.text import counted
from softnce.lab.report import charts, drawing, page
from softnce.lab.sweeps.table import as_csv, left_out, read_runs, table

HELP = f"""\
usage: softnce report [DIRECTORY]

With the results of studies in DIRECTORY, the --out of `softnce study` (default: {DEFAULT_OUT}):

Build DIRECTORY/index.html from the results of studies in DIRECTORY: the paper's claims with what was found about each,
and one section per study. The page works offline and needs no other files. Its download links lead to
DIRECTORY/figures, which holds each figure as PNG, SVG and PDF and its data as CSV. The table of claims is also written
to DIRECTORY/claims.md, which loss to use when to DIRECTORY/which-loss.md.

A study whose results cannot be shown is left out and named; the exit status is then 2.

With runs of `softnce train` in DIRECTORY, at any depth, such as runs/:

Print a table of them, one row per setting, seeds and folds averaged. A run that repeats setting, seed and fold of
another is not counted; such runs are named below the table, with the number of unfinished ones. Write it to
DIRECTORY/runs.md, and every setting, metric and fact of each run to DIRECTORY/runs.csv."""


def main(argv: list[str]) -> None:
    """The command ``softnce report``."""
    if any(word in ("-h", "--help") for word in argv):
        print(HELP)
        return
    if len(argv) > 1 or (argv and argv[0].startswith("-")):
        refuse(f"softnce report: got {' '.join(argv)!r}, need one directory")
    directory = Path(argv[0] if argv else DEFAULT_OUT)
    try:
        if _holds_runs(directory):
            _tabulate(directory)
            return
        with damage_on_stderr():
            path = build_report(directory)
    except ValueError as error:
        refuse(f"softnce report: {error}")
    except BrokenPipeError:  # nobody reads on, which is not about a file
        raise
    except OSError as error:
        refuse(f"softnce report: cannot write {error.filename or directory}: {why(error)}")
    print(f"{path}")


def _holds_runs(directory: Path) -> bool:
    """Whether there are runs of ``softnce train``, and no results of studies."""
    of_studies = any((directory / f"{name}.jsonl").is_file() for name in studies.names())
    return not of_studies and next(directory.rglob("recipe.yaml"), None) is not None


def _tabulate(directory: Path) -> None:
    """Print and write the table of the runs in ``directory``."""
    runs = read_runs(directory)
    if not runs:
        raise ValueError(f"no run in {directory} is finished; a run writes results.json at its end")
    shown = table(runs)
    notes = "".join(f"{line}\n" for line in left_out(directory, runs))
    write_text(directory / "runs.md", f"{shown.markdown()}\n" + (f"\n{notes}" if notes else ""))
    write_text(directory / "runs.csv", as_csv(runs))
    Console().print(shown.rich())
    print(f"{notes}{directory / 'runs.md'}\n{directory / 'runs.csv'}")


def build_report(directory: Path) -> Path:
    """Write the page and the figures of every study with results in ``directory``; returns the page's path.

    A study whose results cannot be shown is left out of the page, and named in a ValueError after the page is written.
    """
    if not directory.is_dir():
        raise ValueError(f"{directory} is not a directory; create it with: softnce study density --out {directory}")
    parts: list[page.Part] = []
    advised: dict[str, list[choices.Choice]] = {}
    failures = []
    every = studies.in_order()
    found = {study: directory / f"{study.name}.jsonl" for study in every}
    there = [study for study, path in found.items() if path.is_file() and path.stat().st_size]
    console = Console(stderr=True)
    for study in track(there, "drawing", console=console, transient=True, disable=not console.is_terminal):
        rows = study.results(directory).rows()
        if not rows:
            failures.append(f"{study.name}: {study.name}.jsonl has no readable run")
            continue
        try:
            parts.append(_part(study, rows, directory / "figures"))
            advised[study.name] = study.advise(rows)
        except OSError:
            raise
        except Exception as error:  # whatever a study stumbles over: a few runs of many, another version's, edited ones
            failures.append(f"{study.name} ({counted(len(rows), 'run')} in {study.name}.jsonl): {_described(error)}")
    path = directory / "index.html"
    if parts:
        papers = [claim for study in every for claim in study.claims]
        page.build(parts, papers, path)
        if findings := {key: finding for part in parts for key, finding in part.findings.items()}:
            (directory / "claims.md").write_text(claims.as_markdown(papers, findings), encoding="utf-8")
        if any(advised.values()):
            (directory / "which-loss.md").write_text(choices.as_markdown(advised), encoding="utf-8")
    elif not failures:
        raise ValueError(f"no results in {directory}; create some with: softnce study density --out {directory}")
    if failures:
        written = f"{path} was written without" if parts else "no page written:"
        raise ValueError(f"{written} {'; '.join(failures)}")
    return path


def _part(study: Study, rows: Sequence[Row], figures: Path) -> page.Part:
    """What a study adds to the page; its figures are written."""
    section, findings = study.page.section(rows), study.judge(rows)
    for block in section.blocks:
        if isinstance(block, charts.Figure):
            drawing.save(block, figures, prefix=f"{study.name}-")
    versions = sorted({f"softnce {row.versions['softnce']}, torch {row.versions['torch']}" for row in rows})
    return page.Part(
        study=study.name,
        section=section,
        findings=findings,
        runs=len(rows),
        minutes=sum(row.seconds for row in rows) / 60,
        latest=max(row.time for row in rows)[:10],
        versions="; ".join(versions),
    )


def _described(error: Exception) -> str:
    """The error and the line that raised it."""
    place = traceback.extract_tb(error.__traceback__)[-1]
    kind = "" if isinstance(error, ValueError) else f"{type(error).__name__}: "
    return f"{kind}{error} ({Path(place.filename).name}, line {place.lineno})"
