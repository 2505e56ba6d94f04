"""What each loss gains from a teacher, by what the student sees of its outputs."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from softnce.lab.data.features import NAMES
from softnce.lab.experiment.choices import Choice
from softnce.lab.experiment.claims import Finding, Verdict, on_par, on_par_would_take
from softnce.lab.experiment.comparison import largest, percent
from softnce.lab.experiment.results import Row
from softnce.lab.experiment.settings import TOP1, Setting, by
from softnce.lab.experiment.statistics import Estimate, signed
from softnce.lab.experiment.text import counted
from softnce.lab.studies.distillation.run import CE, EXPECTED, OURS, SMOOTHING, students
from softnce.lab.studies.distillation.training import HARD

PLAIN, DRAWN, BATCH_ALONE = "nll", "soft-dist-info-nce", "expected-info-nce, m = 0"
HELD_OUT = percent("top1", "held_out")
Lesson = tuple[int | None, str, float]
"""k (None: labels, 0: all classes), remainder and temperature."""
LABELS: Lesson = (None, "renormalise", 1.0)
ALL: Lesson = (0, "spread", 1.0)


@dataclass(frozen=True)
class Lessons:
    """The students by method and by what they learned from; and their teacher."""

    teacher: Row | None
    chosen: dict[tuple[str, Lesson], Setting]

    @property
    def config(self) -> dict[str, Any]:
        return next(iter(self.chosen.values())).config

    @property
    def seeds(self) -> int:
        return min(map(len, self.chosen.values()))

    @property
    def hottest(self) -> float:
        """The highest temperature of the teacher."""
        return max(lesson[2] for _, lesson in self.chosen)

    def has(self, *methods: str, lesson: Lesson) -> bool:
        return all((method, lesson) in self.chosen for method in methods)

    @property
    def complete(self) -> bool:
        """Whether labels and the teacher's whole output have all that is compared."""
        return self.has(CE, OURS, DRAWN, lesson=ALL) and self.has(CE, OURS, DRAWN, PLAIN, lesson=LABELS)

    def lessons(self, method: str) -> list[Lesson]:
        """All but the labels."""
        return [lesson for other, lesson in self.chosen if other == method and lesson != LABELS]

    def best(self, method: str) -> Lesson:
        """The lesson that does best on the held-out part."""
        return max(self.lessons(method), key=lambda lesson: self.chosen[method, lesson].mean(HELD_OUT).mean)

    def change(self, method: str, lesson: Lesson, other: Lesson) -> Estimate:
        """Top-1 from a lesson minus that from another."""
        return self.chosen[method, lesson].minus(self.chosen[method, other], TOP1)

    def gain(self, method: str, lesson: Lesson, over: str | None = None) -> Estimate:
        """Top-1 minus that of the method (or ``over``) on labels."""
        return self.chosen[method, lesson].minus(self.chosen[over or method, LABELS], TOP1)

    @property
    def shared(self) -> Estimate | None:
        """Points that soft target InfoNCE gains at k = 1 when all rows share the mean mass of the rest.

        At the highest temperature, over each row with its own mass; the class of a row is the same in both.
        """
        own, one = (1, "spread", self.hottest), (1, "shared", self.hottest)
        return self.change(OURS, one, own) if self.has(OURS, lesson=own) and self.has(OURS, lesson=one) else None

    @property
    def kept(self) -> dict[int, float]:
        """By k, the share of soft target cross-entropy's gain from the whole output, in per cent; the rest spread."""
        whole = self.gain(CE, ALL).mean
        ks = sorted(k for k, remainder, t in self.lessons(CE) if k and remainder == "spread" and t == 1)
        return {k: 100 * self.gain(CE, (k, "spread", 1.0)).mean / whole for k in ks} if whole > 0 else {}


