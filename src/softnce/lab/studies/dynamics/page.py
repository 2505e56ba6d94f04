"""The section of the dynamics study."""

from collections.abc import Sequence
from itertools import cycle

from softnce.lab.experiment.results import Row
from softnce.lab.report.charts import Figure, Line, Panel, Points
from softnce.lab.report.page import Section, Table
from softnce.lab.report.style import SERIES
from softnce.lab.studies.dynamics.findings import read

ORDER = 25
MARKERS = ("^", "D", "o", "v", "s")


def section(rows: Sequence[Row]) -> Section:
    found = read(rows)
    looks = list(zip(found.by_epsilon.items(), cycle(SERIES), cycle(MARKERS), strict=False))

    def panel(title: str, x: str, y: str) -> Panel:
        is_count = x == "negatives"
        lines = [
            Line(f"ε = {epsilon:g}", result[x], result[y], colour=colour, marker=marker if is_count else "")
            for (epsilon, result), colour, marker in looks
        ]
        return Panel(title, x if is_count else "cosine of sample and label", "response", lines, log_x=is_count)

    responses = Figure(
        "responses",
        f"""How strongly a label moves a unit embedding, |∂ℓ/∂s| √(1 − cos²)/τ, with K = {found.classes} classes as
            candidates and τ = {found.temperature:g}; for the wrong label, the true one is at cosine 0.5. Weak
            targets have no effect. Neither has a true label at −1, where it is needed most.""",
        [panel("the true label", "cosine", "true"), panel("a wrong label", "cosine", "wrong")],
    )
    numbers = Figure(
        "negatives",
        """Response of a hard positive (true and wrong label at cosine 0) and of a hard negative (wrong label at 0, true
            one at 0.5) against the number of negatives that hold that wrong label.""",
        [panel("hard positive", "negatives", "hard_positive"), panel("hard negative", "negatives", "hard_negative")],
    )
    epsilon = next((e for e in found.by_epsilon if e > 0), 0.0)
    cases = found.by_epsilon[epsilon]["cases"]
    table = Table(
        ["case", "score of i₀", "score of i", "score of i_l"],
        [[name, *(f"{value:+.3f}" for value in values)] for name, values in cases.items()],
        f"""Factor of each score in the exponent of candidate l, in the attraction term of class i, at ε =
            {epsilon:g}: positive repels, negative attracts. The supplement's four cases of label smoothing; the third
            has two parts.""",
    )
    true, other = ([r[f"penalty_{name}"] for r in found.by_epsilon.values()] for name in ("true", "other"))
    epsilons = list(found.by_epsilon)
    points = [
        Points("true class", epsilons, true, colour=SERIES[0], marker="^", size=8.0),
        Points("any other", epsilons, other, colour=SERIES[1], size=8.0),
    ]
    penalty = Figure(
        "penalty",
        f"""Weight α(1 − α) of a class's score in the penalty term, K = {found.classes}: by the corrected formula of
            the supplement, the true class is penalised more.""",
        [Panel("", "smoothing ε", "α(1 − α)", points)],
        panel_size=(4.8, 3.0),
    )
    summary = """Soft targets scale the effect of each class on a sample: the gradient with respect to a class's score
        is the candidates' share of that class minus the target's."""
    return Section("Attraction and repulsion", summary, [responses, numbers, table, penalty])
