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


def luminance(colour: str) -> float:
    """Relative luminance, as of WCAG 2."""
    values = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [v / 12.92 if v <= 0.04045 else ((v + 0.055) / 1.055) ** 2.4 for v in values]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.parametrize("colour", [*(look.colour for look in LOSSES.values()), *AVERAGED, *SERIES, *SHADES, OTHER])
def test_colours_can_be_seen_on_a_light_and_on_a_dark_page(colour):
    light = 1.05 / (luminance(colour) + 0.05)
    dark = (luminance(colour) + 0.05) / (luminance("#14171b") + 0.05)
    assert light > 2.2  # Okabe and Ito's yellow has 2.3
    assert dark > 3


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
