"""Looks of losses, and that no study gives a loss's colour to anything else."""

from pathlib import Path

import pytest

from softnce.lab import studies
from softnce.lab.report.charts import Figure
from softnce.lab.report.style import AVERAGED, LOSSES, MARKERS, OTHER, SERIES, SHADES

PAPER = Path(__file__).parents[3] / "results" / "paper"


def test_losses_differ_in_colour_and_marker():
    assert len({look.colour for look in LOSSES.values()}) == len(LOSSES) == 6
    assert len({look.marker for look in LOSSES.values()}) == 6
    assert all(look.marker in MARKERS for look in LOSSES.values())
    assert not {look.colour for look in LOSSES.values()} & {*AVERAGED, *SERIES, *SHADES[1:], OTHER}


@pytest.mark.slow
@pytest.mark.parametrize("study", sorted(path.stem for path in PAPER.glob("*.jsonl")))
def test_a_losss_colour_means_that_loss(study, tmp_path):
    (tmp_path / f"{study}.jsonl").write_bytes((PAPER / f"{study}.jsonl").read_bytes())  # reading makes a lock file
    found = studies.load(study)
    of_colour = {look.colour: name for name, look in LOSSES.items()}
    figures = [b for b in found.page.section(found.results(tmp_path).rows()).blocks if isinstance(b, Figure)]
    for figure in figures:
        for mark in (mark for panel in figure.panels for mark in panel.marks):
            colour = getattr(mark, "colour", None)
            if isinstance(colour, str) and colour in of_colour:
                loss = of_colour[colour]
                is_named = LOSSES[loss].name in mark.name or mark.loss == loss
                assert is_named or (study, loss) == ("noise-samples", "soft-target-info-nce"), (figure.name, mark.name)
