"""Figures and the page: ``softnce report DIRECTORY`` writes ``DIRECTORY/index.html`` from the results in it.

style       one colour, marker and name for every loss of the project
charts      figures said once, drawn by matplotlib and by plotly
page        sections, tables and figures as one self-contained HTML file
"""

import sys
from pathlib import Path

DEFAULT_OUT = "results/reproduce"


def main(argv: list[str]) -> None:
    """The command ``softnce report``."""
    if any(word in ("-h", "--help") for word in argv):
        print(
            "usage: softnce report [DIRECTORY]\n\n"
            "Build DIRECTORY/index.html, one self-contained page, from the results that studies left there,\n"
            "and save every figure of it as PNG and PDF in DIRECTORY/figures.\n\n"
            f"  DIRECTORY   what was given to softnce study as --out (default: {DEFAULT_OUT})"
        )
        return
    if len(argv) > 1 or (argv and argv[0].startswith("-")):
        _exit(f"got {' '.join(argv)!r}, need one directory")
    directory = Path(argv[0] if argv else DEFAULT_OUT)
    from softnce.lab.results import damage_on_stderr

    try:
        with damage_on_stderr():
            path = build_report(directory)
    except ValueError as error:
        _exit(str(error))
    print(f"{path}")


def build_report(directory: Path) -> Path:
    """Write the page and the figures of every study with results in ``directory``; returns the page's path."""
    from softnce.lab import studies
    from softnce.lab.report import charts, page

    sections = []
    for name in studies.names():
        if not (directory / f"{name}.jsonl").is_file():
            continue
        study = studies.load(name)
        rows = study.results(directory).rows()
        if not rows:
            continue
        section = study.module.section(rows)
        for block in section.blocks:
            if isinstance(block, charts.Figure):
                charts.save(block, directory / "figures", prefix=f"{name}-")
        versions = sorted({f"softnce {row.versions['softnce']}, torch {row.versions['torch']}" for row in rows})
        origin = page.Origin(
            study=name,
            runs=len(rows),
            minutes=sum(row.seconds for row in rows) / 60,
            latest=max(row.time for row in rows)[:10],
            versions="; ".join(versions),
        )
        sections.append((study.module.ORDER, section, origin))
    if not sections:
        raise ValueError(f"no results in {directory}; make some with: softnce study density --out {directory}")
    sections.sort(key=lambda entry: (entry[0], entry[2].study))
    path = directory / "index.html"
    page.build([(section, origin) for _, section, origin in sections], path)
    return path


def _exit(message: str) -> None:
    print(f"softnce report: {message}", file=sys.stderr)
    raise SystemExit(2)
