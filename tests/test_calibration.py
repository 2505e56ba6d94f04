"""Calibration against a slow reference: loops over bins and samples, in Python numbers."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from softnce.calibration import (
    CalibrationMeter,
    brier_score,
    expected_calibration_error,
    fit_temperature,
    negative_log_likelihood,
    reliability_curve,
    top_label,
)
from softnce.targets import SoftTargets


def slow_bins(confidence, bins, binning):
    """For each bin the list of its samples."""
    order, members, start = sorted(range(len(confidence)), key=confidence.__getitem__), [], 0
    if binning == "width":
        bin_of = [next(b for b in range(bins) if c <= (b + 1) / bins or b == bins - 1) for c in confidence]
        return [[i for i, found in enumerate(bin_of) if found == b] for b in range(bins)]
    for b in range(bins):
        end = max(start, math.ceil((b + 1) * len(order) / bins))
        while start < end < len(order) and confidence[order[end]] == confidence[order[end - 1]]:
            end += 1  # ties stay together, in the earlier bin
        members.append(order[start:end])
        start = end
    return members


def slow_error(confidence, outcome, bins, binning):
    filled = [members for members in slow_bins(confidence, bins, binning) if members]
    gaps = [abs(sum(outcome[i] - confidence[i] for i in members)) / len(members) for members in filled]
    return sum(len(m) / len(confidence) * gap for m, gap in zip(filled, gaps, strict=True)), max(gaps)


def problem(n, k, soft, seed, repeated=False):
    generator = torch.Generator().manual_seed(seed)
    logits = 3 * torch.randn(n, k, generator=generator, dtype=torch.double)
    if repeated:  # few distinct rows: many equal confidences
        logits = logits[torch.randint(3, (n,), generator=generator) % n]
    if soft:
        return logits, torch.randn(n, k, generator=generator, dtype=torch.double).softmax(1)
    return logits, torch.randint(k, (n,), generator=generator)


def frequencies(targets, k):
    rows = targets.tolist()
    return rows if targets.dim() == 2 else [[float(y == j) for j in range(k)] for y in rows]


SEEDS = st.integers(0, 2**31)
BINNED = {"bins": st.integers(1, 17), "binning": st.sampled_from(["width", "mass"]), "repeated": st.booleans()}


@settings(deadline=None, max_examples=60)
@given(n=st.integers(1, 40), k=st.integers(2, 6), soft=st.booleans(), seed=SEEDS, **BINNED)
def test_errors_agree_with_loops(n, k, bins, binning, soft, repeated, seed):
    logits, targets = problem(n, k, soft, seed, repeated)
    probs, truth = logits.softmax(1), frequencies(targets, k)
    rows = probs.tolist()
    predicted = [max(range(k), key=row.__getitem__) for row in rows]
    confidence = [row[j] for row, j in zip(rows, predicted, strict=True)]
    outcome = [row[j] for row, j in zip(truth, predicted, strict=True)]
    ece, mce = slow_error(confidence, outcome, bins, binning)
    options = {"bins": bins, "binning": binning}
    assert expected_calibration_error(probs, targets, **options).item() == pytest.approx(ece, abs=1e-12)
    worst = reliability_curve(*top_label(probs, targets), **options).maximum_error
    assert worst.item() == pytest.approx(mce, abs=1e-12)
    if binning == "width":
        meter = CalibrationMeter(bins)
        meter.update(logits, targets)
        rows = logits.float().softmax(1).tolist()
        by_class = [slow_error([row[j] for row in rows], [row[j] for row in truth], bins, binning)[0] for j in range(k)]
        assert meter.compute()["classwise_ece"] == pytest.approx(sum(by_class) / k, abs=1e-6)


@settings(deadline=None, max_examples=30)
@given(n=st.integers(1, 20), k=st.integers(2, 6), soft=st.booleans(), seed=SEEDS)
def test_proper_scores_are_expectations_over_the_label(n, k, soft, seed):
    logits, targets = problem(n, k, soft, seed)
    rows = logits.softmax(1).tolist()
    brier = nll = 0.0
    for row, truth in zip(rows, frequencies(targets, k), strict=True):
        for label, weight in enumerate(truth):
            brier += weight * sum((p - (j == label)) ** 2 for j, p in enumerate(row)) / n
            nll -= weight * math.log(row[label]) / n
    assert brier_score(logits.softmax(1), targets).item() == pytest.approx(brier, rel=1e-10)
    assert negative_log_likelihood(logits, targets).item() == pytest.approx(nll, rel=1e-10)


def test_full_confidence_lies_in_the_last_bin_and_edges_close_on_the_right():
    for dtype in (torch.float32, torch.float64):
        confidence = torch.tensor([0.0, 0.2, 0.2001, 0.99, 1.0], dtype=dtype)
        curve = reliability_curve(confidence, torch.ones(5, dtype=dtype), bins=5)
        assert curve.count.tolist() == [2, 1, 0, 0, 2]
        assert curve.confidence[2].isnan()
    certain = torch.eye(3)
    assert expected_calibration_error(certain, torch.tensor([0, 1, 2])).item() == 0
    curve = reliability_curve(*top_label(certain, torch.tensor([0, 1, 0])))
    assert curve.maximum_error.item() == pytest.approx(1 / 3)


def test_equal_mass_bins_hold_equally_many_and_ignore_order():
    logits, targets = problem(30, 4, False, 0)
    confidence, outcome = top_label(logits.softmax(1), targets)
    curve = reliability_curve(confidence, outcome, bins=6, binning="mass")
    assert curve.count.tolist() == [5] * 6
    tied = (confidence * 4).round() / 4
    order = torch.randperm(30, generator=torch.Generator().manual_seed(1))
    a = reliability_curve(tied, outcome, bins=6, binning="mass").expected_error
    b = reliability_curve(tied[order], outcome[order], bins=6, binning="mass").expected_error
    assert a.item() == pytest.approx(b.item(), abs=1e-14)


def test_a_calibrated_forecaster_has_no_error_with_soft_targets():
    probs = torch.randn(200, 5, dtype=torch.double).softmax(1)
    assert expected_calibration_error(probs, probs).item() == pytest.approx(0, abs=1e-12)
    # and the Brier score of any other forecast is worse
    assert brier_score(probs, probs) < brier_score((probs + 0.2) / 2, probs)


@pytest.mark.parametrize("soft", [False, True])
def test_meter_agrees_with_the_functions_over_uneven_batches(soft):
    logits, targets = problem(101, 5, soft, 4)
    logits = logits.float()
    meter = CalibrationMeter(bins=10)
    for rows in torch.arange(101).split(32):
        meter.update(logits[rows], targets[rows])
    probs = logits.softmax(1)
    expected = {
        "ece": expected_calibration_error(probs, targets, bins=10),
        "ece_mass": expected_calibration_error(probs, targets, bins=10, binning="mass"),
        "mce": reliability_curve(*top_label(probs, targets), bins=10).maximum_error,
        "brier": brier_score(probs, targets),
        "nll": negative_log_likelihood(logits, targets),
    }
    measured = meter.compute()
    assert measured.keys() == {*expected, "classwise_ece"}
    for name, value in expected.items():
        assert measured[name] == pytest.approx(value.item(), abs=1e-7), name


def test_ignored_rows_are_left_out():
    logits, labels = problem(20, 3, False, 5)
    masked = labels.clone()
    masked[::3] = -100
    keep = masked >= 0
    a = expected_calibration_error(logits.softmax(1), masked)
    assert a == expected_calibration_error(logits.softmax(1)[keep], labels[keep])
    meter = CalibrationMeter()
    meter.update(logits, masked)
    meter.update(logits[:2], torch.tensor([-100, -100]))  # a batch without any row that counts
    assert meter.compute()["ece"] == pytest.approx(a.item(), abs=1e-6)


@pytest.mark.parametrize("temperature", [0.02, 0.5, 1.0, 3.0, 40.0])
def test_fit_temperature_finds_the_one_the_labels_were_drawn_with(temperature):
    # Soft targets that are the tempered softmax itself leave no sampling noise: the answer is exact.
    logits = torch.randn(300, 10, generator=torch.Generator().manual_seed(0), dtype=torch.double)
    fitted = fit_temperature(logits, (logits / temperature).softmax(1))
    assert fitted == pytest.approx(temperature, rel=1e-8)


def test_fit_temperature_is_the_minimum_of_the_likelihood():
    logits, labels = problem(400, 5, False, 6)
    best = fit_temperature(logits, labels)
    lowest = negative_log_likelihood(logits / best, labels)
    for factor in (0.9, 0.999, 1.001, 1.1):
        assert negative_log_likelihood(logits / (best * factor), labels) > lowest


@pytest.mark.parametrize("logits", [torch.zeros(5, 3), torch.arange(5.0)[:, None].expand(5, 3), torch.zeros(5, 1)])
def test_fit_temperature_stops_at_its_limits_and_changes_nothing_where_every_temperature_is_equally_good(logits):
    separable = torch.tensor([[2.0, 0.0], [0.0, 2.0]])
    assert [fit_temperature(separable, torch.tensor(labels)) for labels in ([0, 1], [1, 0])] == [1e-3, 1e3]
    labels = torch.arange(5) % logits.shape[1]
    assert fit_temperature(logits, labels) == 1
    assert fit_temperature(logits, labels, limits=(2.0, 3.0)) == 2
    assert fit_temperature(logits, labels, limits=(0.2, 0.3)) == 0.3


P, Y = torch.tensor([[0.7, 0.2, 0.1], [0.3, 0.4, 0.3], [0.0, 0.0, 1.0], [0.5, 0.5, 0.0]]), torch.tensor([0, 1, 2, 0])
NO_SCORES = ["text", None, torch.ones(4, 3).long(), P[0], P * math.nan]
WRONG = {
    "targets": ["text", None, Y + 9, Y - 1, Y[:-1], Y.float(), Y > 0, P[:, :2], P * 9, SoftTargets.from_labels(Y, 4)],
    "ignore_index": ["255", 2.5, None, True],
    "probs": [*NO_SCORES, P * 2, P - 0.5, P[:0]],
    "logits": [*NO_SCORES, P],
    "bins": ["2", 2.5, None, 0],
    "binning": ["size", None, 1],
    "limits": [(2.0, 1.0), (0.0, 1.0), 3.0, None, ("1", "2"), (1.0,), (1.0, math.inf)],
    "confidence": ["text", P, P[:, 0] + 1, Y],
    "outcome": ["text", P, P[:, 0] + 1, Y[:2]],
}


@pytest.mark.parametrize(
    ("call", "good"),
    [
        (expected_calibration_error, {"probs": P, "targets": Y, "bins": 5, "binning": "mass", "ignore_index": 9}),
        (brier_score, {"probs": P, "targets": Y, "ignore_index": 9}),
        (top_label, {"probs": P, "targets": Y, "ignore_index": 9}),
        (negative_log_likelihood, {"logits": P - 1, "targets": Y, "ignore_index": 9}),
        (fit_temperature, {"logits": P - 1, "targets": Y, "limits": (0.1, 10.0), "ignore_index": 9}),
        (reliability_curve, {"confidence": P[:, 0], "outcome": P[:, 1], "bins": 5, "binning": "mass"}),
        (CalibrationMeter, {"bins": 5}),
        (CalibrationMeter().update, {"logits": P - 1, "targets": Y, "ignore_index": 9}),
    ],
)
def test_wrong_arguments_are_named(call, good):
    call(**good)
    for argument in good:
        for value in WRONG[argument]:
            with pytest.raises((ValueError, TypeError), match=rf"\b{argument}\b"):
                call(**{**good, argument: value})
    with pytest.raises(ValueError, match="nothing was measured"):
        CalibrationMeter().compute()


def test_pixels_are_samples_and_ignored_ones_are_left_out():
    torch.manual_seed(0)
    logits, labels = torch.randn(3, 5, 4, 2, dtype=torch.double), torch.randint(5, (3, 4, 2))
    labels[0, 0] = 255
    rows, flat = logits.movedim(1, -1).reshape(-1, 5), labels.flatten()
    rows, flat = rows[flat != 255], flat[flat != 255]
    for measure in (expected_calibration_error, brier_score):
        found = measure(logits.softmax(1), labels, ignore_index=255)
        torch.testing.assert_close(found, measure(rows.softmax(1), flat))
    for measure in (negative_log_likelihood, fit_temperature):
        assert float(measure(logits, labels, ignore_index=255)) == pytest.approx(float(measure(rows, flat)))
    whole, parts = CalibrationMeter(), CalibrationMeter()
    whole.update(rows, flat)
    for image, label in zip(logits, labels, strict=True):
        parts.update(image[None], label[None], ignore_index=255)
    assert parts.compute() == pytest.approx(whole.compute())
    soft = torch.randn(3, 5, 4, 2, dtype=torch.double).softmax(1)
    torch.testing.assert_close(
        brier_score(logits.softmax(1), soft),
        brier_score(logits.movedim(1, -1).reshape(-1, 5).softmax(1), soft.movedim(1, -1).reshape(-1, 5)),
    )


def test_arrays_lists_and_soft_targets_are_read():
    logits, labels = problem(20, 4, False, 1)
    probs, soft = logits.softmax(1), SoftTargets.from_labels(labels, 4, smoothing=0.2)
    for metric in (expected_calibration_error, brier_score):
        assert metric(probs, soft).item() == pytest.approx(metric(probs, soft.dense().double()).item(), abs=1e-7)
    assert expected_calibration_error(probs.numpy(), labels.numpy()) == expected_calibration_error(probs, labels)
    of_lists = brier_score(probs.tolist(), labels.tolist())
    assert of_lists.item() == pytest.approx(brier_score(probs, labels).item(), abs=1e-6)
    assert fit_temperature(logits.numpy(), labels.numpy()) == fit_temperature(logits, labels)
    curve = reliability_curve(np.array([0.2, 0.9]), np.array([0, 1]))
    assert curve.count.sum() == 2


@pytest.mark.parametrize("measure", [negative_log_likelihood, fit_temperature, CalibrationMeter().update])
def test_probabilities_are_not_taken_for_logits(measure):
    logits, labels = problem(20, 4, False, 1)
    for probs in (logits.softmax(1), logits.softmax(1).float(), logits.softmax(1).half()):
        with pytest.raises(ValueError, match=r"logits must be unnormalised scores, got probabilities"):
            measure(probs, labels)
    measure(logits.log_softmax(1), labels)
