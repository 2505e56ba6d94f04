"""Generated tables and figures of the documentation, and the plain page of reproduced results."""

import html
import re
import traceback
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from experiments.harness.claims import MEANING, Finding, checked
from experiments.harness.experiment import Experiment, load, names
from experiments.harness.figures import Figure
from experiments.harness.tables import ClaimList, Table

TOP = Path(__file__).parents[2]
EVIDENCE = TOP / "results" / "paper"
PAGES = TOP / "docs" / "results"
TABLES = PAGES / "tables"
FIGURES = TOP / "docs" / "figures"
LINKED = re.compile(r"^\[(\**)([^]*]+)\**\]\((?:[\w./]*/)?tables/([\w-]+)\.md\)$", re.MULTILINE)
"""A line of a page in whose place the table is shown: bold (not folded) or not, title, name."""


@dataclass(frozen=True)
class Evidence:
    """The tables, figures and findings of the experiments of a folder, by name or claim key.

    ``problems`` has a line per row or experiment that cannot be shown.
    """

    experiments: dict[str, Experiment] = field(default_factory=dict)
    findings: dict[str, Finding] = field(default_factory=dict)
    tables: dict[str, Table | ClaimList] = field(default_factory=dict)
    figures: dict[str, Figure] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)


def evidence(directory: Path, only: Sequence[str] = ()) -> Evidence:
    """Everything that the rows of a folder give; an experiment that fails is named and left out."""
    found = Evidence()
    for name in only or names():
        if not (directory / f"{name}.jsonl").is_file():
            continue
        experiment = load(name)
        results = experiment.results(directory)
        rows = results.rows()
        found.problems.extend(results.problems)
        if not rows:
            continue
        try:
            findings = checked(name, experiment.claims, experiment.findings(rows))
            tables: list[Table | ClaimList] = [*experiment.tables(rows)]
            figures = list(experiment.figures(rows))
        except Exception as error:  # too few rows of many, another version's, edited ones
            place = traceback.extract_tb(error.__traceback__)[-1]
            where = f"{Path(place.filename).name}, line {place.lineno}"
            found.problems.append(f"{results.path}: {len(rows)} rows, but {type(error).__name__}: {error} ({where})")
            continue
        if findings:
            tables.append(ClaimList(f"{name}-claims", experiment.claims, findings))
        found.experiments[name] = experiment
        found.findings.update(findings)
        found.tables.update({table.name: table for table in tables})
        found.figures.update({figure.name: figure for figure in figures})
    if len(found.experiments) > 1 or not only:
        body = [
            [claim.text, f"**{found.findings[claim.key].verdict}**", f"[{name}](../{name}.md)"]
            for name, experiment in found.experiments.items()
            for claim in experiment.claims
            if claim.key in found.findings
        ]
        found.tables["claims"] = Table("claims", ("claim", "verdict", "experiment"), body)
        verdicts = [row[1].strip("*") for row in body]
        counted = [[verdict, str(verdicts.count(verdict)), meaning] for verdict, meaning in MEANING.items()]
        found.tables["verdicts"] = Table("verdicts", ("verdict", "claims", "meaning"), counted)
    return found


def linked(found: Evidence) -> dict[Path, str]:
    """The files of all tables that pages link to, and their computed text."""
    computed: dict[str, str] = {}
    tables = found.tables | {"experiments": index()}
    for page in [TOP / "experiments" / "README.md", *sorted(TOP.glob("docs/**/*.md"))]:
        for _, title, name in LINKED.findall(page.read_text(encoding="utf-8")):
            if name in tables:
                computed[name] = f"# {title}\n\n{tables[name].markdown()}"
    return {TABLES / f"{name}.md": text for name, text in computed.items()}


def index() -> Table:
    """All experiments: question, command, minutes."""
    command = "`python -m experiments run {} --preset paper`"
    rows = [[e.name, e.question, command.format(e.name), f"{e.minutes:g}"] for e in map(load, names())]
    return Table("experiments", ("experiment", "question", "command", "minutes"), rows)


def update_docs(only: Sequence[str] = ()) -> tuple[list[Path], list[str]]:
    """Writes tables and figures from ``results/paper`` into the documentation; returns files written and problems."""
    found = evidence(EVIDENCE, only)
    written = []
    TABLES.mkdir(exist_ok=True)
    for path, text in linked(found).items():
        path.write_text(text, encoding="utf-8")
        written.append(path)
    for figure in found.figures.values():
        figure.save(FIGURES)
        written.append(FIGURES / f"{figure.name}.svg")
    return written, found.problems


def write_page(directory: Path) -> tuple[list[Path], list[str]]:
    """Writes ``directory/index.html``: the written pages of its experiments with its own tables and figures."""
    import markdown

    found = evidence(directory)
    if not found.experiments:
        raise ValueError(f"{directory}: no usable results; `python -m experiments run density` writes some"
                         + "".join(f"; {line}" for line in found.problems))  # fmt: skip
    for figure in found.figures.values():
        figure.save(directory / "figures")
    shown = {name: table.markdown() for name, table in found.tables.items()}

    def table(link: re.Match[str]) -> str:
        return f"**{link[2]}**\n\n{shown[link[3]]}" if link[3] in shown else ""

    parts = ["# Reproduced results\n", "## Claims\n", shown["claims"]]
    for name in found.experiments:
        page = PAGES / f"{name}.md"
        parts.append(f'<a id="{name}"></a>\n')
        if page.is_file():
            parts.append(re.sub(r"(?m)^#", "##", LINKED.sub(table, page.read_text(encoding="utf-8"))))
        else:
            parts += [f"## {name}\n", *(text for own, text in shown.items() if own.startswith(name))]
    text = "\n".join(parts).replace("](../figures/", "](figures/")
    text = re.sub(r"\]\((?:\.\./)?([\w-]+)\.md\)", r"](#\1)", text)
    body = markdown.markdown(text, extensions=["tables", "fenced_code", "attr_list"])
    dark = r'<picture><source media="(prefers-color-scheme: dark)" srcset="\2-dark.svg">\1</picture>'
    body = re.sub(r'(<img [^>]*src="(\S+)\.svg"[^>]*>)', dark, body)
    path = directory / "index.html"
    style = html.escape((Path(__file__).parent / "page.css").read_text(encoding="utf-8"), quote=False)
    path.write_text(f'<!doctype html>\n<html lang="en">\n<meta charset="utf-8">\n<title>softnce: results</title>\n'
                    f"<style>\n{style}</style>\n<body>\n{body}\n</body>\n</html>\n", encoding="utf-8")  # fmt: skip
    return [path], found.problems
