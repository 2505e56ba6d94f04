"""Fine-tuning: the order of the runs, their recipes, verdicts from intervals, and one tiny real training."""

from dataclasses import replace
from pathlib import Path

import pytest

from experiments import fine_tuning
from experiments.data.targets import Targets
from experiments.fine_tuning import CORRECTED, DRAWN, IMAGES, ORDER, PRESETS, Options, Run, findings, recipe_of, wanted
from experiments.harness import Row, to_mapping

PAPER = PRESETS["paper"]


def finished(todo: list[Run], top1: dict[str, float] | float = 0.9, best: float = 5e-4) -> list[Row]:
    """Rows with an accuracy by loss that moves with the seed; the rate ``best`` is best on held-out data."""
    found = []
    for run in todo:
        level = top1 if isinstance(top1, float) else top1.get(run.loss.name, 0.9)
        test = {"top1": level + 0.001 * run.seed, "top5": 0.99, "ece": 0.1, "nll": 0.3}
        held = {**test, "top1": 0.8 + (run.lr == best)}
        found.append(Row(f"{len(found)}", to_mapping(run), {"held_out": held, "test": test, "epoch": 2}))
    return found


def text_rows(top1: dict[str, float], seeds: int = 3) -> list[Row]:
    """Banking77 with a linear head: the search, then all seeds."""
    options = replace(PAPER, texts=("banking77",), heads=("linear",), image_epochs=0, seeds=seeds)
    rows = finished(wanted(options), top1)
    further = [run for run in wanted(options, rows) if run.seed > 0]
    return rows + finished(further, top1)


def test_a_part_is_searched_then_trained_before_the_next() -> None:
    first = wanted(PAPER)
    assert {run.recipe for run in first} == {"banking77"}
    assert [run.lr for run in first] == [5e-4] * 6 + [1e-3] * 6
    assert [run.loss.name for run in first[:6]] == list(ORDER)
    rows = finished(first)
    then = wanted(PAPER, rows)
    assert {run.recipe for run in then} == {"banking77"}
    assert {run.lr for run in then if run.seed} == {5e-4}
    rows += finished([run for run in then if run not in first])
    assert {run.recipe for run in wanted(PAPER, rows)} == {"banking77", "clinc150"}


def test_only_the_losses_of_the_claims_have_several_seeds_on_images() -> None:
    options = replace(PAPER, texts=())
    searched = wanted(options)
    further = wanted(options, finished(searched, best=3e-3))
    assert {run.seed for run in further if run.loss.name == "info-nce"} == {0}
    assert {run.seed for run in further if run.loss.name == "soft-ce"} == {0, 1, 2}


def test_a_run_is_a_recipe() -> None:
    run = next(run for run in wanted(replace(PAPER, texts=())) if run.loss.name == "soft-ce")
    recipe = recipe_of(run)
    assert recipe.optimiser.rate == pytest.approx(run.lr)
    assert (recipe.schedule.epochs, recipe.optimiser.batch) == (8, 128)
    assert (recipe.targets.mixup, recipe.targets.cutmix, recipe.loss.name) == (0.8, 1.0, "soft-ce")
    assert recipe.data.dir.name == "cifar100"
    still = recipe_of(replace(run, frozen=True, targets=Targets()))
    assert (still.model.freeze, still.data.augment) == ("backbone", "none")


def test_verdicts_follow_from_intervals() -> None:
    found = findings(text_rows({"soft-target-info-nce": 0.88, "soft-dist-info-nce": 0.86}))
    assert {key: finding.verdict for key, finding in found.items()} == {
        "fine-tuning-soft-ce": "not reproduced",
        "fine-tuning-nll": "not reproduced",
        "fine-tuning-soft-distribution": "reproduced",
        "fine-tuning-calibration": "not reproduced",  # equal
        "fine-tuning-expected": "beyond",
    }
    alone = findings(text_rows({"soft-target-info-nce": 0.88}, seeds=1))
    assert {finding.verdict for finding in alone.values()} == {"undecided"}


def test_the_corrected_loss_is_an_option() -> None:
    options = replace(PAPER, texts=("banking77",), heads=("linear",), image_epochs=0, corrected=("banking77",))
    first = wanted(options)
    further = {run for run in first if run.loss.name == CORRECTED}
    assert set(first) - further == set(wanted(replace(options, corrected=())))
    assert {(run.lr, run.targets.smoothing) for run in further} == {(5e-4, 0.1), (1e-3, 0.1)}
    rows = finished(first, {DRAWN: 0.86})
    rows += finished([run for run in wanted(options, rows) if run.seed > 0], {DRAWN: 0.86})
    assert findings(rows)["fine-tuning-smoothed-noise"].verdict == "beyond"
    assert findings(rows)["fine-tuning-smoothed-noise"].ours.startswith("+4.00")
    (table,) = (table for table in fine_tuning.tables(rows) if table.name == "fine-tuning-corrected")
    assert table.rows[0][:4] == ["Banking77, linear head", "86.20 ± 0.20", "90.20 ± 0.20", "+4.00 [+4.00, +4.00]"]


def test_tables_hold_every_loss_and_the_search() -> None:
    rows = text_rows({})
    tables = {table.name: table for table in fine_tuning.tables(rows)}
    assert len(tables["fine-tuning-top-1"].rows) == 1 + 3  # and the paper's
    assert [row[-1] for row in tables["fine-tuning-search"].rows] == ["0.0005"] * 6
    assert len(fine_tuning.figures(rows)) == 1


def test_missing_data_are_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("SOFTNCE_DATA", str(tmp_path))
    with pytest.raises(ValueError, match=r"SOFTNCE_DATA: no folder .*intents, which banking77 needs"):
        fine_tuning.prepare(wanted(PAPER))
    with pytest.raises(ValueError, match="texts"):
        Options(texts=(), image_epochs=0)
    assert IMAGES in {run.recipe for run in wanted(replace(PAPER, texts=()))}


@pytest.mark.slow
def test_a_fine_tuning_learns() -> None:
    pytest.importorskip("transformers")
    result = fine_tuning.perform(wanted(PRESETS["quick"])[0])
    assert result["test"]["top1"] > 0.5  # guessing: 0.125
    assert result["right"]
