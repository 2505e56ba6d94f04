"""The experiment on the length of training: its plan, its images, and its numbers on made-up rows."""

import base64
import itertools
from dataclasses import asdict, replace

import numpy as np
import pytest
import torch

from experiments import regime
from experiments.harness import Row
from experiments.harness.options import check
from experiments.harness.rows import run_id
from experiments.harness.search import climb
from experiments.regime import training

OPTIONS = regime.Options()


def made_up(loss, epochs, lr, seed, top1, *, course=None, **changes):
    config = asdict(replace(regime.run_of(OPTIONS, loss, epochs, lr, seed), **changes))
    right = np.random.default_rng(seed).permutation(1000) < round(1000 * top1)
    scores = {"top1": float(right.mean()), "top5": 0.5, "nll": 3.0, "nll_scaled": 2.9}
    scores |= {"ece": 0.02 if loss == "soft-ce" else 0.1 + 0.01 * seed, "ece_scaled": 0.02, "temperature": 1.2}
    points = course or [{"epoch": epochs // 2, "top1": top1 / 2, "nll": 3.0}, {"epoch": epochs, "top1": top1, "nll": 3}]
    bits = base64.b64encode(np.packbits(right).tobytes()).decode()
    result = {"course": points, "epoch": epochs, "train": {"top1": 0.6, "nll": 1.0}, "test": scores, "last": scores}
    return Row(run_id("regime", 1, config), config, {**result, "right": bits, "cpu_seconds": 1.0})


def search(loss, **tops):
    return [made_up(loss, 30, float(lr.replace("r", "0.")), regime.SEARCH_SEED, top) for lr, top in tops.items()]


def test_a_search_ends_when_its_best_rate_has_neighbours_on_both_sides():
    first, ladder = (0.003, 0.01, 0.03), regime.LADDER
    assert climb({}, first, ladder) == (None, [0.003, 0.01, 0.03])
    assert climb({0.003: 0.3}, first, ladder) == (None, [0.01, 0.03])
    assert climb({0.003: 0.1, 0.01: 0.3, 0.03: 0.2}, first, ladder) == (0.01, [])
    assert climb({0.003: 0.1, 0.01: 0.2, 0.03: 0.3}, first, ladder) == (None, [0.1])
    assert climb({0.003: 0.1, 0.01: 0.2, 0.03: 0.3, 0.1: 0.2}, first, ladder) == (0.03, [])
    assert climb({}, (0.01,), ladder) == (0.01, [])


def test_every_loss_is_searched_before_its_seeds_which_come_seed_by_seed():
    assert {(run.epochs, run.seed) for run in regime.wanted(OPTIONS)} == {(30, regime.SEARCH_SEED)}
    assert len(regime.wanted(OPTIONS)) == 3 * len(regime.LOSSES)
    rows = [row for loss in ("nll", "soft-ce") for row in search(loss, r003=0.1, r01=0.3, r03=0.2)]
    later = [run for run in regime.wanted(OPTIONS, rows) if run.seed != regime.SEARCH_SEED]
    assert [(run.loss, run.epochs, run.seed) for run in later[:4]] == [
        ("nll", 60, 0), ("soft-ce", 60, 0), ("nll", 60, 1), ("soft-ce", 60, 1)
    ]  # fmt: skip
    assert {run.lr for run in later} == {0.01}
    assert len(later) == 2 * (5 + 3 * 3)


def test_labels_losses_get_neither_smoothing_nor_mixing():
    for loss in regime.LOSSES:
        run = regime.run_of(OPTIONS, loss, 60, 0.01, 0)
        hard = loss in ("nll", "info-nce")
        assert (run.smoothing, run.mixup, run.cutmix) == ((0, 0, 0) if hard else (0.1, 0.8, 1.0))
        images, labels = torch.randn(6, 3, 32, 32), torch.arange(6)
        mixed, targets = training.mix(images, labels, 10, run, torch.Generator().manual_seed(1))
        assert (targets is labels and mixed is images) == hard


def test_training_images_of_seeds_are_disjoint_and_balanced():
    labels = torch.arange(600) % 10
    parts = [training.split(labels, seed, 100) for seed in range(5)]
    for kept, held in parts:
        assert labels[kept].bincount().tolist() == labels[held].bincount().tolist() == [10] * 10
        assert torch.equal(held, parts[0][1])
    everything = torch.cat([*(kept for kept, _ in parts), parts[0][1]])
    assert len(everything.unique()) == 600


def test_a_crop_shows_a_part_of_the_image_mirrored_half_of_the_time():
    ramp = torch.arange(32.0).expand(400, 3, 32, 32).contiguous()
    views = training.crop_and_flip(ramp, torch.Generator().manual_seed(0))
    assert views.shape == ramp.shape
    assert views.min() >= 0
    assert views.max() <= 31
    steps = views[:, 0, 16].diff(dim=1)
    rising = (steps >= -1e-4).all(1)
    assert (rising | (steps <= 1e-4).all(1)).all()
    assert 150 < int(rising.sum()) < 250
    shown = (views[:, 0, 16].amax(1) - views[:, 0, 16].amin(1)) / 31  # the share of the width
    assert shown.min() > 0.2
    assert shown.max() <= 1
    torch.testing.assert_close(training.crop_and_flip(ramp, torch.Generator(), smallest=1.0)[:, 0, :, 5].std(1).max(),
                               torch.tensor(0.0), atol=1e-4, rtol=0)  # fmt: skip


def test_the_rate_rises_then_falls_to_almost_nothing():
    rates = [training.learning_rate(step, 100, 10, 0.01) for step in range(100)]
    assert rates[0] == pytest.approx(0.001)
    assert rates[9] == pytest.approx(0.01) == max(rates)
    assert all(a > b for a, b in itertools.pairwise(rates[10:]))
    assert rates[-1] < 1e-5


def test_the_network_is_the_small_resnet_of_timm():
    from experiments.models import torchvision_operators  # noqa: F401

    import timm  # isort: skip

    theirs, ours = timm.create_model("test_resnet", num_classes=100), training.small_resnet(100)
    ours.load_state_dict(dict(zip(ours.state_dict(), theirs.state_dict().values(), strict=True)))
    images = torch.randn(3, 3, 32, 32)
    torch.testing.assert_close(ours.eval()(images), theirs.eval()(images))


@pytest.mark.parametrize("loss", ["soft-dist-info-nce", "nll"])
def test_a_run_repeats_exactly_and_learns(loss):
    run = replace(regime.run_of(regime.Options("generated"), loss, 2, 0.01, 0), images=200)
    result, again = training.perform(run), training.perform(run)
    assert {**result, "cpu_seconds": 0} == {**again, "cpu_seconds": 0}
    assert [point["epoch"] for point in result["course"]] == [1, 2]
    bits = np.unpackbits(np.frombuffer(base64.b64decode(result["right"]), np.uint8))
    assert bits.sum() / 500 == pytest.approx(result["test"]["top1"])
    assert result["test"]["ece_scaled"] >= 0
    assert result["train"]["top1"] > 0.1


def test_settings_have_tables_of_their_own():
    rows = [made_up("nll", 60, 0.01, seed, 0.24) for seed in range(2)]
    tuned = [replace(row, config=row.config | {"setting": "fine-tuned", "head": "mlp"}) for row in rows]
    own = [f"regime{setting}-{name}" for setting in ("", "-fine-tuned-mlp") for name in ("top1", "differences", "60")]
    assert [table.name for table in regime.tables([*rows, *tuned])] == own
    assert regime.findings(tuned) == {}
    assert regime.figures([]) == []


def test_the_fine_tuned_network_sees_larger_images_and_learns_its_lower_layers_slowly():
    run = regime.run_of(regime.Options("fine-tuned", head="mlp"), "nll", 8, 0.001, 0)
    assert (run.images, run.batch) == (3_000, 256)
    network, groups, view = training.build_model(run, 7)
    images = torch.randint(256, (2, 3, 32, 32), dtype=torch.uint8)
    seen = view(images, None)
    assert seen.shape == (2, 3, 64, 64)
    assert torch.equal(view(images, None), seen)
    assert network.eval()(seen).shape == (2, 7)
    scales = [group.get("lr_scale", 1.0) for group in groups]
    assert min(scales) < 0.2
    assert scales[-1] == 1.0
    assert sum(p.numel() for group in groups for p in group["params"]) == sum(p.numel() for p in network.parameters())


@pytest.mark.parametrize(("end", "verdict"), [(3.2, "beyond"), (2.9, "not reproduced")])
def test_overfitting_is_read_from_the_longest_training(end, verdict):
    courses = [[{"epoch": 60, "top1": 0.2, "nll": 3.0}, {"epoch": 120, "top1": 0.25, "nll": end + 0.01 * seed}]
               for seed in range(3)]  # fmt: skip
    rows = [made_up("nll", 120, 0.01, seed, 0.25, course=course) for seed, course in enumerate(courses)]
    assert regime.findings(rows)["regime-overfits"].verdict == verdict


def test_what_is_missing_is_named(monkeypatch, tmp_path):
    monkeypatch.delenv("SOFTNCE_DATA", raising=False)
    with pytest.raises(ValueError, match="SOFTNCE_DATA"):
        training.read("scratch", "train")
    monkeypatch.setenv("SOFTNCE_DATA", str(tmp_path))
    (tmp_path / "cifar100").mkdir()
    with pytest.raises(ValueError, match=r"train\.npz is missing"):
        training.read("scratch", "train")
    with pytest.raises(ValueError, match="rates"):
        check(regime.Options(rates=(0.5,)))


@pytest.fixture
def every_option():
    """Searches, four lengths, three ε and three batches; the losses move apart with the length."""
    tops = {"nll": 0.24, "soft-ce": 0.25, "soft-target-info-nce": 0.26, "expected-info-nce": 0.255}
    rows = [row for loss in tops for row in search(loss, r003=0.2, r01=0.3, r03=0.1)]
    for seed, (loss, top1) in itertools.product(range(3), tops.items()):
        noise = 0.002 * (seed + len(loss) % 3)
        for epochs, lead in ((8, -1.0), (30, 0.5), (60, 1.0), (120, 2.0)):
            rows.append(made_up(loss, epochs, 0.01, seed, 0.2 + lead * (top1 - 0.235) + noise))
        if loss in ("soft-ce", "soft-target-info-nce"):
            moved = 0.02 if loss == "soft-ce" else 0.005
            rows += [made_up(loss, 60, 0.01, seed, top1 + sign * moved + noise, smoothing=ε)
                     for ε, sign in ((0.0, -1), (0.3, 1))]  # fmt: skip
        if loss != "nll":
            drop = 0.05 if loss == "soft-target-info-nce" else 0.0
            rows += [made_up(loss, 30, 0.01, seed, 0.2 - drop + noise / 100, batch=batch) for batch in (8, 32)]
    return rows


def test_lengths_smoothings_and_batches_have_their_claims(every_option):
    found = regime.findings(every_option)
    verdicts = {key.removeprefix("regime-"): finding.verdict for key, finding in found.items()}
    assert verdicts == {
        "soft-ce": "not reproduced", "nll": "reproduced", "calibration": "not reproduced", "expected": "not reproduced",
        "short-nll": "beyond", "longest-soft-ce": "not reproduced", "longest-nll": "reproduced", "length": "beyond",
        "smoothing": "reproduced", "small-batch": "reproduced", "small-batch-expected": "beyond",
        "overfits": "not reproduced",
    }  # fmt: skip
    assert found["regime-nll"].ours.startswith("+2.40 [")
    for finding in found.values():
        assert finding.on.startswith("CIFAR-100, 5,000 images, ")
        assert "batch " in finding.on
        assert "rates 0.003 to 0.03, 3 seeds" in finding.on
    assert [figure.name for figure in regime.figures(every_option)] == ["regime-course", "regime-lengths"]


def test_a_claim_without_its_rows_is_not_shown(every_option):
    main = [row for row in every_option if row.config["epochs"] == 60]
    usual = [row for row in main if row.config["smoothing"] == 0.1 or row.config["loss"] == "nll"]
    keys = {"soft-ce", "nll", "calibration", "expected", "overfits"}
    assert regime.findings(usual).keys() == {f"regime-{key}" for key in keys}
    started = [row for row in every_option if row.config["seed"] != 2 or row.config["loss"] == "soft-ce"]
    assert "2 seeds, ε 0, 0.1, 0.3" in regime.findings(started)["regime-smoothing"].on
    for count in range(0, len(every_option), 5):
        regime.findings(every_option[:count])
        regime.tables(every_option[:count])


def test_tables_of_smoothings_batches_and_rates(every_option):
    tables = {table.name: table for table in regime.tables(every_option)}
    ours = [row for row in tables["regime-smoothing"].rows if row[0] == "soft target InfoNCE"]
    assert [row[1] for row in ours] == ["0", "0.1", "0.3"]
    assert ours[1][3] == ""  # ε = 0.1 itself
    assert [row[1] for row in tables["regime-batch"].rows] == ["8", "32", "256"] * 3
    assert tables["regime-rates"].rows[0] == ["NLL", "20.0", "30.0", "10.0"]
    assert tables["regime-top1"].rows[-1] == ["seeds", "3", "3", "3", "3"]


def test_runs_of_every_option():
    options = regime.Options(losses=("soft-ce",), rates=(0.01,), seeds=1, other_epochs=(120,), other_seeds=1,
                             smoothings=(0.0,), batches=(8,))  # fmt: skip
    runs = [(run.epochs, run.smoothing, run.batch, run.lr) for run in regime.wanted(options)]
    assert runs == [(60, 0.1, 256, 0.01), (120, 0.1, 256, 0.01), (60, 0.0, 256, 0.01), (30, 0.1, 8, 0.01)]
