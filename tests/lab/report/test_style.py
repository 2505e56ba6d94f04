from softnce.lab.report.style import LOSSES, MARKERS


def test_losses_differ_in_colour_and_marker():
    assert len({look.colour for look in LOSSES.values()}) == len(LOSSES) == 6
    assert len({look.marker for look in LOSSES.values()}) == 6
    assert all(look.marker in MARKERS for look in LOSSES.values())