def find(rows: Sequence[Row]) -> Lessons | None:
    """The largest group of students with one teacher; images before digits."""
    pupils = students(rows)
    of_images = [row for row in pupils if row.config["teacher"]["data"] != "digits"]
    group = largest(of_images or pupils, "teacher", "features", "share", "batch", "epochs")
    chosen = by(lambda c: (method_of(c), (c["k"], c["remainder"], c["temperature"])), group)
    teachers = [row for row in rows if group and row.config == group[0].config["teacher"]]
    return Lessons(teachers[0] if teachers else None, chosen) if chosen else None


def method_of(config: dict[str, Any]) -> str:
    """The method, with m where it is not the default."""
    m = config.get("noise_count")
    return config["method"] + ("" if m is None else f", m = {m:g}")


def lesson_name(method: str, lesson: Lesson) -> str:
    k, remainder, temperature = lesson
    if k is None:
        return "labels" if method in HARD else f"labels, smoothed by {SMOOTHING:g}"
    kept = "all classes" if k == 0 else "the first class" if k == 1 else f"{k} classes"
    words = {"shared": "one background for all rows"}.get(remainder, remainder)
    rest = "" if k == 0 or (k == 1 and method in HARD) else f", {words}"
    return f"{kept}{rest}" + ("" if temperature == 1 else f", temperature {temperature:g}")


def claims(rows: Sequence[Row]) -> dict[str, Finding]:
    found = find(rows)
    if found is None or not found.has(CE, OURS, lesson=ALL) or not found.has(CE, OURS, PLAIN, lesson=LABELS):
        return {}
    ours, ce, data = found.best(OURS), found.best(CE), found.config["teacher"]["data"]
    gain, same, best = (signed(found.gain(*which, over=PLAIN)) for which in ((OURS, ours), (CE, ours), (CE, ce)))
    text = f"""{gain} points over NLL on labels, from {lesson_name(OURS, ours)}; soft target cross-entropy {same}, and
        at best {best}, from {lesson_name(CE, ce)}"""
    on = f"{NAMES[data]} features, {counted(found.seeds, 'seed')}"
    answers = {"distillation": Finding(text, on, "beyond" if data != "digits" and found.seeds >= 3 else "undecided")}
    if found.has(EXPECTED, lesson=ALL):
        answers["expected-teacher"] = _expected(found)
    return answers


def _expected(found: Lessons) -> Finding:
    """Expected InfoNCE minus soft target cross-entropy, from the teacher's whole output at temperature 1."""
    ours, soft = (found.chosen[method, ALL].minus(found.chosen[CE, ALL], TOP1) for method in (EXPECTED, OURS))
    lessons = [lesson for lesson in found.lessons(EXPECTED) if found.has(CE, lesson=lesson)]
    means = [found.chosen[EXPECTED, lesson].minus(found.chosen[CE, lesson], TOP1).mean for lesson in lessons]
    text = f"""{signed(ours)} points{on_par_would_take(ours)} against soft target cross-entropy with the teacher's
        whole output (soft target InfoNCE: {signed(soft)}); over {len(lessons)} kinds of teacher output, means from
        {min(means):+.2f} to {max(means):+.2f}"""
    verdict: Verdict = "undecided"
    if found.config["teacher"]["data"] != "digits" and ours.count >= 3:
        verdict = "beyond" if on_par(ours) == "reproduced" else on_par(ours)
    on = f"{NAMES[found.config['teacher']['data']]} features, {counted(ours.count, 'seed')}"
    return Finding(text, on, verdict)


def choices(rows: Sequence[Row]) -> list[Choice]:
    found = find(rows)
    if found is None or found.config["teacher"]["data"] == "digits" or not found.has(CE, OURS, EXPECTED, lesson=ALL):
        return []
    ours, soft = (found.chosen[method, ALL].minus(found.chosen[CE, ALL], TOP1) for method in (EXPECTED, OURS))
    text = f"""minus `SoftTargetCrossEntropy`, points of top-1: expected InfoNCE {signed(ours)}, soft target InfoNCE
        {signed(soft)}"""
    return [Choice("a teacher's outputs", "all logits fit", "`SoftTargetCrossEntropy` or `ExpectedInfoNCE`", text)]
