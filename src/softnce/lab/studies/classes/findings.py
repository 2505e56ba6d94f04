"""What each method costs and learns, by the number of classes."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from softnce.lab.experiment.choices import Choice
from softnce.lab.experiment.claims import Finding, Verdict
from softnce.lab.experiment.comparison import alike
from softnce.lab.experiment.results import Row
from softnce.lab.experiment.statistics import Estimate, estimate, signed
from softnce.lab.experiment.text import counted
from softnce.lab.studies.classes.training import METHODS, Method

EXPECTED: Method = "expected-info-nce"
RIVALS: tuple[Method, ...] = ("info-nce", "info-nce-more", "sampled-softmax")
OLD: tuple[Method, ...] = (*RIVALS, "softmax")
SHORT = {
    "info-nce": "soft target InfoNCE",
    "info-nce-more": "soft target InfoNCE with more candidates",
    "sampled-softmax": "sampled softmax",
}
VARIED = ("method", "classes", "lr", "seed", "steps", "seconds", "others")
"""What differs between the runs of one protocol."""


@dataclass(frozen=True)
class Trained:
    """The seeds of one training, at least one, and means over them.

    Attributes:
        accuracy, best_possible: at the end, and of the best guess; in per cent.
        steps, seconds, milliseconds: made, of all of them, and of one.
        peak, spare: gigabytes of memory, and the part that is neither parameters nor state of the optimiser.
        course: seconds, and the accuracy after them in per cent, at the steps that all seeds reached.
    """

    rows: Sequence[Row]
    accuracy: float
    best_possible: float
    steps: float
    seconds: float
    milliseconds: float
    peak: float
    spare: float
    course: tuple[list[float], list[float]]

    @property
    def config(self) -> dict[str, Any]:
        """Configuration of the first seed."""
        return self.rows[0].config

    @property
    def key(self) -> tuple[int, Method]:
        """Number of classes and method."""
        return self.config["classes"], self.config["method"]

    def accuracy_at(self, processor: float) -> float:
        """Accuracy after that many seconds of the processor, between two measurements on the line, in per cent."""
        found = []
        for row in self.rows:
            time, accuracy = row.result["course"]["cpu_seconds"], row.result["course"]["accuracy"]
            after = next((i for i, t in enumerate(time) if t >= processor), len(time) - 1)
            before = max(after - 1, 0)
            width = time[after] - time[before]
            share = min((processor - time[before]) / width, 1.0) if width else 1.0
            found.append(accuracy[before] + share * (accuracy[after] - accuracy[before]))
        return 100 * fmean(found)

    def accuracy_by(self, seconds: float) -> float:
        """The best accuracy that was measured within that time, in per cent; 0 if there was none."""
        courses = [row.result["course"] for row in self.rows]
        within = [[a for a, s in zip(c["accuracy"], c["seconds"], strict=True) if s <= seconds] for c in courses]
        return 100 * fmean(max(found, default=0.0) for found in within)

    @property
    def processor(self) -> float:
        """Seconds of the processor."""
        return fmean(row.result["course"]["cpu_seconds"][-1] for row in self.rows)


def means(rows: Sequence[Row]) -> Trained:
    """The means over the seeds of one training."""

    def of(value: Callable[[dict[str, Any]], float]) -> float:
        return fmean(value(row.result) for row in rows)

    courses = [row.result["course"] for row in rows]
    reached = range(min(len(course["step"]) for course in courses))
    return Trained(
        rows,
        accuracy=of(lambda r: 100 * r["accuracy"]),
        best_possible=of(lambda r: 100 * r["best_possible"]),
        steps=of(lambda r: r["steps"]),
        seconds=of(lambda r: r["course"]["seconds"][-1]),
        milliseconds=of(lambda r: 1e3 * r["course"]["seconds"][-1] / r["steps"]),
        peak=of(lambda r: r["peak_bytes"] / 1e9),
        spare=of(lambda r: (r["peak_bytes"] - r["held_bytes"]) / 1e9),
        course=(
            [fmean(course["seconds"][i] for course in courses) for i in reached],
            [100 * fmean(course["accuracy"][i] for course in courses) for i in reached],
        ),
    )


Found = dict[tuple[int, Method], Trained]


def even(rows: Sequence[Row]) -> list[Row]:
    """The runs of fixed rates with equally frequent classes; all where there are none."""
    fixed = [row for row in rows if "part" not in row.config]
    return [row for row in fixed if not row.config.get("zipf")] or list(rows)


def skewed(rows: Sequence[Row]) -> Found:
    """The runs of fixed rates with skewed frequencies, by classes and method."""
    found = [row for row in rows if row.config.get("zipf") and "part" not in row.config]
    return find(found) if found else {}


def find(rows: Sequence[Row]) -> Found:
    """By classes and method, the longest runs of the commonest protocol at the learning rate that ended best.

    At every number of classes those of the seeds that all methods have.
    """
    protocols = alike(rows, *(name for name in rows[0].config if name not in VARIED))
    largest = max(protocols, key=lambda group: (len(group), max(row.config["classes"] for row in group)))
    chosen = [row for group in alike(largest, "classes") for row in _shared_seeds(group)]
    found: Found = {}
    for trained in map(means, alike(chosen, "classes", "method", "lr", "steps", "seconds", "others")):
        rival = found.get(trained.key, trained)
        found[trained.key] = max(rival, trained, key=lambda one: (one.config["steps"], one.accuracy))
    return {key: found[key] for key in sorted(found, key=lambda key: (key[0], METHODS.index(key[1])))}


def _shared_seeds(rows: Sequence[Row]) -> list[Row]:
    of_method = [{row.config["seed"] for row in group} for group in alike(rows, "method")]
    shared = set.intersection(*of_method)
    return [row for row in rows if not shared or row.config["seed"] in shared]


@dataclass(frozen=True)
class Beside:
    """Expected InfoNCE beside the other shortcuts at one number of classes, of the last seed that all of them have.

    Attributes:
        rivals: the others, by method.
        ours: expected InfoNCE by the number of candidates drawn beside the batch.
    """

    classes: int
    rivals: dict[Method, Trained]
    ours: dict[int, Trained]

    def gap(self, method: Method) -> float:
        """Points of accuracy of expected InfoNCE over a method after equal seconds of the processor.

        Of the numbers of candidates the one whose run costs most nearly the same, at the end of the shorter of both.
        """
        other = self.rivals[method]
        ours = min(self.ours.values(), key=lambda trained: abs(trained.processor - other.processor))
        time = min(ours.processor, other.processor)
        return ours.accuracy_at(time) - other.accuracy_at(time)

    @property
    def best(self) -> Trained:
        return max(self.ours.values(), key=lambda trained: trained.accuracy)

    @property
    def chance(self) -> float:
        """Two standard errors of the difference of two accuracies on the test samples, in points."""
        ours = self.best
        p = ours.accuracy / 100
        return 200 * (2 * p * (1 - p) / (ours.config["tests"] * len(ours.rows))) ** 0.5


def beside(rows: Sequence[Row]) -> list[Beside]:
    found = []
    for group in alike(even(rows), "classes"):
        seeds = [
            {row.config["seed"] for row in group if row.config["method"] == method} for method in (*RIVALS, EXPECTED)
        ]
        shared = set.intersection(*seeds)
        if shared:
            last = [row for row in group if row.config["seed"] == max(shared)]
            others = find([row for row in last if row.config["method"] in RIVALS])
            ours = alike([row for row in last if row.config["method"] == EXPECTED], "others")
            numbers = {rows[0].config["others"]: find(rows)[group[0].config["classes"], EXPECTED] for rows in ours}
            rivals = {method: trained for (_, method), trained in others.items()}
            found.append(Beside(group[0].config["classes"], rivals, dict(sorted(numbers.items()))))
    return sorted(found, key=lambda one: one.classes)


@dataclass(frozen=True)
class Searched:
    """The methods at one number of classes, each with the table's optimiser and rate that its search found.

    Attributes:
        classes, zipf: the problem; zipf is the exponent of the classes' frequencies, 0 for equal ones.
        rows: by method, of the seeds that had no part in the search.
        trials: accuracy of the search in per cent, by method, optimiser and rate; none where it was made elsewhere.
    """

    classes: int
    zipf: float
    rows: dict[Method, list[Row]]
    trials: dict[tuple[Method, str, float], float]

    @property
    def title(self) -> str:
        return f"K = {self.classes:,}" + (f", frequencies 1/rank^{self.zipf:g}" if self.zipf else "")

    @property
    def chance(self) -> float:
        """Two standard errors of the difference of two accuracies on the test samples of all seeds, in points."""
        rows = self.rows[EXPECTED]
        p = fmean(row.result["accuracy"] for row in rows)
        return 200 * (2 * p * (1 - p) / (rows[0].config["tests"] * len(rows))) ** 0.5

    def lead(self, method: Method) -> Estimate | None:
        """Points of expected InfoNCE over a method, seed by seed, after the processor time of the shorter run."""
        of_method, ours = (
            {row.config["seed"]: means([row]) for row in self.rows.get(m, [])} for m in (method, EXPECTED)
        )
        gaps = []
        for seed in sorted(of_method.keys() & ours.keys()):
            time = min(of_method[seed].processor, ours[seed].processor)
            gaps.append(ours[seed].accuracy_at(time) - of_method[seed].accuracy_at(time))
        return estimate(gaps) if gaps else None

    @property
    def is_ahead(self) -> bool:
        """Of soft target InfoNCE beyond chance, and not behind sampled softmax beyond it."""
        over = {method: self.lead(method) for method in RIVALS}
        soft = [lead for method, lead in over.items() if lead and method != "sampled-softmax"]
        sampled = over["sampled-softmax"]
        return (
            bool(soft and sampled)
            and all(lead.mean > self.chance for lead in soft)
            and sampled is not None
            and sampled.mean > -self.chance
        )


def searched(rows: Sequence[Row]) -> list[Searched]:
    """By number of classes, equal frequencies first; those in which expected InfoNCE was trained."""
    found = []
    for group in alike([row for row in rows if row.config.get("part") == "searched"], "classes", "zipf", "steps"):
        config = group[0].config
        further: dict[Method, list[Row]] = {}
        for method in METHODS:
            of_method = [row for row in group if row.config["method"] == method and row.config["seed"] > 0]
            if of_method:
                further[method] = of_method
        trials = {
            (row.config["method"], row.config.get("table_optimiser", "sparse-adam"), row.config["lr"]): 100
            * row.result["accuracy"]
            for row in group
            if row.config["seed"] == 0
        }
        if EXPECTED in further:
            found.append(Searched(config["classes"], config.get("zipf", 0.0), further, trials))
    return sorted(found, key=lambda one: (one.zipf, one.classes))


def _expected(rows: Sequence[Row]) -> Finding | None:
    """By the largest K, with the search where there was one, else at fixed rates."""
    words, on, is_ahead = {}, {}, {}
    for one in beside(rows):
        gap, soft = one.gap("sampled-softmax"), min(one.gap("info-nce"), one.gap("info-nce-more"))
        words[one.classes] = _beside_others(one.classes, one.best, f"{soft:+.1f}", f"{gap:+.1f}")
        is_ahead[one.classes], on[one.classes] = soft > 0 and gap > -one.chance, "one seed at a fixed rate"
    for size in searched(rows):
        soft_leads = [lead for method in ("info-nce", "info-nce-more") if (lead := size.lead(method))]
        sampled = size.lead("sampled-softmax")
        if soft_leads and sampled and not size.zipf:
            soft_lead = min(soft_leads, key=lambda lead: lead.mean)
            ours = means(size.rows[EXPECTED])
            words[size.classes] = _beside_others(size.classes, ours, signed(soft_lead, 1), signed(sampled, 1))
            is_ahead[size.classes] = size.is_ahead
            on[size.classes] = f"{counted(len(ours.rows), 'seed')} with optimiser and rate of the table searched"
    if not words:
        return None
    large = [classes for classes in sorted(words) if classes >= 100_000]
    verdict: Verdict = "undecided" if not large else "not reproduced"
    if large and all(is_ahead[classes] for classes in large):
        verdict = "beyond"
    shown = large or sorted(words)
    where = ", ".join(dict.fromkeys(on[classes] for classes in shown))
    return Finding("; ".join(words[classes] for classes in shown), f"generated problem, {where}", verdict)


def _beside_others(classes: int, ours: Trained, soft: str, sampled: str) -> str:
    return f"""K = {classes:,}: {ours.accuracy:.1f} %, after equal processor time {soft} points from soft target
        InfoNCE and {sampled} from sampled softmax"""


def claims(rows: Sequence[Row]) -> dict[str, Finding]:
    answers = {}
    found = find(even(rows))
    complete = [classes for classes, _ in found if {(classes, method) for method in OLD} <= found.keys()]
    if expected := _expected(rows):
        answers["expected-classes"] = expected
    if not complete:
        return answers
    largest = max(complete)
    ours, sampled = found[largest, "info-nce-more"], found[largest, "sampled-softmax"]
    full = found[largest, "softmax"].accuracy_by(ours.seconds)
    text = f"""{ours.accuracy:.1f} % at the end of training, after {ours.seconds:.0f} s; by then full softmax
        cross-entropy, on its way, has {full:.1f} %, sampled softmax {sampled.accuracy_by(ours.seconds):.1f} %
        ({sampled.accuracy:.1f} % at its end after {sampled.seconds:.0f} s)"""
    verdict: Verdict = "undecided" if largest < 100_000 else "beyond" if ours.accuracy > full else "not reproduced"
    return {"many-classes": Finding(text, f"generated problem, {largest:,} classes", verdict), **answers}


def choices(rows: Sequence[Row]) -> list[Choice]:
    """At the smallest K that is large, with the search and at fixed rates."""
    words = []
    for size in [one for one in searched(rows) if one.classes >= 100_000 and not one.zipf][:1]:
        leads = {method: lead for method in RIVALS if (lead := size.lead(method))}
        closest = min(leads, key=lambda method: leads[method].mean, default=None)
        if closest:
            accuracy = means(size.rows[EXPECTED]).accuracy
            words.append(f"""K = {size.classes:,}, rates searched: {accuracy:.1f} %, after equal processor time
                {signed(leads[closest], 1)} points over the next best, {SHORT[closest]}""")
    for fixed in [one for one in beside(rows) if one.classes >= 100_000][:1]:
        sampled = fixed.rivals["sampled-softmax"]
        words.append(f"""K = {fixed.classes:,}, longer and at a fixed rate: {fixed.best.accuracy:.1f} % after
            {fixed.best.processor:.0f} s of processor time, sampled softmax {sampled.accuracy:.1f} % after
            {sampled.processor:.0f} s""")
    if not words:
        return []
    text = f"generated problem, {'; '.join(words)}"
    return [Choice("any", "10,000 classes and more", "`ExpectedInfoNCE` with a `LabelEmbeddingHead`", text)]
