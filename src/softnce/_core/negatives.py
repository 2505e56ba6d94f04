"""The negatives of expected InfoNCE: candidates that count by their classes, in the mean or by one drawn label."""

from __future__ import annotations

from torch import Tensor

from softnce._checks import values_are_checked
from softnce._core.call import Call, Logits
from softnce.candidates import Candidates, ClassCandidates
from softnce.targets.soft_targets import DENSE, SoftTargets


def mean_negatives(call: Call) -> tuple[SoftTargets, SoftTargets | None, Tensor | None]:
    """Candidates with all their classes, what each row has among them, and the mass of noise in expectation, (K,)."""
    given, none = call.options["candidates"], call.targets[:0]
    count = given.noise_count if isinstance(given, Candidates) else 0.0
    if given is None and isinstance(call.source, Logits):
        return none, call.targets, call.batch_counts() + call.noise_mass(call.source.num_classes)
    if given is None:
        count = call.source.num_classes
    candidates, place = call.candidates()
    own = None if place is None else call.targets
    return candidates, own, call.noise_mass(count) if count else None


def drawn_negatives(call: Call) -> tuple[SoftTargets, SoftTargets | None, None]:
    """One label drawn from each candidate, the one drawn from each row's own, and m labels drawn from η."""
    given = call.options["candidates"]
    candidates, place = call.candidates()
    if call.options["batch"] is not None and call.generator is None and not candidates.is_hard:
        raise ValueError("negatives='drawn' with batch needs a generator, in the same state for every micro-batch")
    labels = candidates.labels if candidates.is_hard else candidates.sample(call.generator)
    drawn = SoftTargets(candidates.num_classes, labels[:, None], None, mask=candidates.mask)
    own = None
    if place is not None:
        own = call.targets if isinstance(given, ClassCandidates) else call.own_labels(drawn[place], place)
    count = given.noise_count if isinstance(given, Candidates) else 0.0
    if count:
        drawn = SoftTargets.cat([drawn, call.draw_noise(round(count))])
    return drawn, own, None


def refuse_expectation(candidates: object) -> None:
    """NoiseCandidates are no targets that could be scored."""
    if isinstance(candidates, Candidates) and candidates.noise_count:
        raise ValueError(
            "NoiseCandidates are candidates in expectation, which only ExpectedInfoNCE can count; for this loss draw "
            f"them: SampledCandidates({candidates.noise_count:g})"
        )


def refuse_exclusion(call: Call) -> None:
    """``exclude`` names classes, so candidates must be labels."""
    if call.options.get("exclude") is not None:
        raise ValueError("exclude needs candidates that are labels, or ExpectedInfoNCE: soft targets are no classes")


def refuse_empty(call: Call) -> None:
    """With ``drop_own_classes``, targets with weight on every class leave no negatives."""
    targets = call.targets
    if not call.options["drop_own_classes"]:
        return
    full = targets.has_background
    if targets.form == DENSE and not full and values_are_checked(targets.weight):
        full = bool((targets.pair_weight() > 0).all(1).any())
    if full:
        raise ValueError(
            "drop_own_classes needs targets with zeros, got rows with weight on every class (a background or a dense "
            "row): no negative would be left; use labels or pairs without label_smoothing"
        )
