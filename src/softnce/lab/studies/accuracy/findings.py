"""How the losses compare, for each of the two models."""

from collections.abc import Sequence
from dataclasses import dataclass

from softnce.lab.data.features import NAMES
from softnce.lab.experiment.choices import Choice
from softnce.lab.experiment.claims import Finding, ahead, on_par, on_par_would_take, together
from softnce.lab.experiment.comparison import Value, for_other_samples, largest
from softnce.lab.experiment.paper import TABLES as PAPER
from softnce.lab.experiment.results import Row
from softnce.lab.experiment.settings import TOP1, TOP5, Setting, chosen, tried
from softnce.lab.experiment.statistics import Estimate, signed
from softnce.lab.experiment.text import counted
from softnce.lab.losses import TITLES

OURS, CE, DRAWN, EXPECTED = "soft-target-info-nce", "soft-ce", "soft-dist-info-nce", "expected-info-nce"


@dataclass(frozen=True)
class Part:
    """The trainings of one model.

    Attributes:
        title: the model and its data.
        on: data and number of seeds.
        losses: by name, at their chosen rates.
        tried: held-out top-1 in per cent, by loss and learning rate.
        decides: whether the paper's claims can be judged on these data.
    """

    title: str
    on: str
    losses: dict[str, Setting]
    tried: dict[str, dict[float, float]]
    decides: bool

    @property
    def is_complete(self) -> bool:
        """Whether the search is finished for each of the paper's losses."""
        return self.losses.keys() >= PAPER.keys()

    def leads(self, value: Value = TOP1) -> dict[str, Estimate]:
        """Soft target InfoNCE minus every other loss, paired by seed."""
        return self.leads_of(OURS, value)

    def leads_of(self, loss: str, value: Value = TOP1) -> dict[str, Estimate]:
        """A loss minus every other, paired by seed; none where it was not trained."""
        ours = self.losses.get(loss)
        return {name: ours.minus(other, value) for name, other in self.losses.items() if name != loss} if ours else {}

    def for_other_images(self, loss: str, other: str) -> Estimate | None:
        """A loss minus another in points of top-1, with an interval over seeds and test images.

        Of the seeds that both have with the images they had right; None where fewer than two are.
        """
        found = for_other_samples(self.losses[loss].rows, self.losses[other].rows)
        return found if found and found.count > 1 else None


def parts(rows: Sequence[Row]) -> list[Part]:
    """Of each model the trainings of the most common sizes."""
    heads = largest([row for row in rows if "data" in row.config], "data", "head", "batch", "epochs")
    networks = largest([row for row in rows if "recipe" in row.config], "recipe", "batch", "epochs", "held_out")
    found = []
    for group in (heads, networks):
        if not group:
            continue
        config = group[0].config
        if group is networks:
            title, on = "a small network end to end", f"CIFAR-100, {config['epochs']} epochs from scratch"
        else:
            title, on = f"a head on {NAMES[config['data']]} features", f"{NAMES[config['data']]} features"
        losses = {setting.loss: setting for setting in chosen(group)}
        counts = sorted({len(setting) for setting in losses.values()}) or [0]
        seeds = " or ".join([*map(str, counts[:-1]), counted(counts[-1], "seed")])
        found.append(Part(title, f"{on}, {seeds}", losses, tried(group), config.get("data") != "digits"))
    return found


def claims(rows: Sequence[Row]) -> dict[str, Finding]:
    """What both models say."""
    answers = [
        _claims(part)
        for part in parts(rows)
        if part.decides and part.is_complete and min(map(len, part.losses.values())) > 1
    ]
    keys = answers[0] if answers else ()
    return {key: together([answer[key] for answer in answers if key in answer]) for key in keys}


def _claims(part: Part) -> dict[str, Finding]:
    leads = part.leads()
    top1 = {name: part.losses[name].mean(TOP1).mean for name in PAPER}
    top5 = {name: part.losses[name].mean(TOP5).mean for name in PAPER}
    next_lowest = min(mean for name, mean in top1.items() if name != DRAWN)
    first = max(top5, key=top5.__getitem__)
    ours, ce = part.losses[OURS].lr, part.losses[CE].lr
    rates = sorted({lr for name in PAPER for lr in part.tried[name]})
    is_inside = rates[0] < min(ours, ce) and max(ours, ce) < rates[-1]

    def beats(other: str) -> Finding:
        return Finding(f"{signed(leads[other])} points", part.on, ahead(leads[other]))

    images = part.for_other_images(OURS, CE)
    over_images = f", for other test images too [{images.low:+.2f}, {images.high:+.2f}]" if images else ""
    found = {
        "accuracy-soft-ce": Finding(
            f"{signed(leads[CE])} points{over_images}{on_par_would_take(leads[CE])}", part.on, on_par(leads[CE])
        ),
        "accuracy-nll": beats("nll"),
        "accuracy-info-nce": beats("info-nce"),
        "accuracy-soft-distribution": beats(DRAWN),
        "accuracy-worst": Finding(
            f"{top1[DRAWN]:.2f}, the next lowest {next_lowest:.2f}",
            part.on,
            "reproduced" if top1[DRAWN] < next_lowest else "not reproduced",
        ),
        "accuracy-top-5": Finding(
            f"{top5[DRAWN]:.2f}, the highest is {TITLES[first]} with {top5[first]:.2f}",
            part.on,
            "reproduced" if first == DRAWN else "not reproduced",
        ),
        "accuracy-rates": Finding(
            f"{ce:g} and {ours:g}, of {rates[0]:g} to {rates[-1]:g}"
            + (" (one more rate of each loss would decide)" if ours == ce and not is_inside else ""),
            part.on,
            "not reproduced" if ours != ce else "reproduced" if is_inside else "undecided",
        ),
    }
    if expected := part.leads_of(EXPECTED):
        text = f"""{signed(expected[CE])} points against soft target cross-entropy, {signed(expected[DRAWN])} against
            labels drawn from soft targets, {signed(expected[OURS])} against soft target InfoNCE"""
        found["accuracy-expected"] = Finding(text, part.on, "beyond")
    return found


def choices(rows: Sequence[Row]) -> list[Choice]:
    found = []
    for part in parts(rows)[:1]:
        if part.decides and {"nll", "info-nce", CE} <= part.losses.keys():
            nll, info, ce = (part.losses[name].mean(TOP1).spread(2) for name in ("nll", "info-nce", CE))
            text = f"{part.on}: top-1 {nll} and {info}; smoothed and mixed targets with cross-entropy {ce}"
            found.append(Choice("labels", "all logits fit", "`NLL` or `InfoNCE`", text))
    return found
