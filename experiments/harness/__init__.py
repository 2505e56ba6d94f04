"""Everything that experiments share: options, runs, rows, statistics, verdicts, tables, figures, report.

An experiment is one file, `experiments/<name>.py`, that reads from question to figure and ends in
`EXPERIMENT = Experiment(…)`, whose fields :class:`Experiment` documents. Nothing has to be registered: a file (or
folder's `__init__.py`) with that line is found. This package exports the names that most experiments use; the module
named like a bullet (`claims.py` for verdicts) has the others.

- **Options and runs** are frozen dataclasses. Fields of options are declared with `option(default, help, least=…)`;
  a field added to a run after rows were committed with `later(default, help)`. A run's id hashes experiment, version
  and `to_mapping(run)`: field names and values of committed rows are frozen, classes and modules are not.
- **Rows**: `Row.config`, `Row.result`. Reading is robust; do not check again. Raise `Diverged` for NaN.
- **Statistics**: `estimate`, `mean(rows, value)`, `difference(a, b, value)` (paired by seed), `over(rows, x, value)` (a
  curve), `alike`, `largest`; an `Estimate` prints as `spread(2)` in tables, as `signed(2)` in findings.
- **Search**: `trials`, `tuned`, `at_best_rate` and `chosen`: learning rates chosen on the held-out part; `climb`: until
  the best rate lies inside those tried.
- **Claims** are texts in `experiments/claims.yaml`, by experiment and key, in the order of the page.
- **Verdicts** come from `verdict(estimate, …, above=0)` only. On par: `verdict(gap, **ON_PAR)`.
  Ours, not the paper's: `new=True`. `needed(gap, above=0)` adds how many seeds would decide; `decided(gap, on=…,
  above=0)` is the whole finding. `together(findings)` joins data sets. A number that no seed changes is
  `exactly(value)`.
- **Tables**: `Table("digits-scores", header, rows, title=…)`; the first word of the name is the experiment's.
  A page of docs/results shows it where a line is `[**Scores**](tables/digits-scores.md)`, folded if the title is not
  bold; the claims are `tables/digits-claims.md`. `python -m experiments report` writes these files.
- **Figures**: `Figure("digits-scores", draw, panels=3)`; draw with `curve`, `dots`, `level`, `heat` and `label`, or
  with matplotlib on the axes. A page shows `![…](../figures/digits-scores.svg)`, and on the site the dark
  variant where a reader prefers dark.
"""

from experiments.harness.claims import Finding, decided
from experiments.harness.experiment import Experiment
from experiments.harness.figures import LOOKS, OTHER, SERIES, Figure, curve, dots, label, level
from experiments.harness.options import later, option, to_mapping
from experiments.harness.rows import Row
from experiments.harness.runs import Diverged
from experiments.harness.search import Setting
from experiments.harness.statistics import Estimate, largest, mean, nats, percent
from experiments.harness.tables import Table

__all__ = [
    "LOOKS", "OTHER", "SERIES", "Diverged", "Estimate", "Experiment", "Figure", "Finding", "Row", "Setting", "Table",
    "curve", "decided", "dots", "label", "largest", "later", "level", "mean", "nats", "option", "percent", "to_mapping",
]  # fmt: skip
