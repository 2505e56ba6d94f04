"""What was measured of one loss at one size."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from softnce.lab.bench.cases import CASES, REFERENCE, Case, Inputs, Size, Step
from softnce.lab.bench.timing import Clock, Load, Spread, interleaved, ratios


@dataclass(frozen=True)
class Measurement:
    """Seconds per step in each round, bytes at its peak, and the ratio to its family's reference at the same size.

    Without times where the step was not tried, because it ``needs`` more bytes than allowed.
    """

    case: Case
    size: Size
    times: tuple[float, ...] = ()
    bytes: int = 0
    ratio: Spread | None = None
    needs: float | None = None

    @property
    def seconds(self) -> Spread:
        return Spread.of(self.times)

    def over(self, other: "Measurement") -> float:
        """How many times as long as the other, which was timed in the same rounds."""
        return Spread.of(ratios(self.times, other.times)).median


Plan = Sequence[tuple[Case, Size]]


def measure(
    plan: Plan,
    *,
    rounds: int,
    seconds: float,
    max_bytes: float,
    clock: Clock,
    peak: Callable[[str, Size], int],
    load: Load,
    on_progress: Callable[[], None] = lambda: None,
) -> list[Measurement]:
    """All cases and sizes of the ``plan`` in one set of interleaved rounds, ``load`` meanwhile; then the peak of each.

    ``on_progress`` is called ``rounds`` + 1 times for each entry of the plan.
    """
    inputs: dict[Size, Inputs] = {}
    steps: dict[tuple[str, Size], Step] = {}
    found: list[Measurement] = []
    for case, size in plan:
        needs = case.bytes(size)
        if needs > max_bytes:
            found.append(Measurement(case, size, needs=needs))
            for _ in range(rounds + 1):
                on_progress()
        else:
            steps[case.name, size] = case.step(inputs.setdefault(size, Inputs(size)))
    with load:
        times = interleaved(steps, rounds, seconds, on_progress, clock)
    inputs.clear()
    keys = list(steps)
    steps.clear()  # their inputs are many gigabytes, which the other process may need
    for name, size in keys:
        case, taken = CASES[name], times[name, size]
        its = times.get((REFERENCE[case.family], size))
        ratio = None if its is None else Spread.of(ratios(taken, its))
        found.append(Measurement(case, size, tuple(taken), peak(name, size), ratio))
        on_progress()
    order = {(case.name, size): place for place, (case, size) in enumerate(plan)}
    return sorted(found, key=lambda m: order[m.case.name, m.size])
