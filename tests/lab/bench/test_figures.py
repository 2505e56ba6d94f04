from softnce.lab.bench.figures import LOOKS, STEPS
from softnce.lab.report.style import LOSSES, SHADES


def test_a_losss_colour_means_that_loss():
    meaning = {
        LOSSES["nll"].colour: "F.cross_entropy, labels",
        LOSSES["soft-ce"].colour: "F.cross_entropy, probabilities",
        **dict.fromkeys(SHADES, "softnce"),
    }
    for name, (colour, _) in (LOOKS | STEPS).items():
        if colour in {look.colour for look in LOSSES.values()} | set(SHADES):
            assert meaning[colour] in name
