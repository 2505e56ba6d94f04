"""Each loss minus NLL, at every learning rate and at the best rate of each."""

from collections.abc import Sequence
from dataclasses import dataclass

from softnce.lab.data.features import NAMES
from softnce.lab.experiment.choices import Choice
from softnce.lab.experiment.claims import Finding
from softnce.lab.experiment.comparison import Value, difference, largest, mean, nats
from softnce.lab.experiment.results import Row
from softnce.lab.experiment.statistics import Estimate, signed
from softnce.lab.experiment.text import counted
from softnce.lab.studies.noisy_steps.run import CE, EXPECTED, LOSSES

NLL, HELD_OUT = nats("nll"), nats("nll", "held_out")


@dataclass(frozen=True)
class Found:
    """The trainings by loss and learning rate, in order of rates."""

    data: str
    rows: dict[str, dict[float, list[Row]]]

    @property
    def rates(self) -> list[float]:
        return sorted(set.intersection(*(set(of_loss) for of_loss in self.rows.values())))

    @property
    def is_complete(self) -> bool:
        return set(self.rows) == set(LOSSES) and len(self.rates) > 1

    @property
    def seeds(self) -> int:
        return min(len(rows) for of_loss in self.rows.values() for rows in of_loss.values())

    def best_rate(self, loss: str) -> float:
        """The rate of the lowest held-out NLL."""
        return min(self.rates, key=lambda lr: mean(self.rows[loss][lr], HELD_OUT).mean)

    def at_rate(self, loss: str, lr: float, value: Value = NLL) -> Estimate:
        """A loss minus NLL at one learning rate, paired by seed."""
        return difference(self.rows[loss][lr], self.rows[CE][lr], value)

    def at_best(self, loss: str, value: Value = NLL) -> Estimate:
        """A loss minus NLL, each at its best rate, paired by seed."""
        ours, theirs = (self.rows[name][self.best_rate(name)] for name in (loss, CE))
        return difference(ours, theirs, value)


def find(rows: Sequence[Row]) -> Found:
    group = largest(rows, "data", "batch", "epochs")
    found: dict[str, dict[float, list[Row]]] = {}
    for loss in LOSSES:
        of_loss = [row for row in group if row.config["loss"] == loss]
        if of_loss:
            rates = sorted({float(row.config["lr"]) for row in of_loss})
            found[loss] = {lr: [row for row in of_loss if row.config["lr"] == lr] for lr in rates}
    return Found(group[0].config["data"], found)


def claims(rows: Sequence[Row]) -> dict[str, Finding]:
    found = find(rows)
    if not found.is_complete or found.data == "digits":
        return {}
    largest_rate = max(found.rates)
    text = f"""test NLL of expected InfoNCE minus that of training with NLL:
        {signed(found.at_best(EXPECTED), 3)} nats at the best rate of each,
        {signed(found.at_rate(EXPECTED, largest_rate), 3)} at {largest_rate / found.best_rate(CE):.1f} times NLL's best
        rate; InfoNCE at the best rate {signed(found.at_best("info-nce"), 3)}"""
    on = f"{NAMES[found.data]} features, linear model, SGD, {counted(found.seeds, 'seed')}"
    return {"noisy-steps": Finding(text, on, "beyond")}


def choices(rows: Sequence[Row]) -> list[Choice]:
    found = find(rows)
    if not found.is_complete or found.data == "digits":
        return []
    most = max(found.rates)
    text = f"""{NAMES[found.data]} features, linear model, test NLL minus that of `NLL`, in nats:
        {signed(found.at_best(EXPECTED), 3)} at the best rates, {signed(found.at_rate(EXPECTED, most), 3)} at
        {most / found.best_rate(CE):.1f} times NLL's"""
    use = "`ExpectedInfoNCE` or `InfoNCE`"
    return [Choice("labels", "plain SGD with large steps, features not centred", use, text)]
