"""The study of node classification: its runs, its results on little tissue, and what its page says of made-up rows."""

import json
import math
from collections.abc import Iterator
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import pytest

if not (find_spec("torch_geometric") and find_spec("h5py")):
    pytest.skip("needs softnce[graph]", allow_module_level=True)

from softnce.lab import studies
from softnce.lab.configuration import to_mapping
from softnce.lab.experiment import study as runner
from softnce.lab.experiment.results import Row
from softnce.lab.losses import LOSSES, PAPER
from softnce.lab.recipes.recipe import GraphRecipe
from softnce.lab.report import charts, drawing
from softnce.lab.report.page import Table
from softnce.lab.studies.nodes import findings, page
from softnce.lab.studies.nodes import run as nodes

TINY = nodes.Config(
    seeds=1, deeper_seeds=0, specimens=10, stages=2, cells=(90, 140), layers=1, hidden=8, epochs=2, citation=()
)


@pytest.fixture
def planetoid(tmp_path, monkeypatch) -> Path:
    """Folders where the raw files would be."""
    for name in ("Cora", "CiteSeer"):
        (tmp_path / "planetoid" / name / "raw").mkdir(parents=True)
    monkeypatch.setenv("SOFTNCE_DATA", str(tmp_path))
    return tmp_path


def test_paper_preset_is_the_whole_table(planetoid):
    runs = nodes.runs(nodes.PRESETS["paper"])
    tissue = [run for run in runs if isinstance(run, nodes.Tissue)]
    assert len(tissue) == 6 * 5
    assert {(run.loss, run.fold) for run in tissue} == {(loss, fold) for loss in LOSSES for fold in range(5)}
    assert {(r.specimens, r.cells, r.layers, r.hidden, r.epochs) for r in tissue} == {(30, (300, 800), 8, 64, 30)}
    gcn = [run for run in runs if isinstance(run, nodes.Citation) and run.model == "gcn"]
    assert len(gcn) == 2 * 6 * 10
    deeper = [run for run in runs if isinstance(run, nodes.Citation) and run.model == "deeper-gcn"]
    assert {(run.data, run.loss) for run in deeper} == {(run.data, run.loss) for run in gcn}
    assert len(set(runs)) == len(runs)


def test_only_soft_losses_are_smoothed(planetoid):
    for run in nodes.runs(nodes.PRESETS["quick"]):
        assert (run.smoothing > 0) == (run.loss not in ("nll", "info-nce"))


def test_missing_citation_graphs_are_left_out_and_said(tmp_path, monkeypatch, capsys):
    monkeypatch.delenv("SOFTNCE_DATA", raising=False)
    assert all(isinstance(run, nodes.Tissue) for run in nodes.runs(nodes.PRESETS["paper"]))
    assert "citation graphs are left out: SOFTNCE_DATA" in capsys.readouterr().err
    monkeypatch.setenv("SOFTNCE_DATA", str(tmp_path))
    nodes.runs(nodes.PRESETS["quick"])
    assert f"no {tmp_path}/planetoid/Cora/raw" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"specimens": 8, "stages": 2}, "specimens: got 8, need at least 5 for each of 2 stages"),
        ({"epochs": 0}, "epochs: got 0, need at least 1"),
        ({"smoothing": 1.0}, "smoothing: got 1, need"),
        ({"citation": ("pubmed",)}, "citation: got 'pubmed', need cora or citeseer"),
    ],
)
def test_bad_options_are_named(options, message):
    with pytest.raises(ValueError, match=message):
        nodes.Config(**options)


def test_runs_are_recipes(planetoid):
    """What `softnce train` would be given: only loss, fold, seed and sizes differ from the recipe."""
    for run in nodes.runs(nodes.PRESETS["paper"])[3::40]:
        recipe = nodes.recipe_of(run, Path("grown"))
        assert isinstance(recipe, GraphRecipe)
        assert (recipe.loss.name, recipe.seed, recipe.targets.smoothing) == (run.loss, run.seed, run.smoothing)
        if isinstance(run, nodes.Tissue):
            assert (recipe.data.fold, recipe.data.protocol, recipe.optimiser.lr) == (run.fold, "honest", 1e-3)
            assert recipe.data.dir == Path("grown/30-6-300-800")
        else:
            assert recipe.model.name == run.model
            assert recipe.data.dir == planetoid / "planetoid"


@pytest.fixture(scope="module")
def little(tmp_path_factory) -> Path:
    """The study on ten specimens of about 100 cells, in this process."""
    out = tmp_path_factory.mktemp("nodes")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(runner, "one_per_core", map)
        studies.load("nodes").make(replace(TINY, out=str(out)))
    return out


@pytest.mark.slow
def test_a_little_study(little):
    rows = studies.load("nodes").results(little).rows()
    assert len(rows) == 30  # six losses, five folds
    for row in rows:
        result = row.result
        assert len(result["test_top1"]) == len(result["loss"]) == 2
        assert result["published"]["top1"] >= result["honest"]["top1"]
        assert result["published"]["top1"] == pytest.approx(max(result["test_top1"]), abs=1e-5)
        confusions = result["honest"]["confusions"]
        assert len(confusions) == 2, "one specimen of each stage"
        assert all(70 < sum(map(sum, specimen)) < 170 for specimen in confusions)
        shares = [sum(specimen[k][k] for k in range(9)) / sum(map(sum, specimen)) for specimen in confusions]
        assert result["honest"]["top1"] == pytest.approx(sum(shares) / 2)
    # another fold scores other specimens
    cells = {tuple(map(tuple, r.result["honest"]["confusions"][0])) for r in rows if r.config["loss"] == "nll"}
    assert len(cells) == 5


@pytest.mark.slow
def test_section_of_a_short_study_claims_nothing(little):
    rows = studies.load("nodes").results(little).rows()
    section = page.section(rows)
    assert "too short to compare losses" in section.summary
    assert {finding.verdict for finding in studies.load("nodes").judge(rows).values()} == {"undecided"}
    assert any(isinstance(block, str) and "were not run" in block for block in section.blocks)
    for block in section.blocks:
        if isinstance(block, charts.Figure):
            assert drawing.png(block, dpi=30).startswith(b"\x89PNG")


# ------------------------------------------------------------------------------------ sentences follow from rows


def rows_of(gain: dict[str, float]) -> Iterator[Row]:
    """A full study in which each loss classifies that many more of 100 cells, in folds of different difficulty."""
    config = nodes.PRESETS["paper"]
    for run in nodes.runs(replace(config, citation=())):
        hits = [60 + 3 * run.fold + round(gain[run.loss]) + (specimen + run.fold) % 2 for specimen in range(6)]
        confusions = [[[0] * 9 for _ in range(9)] for _ in hits]
        for matrix, right in zip(confusions, hits, strict=True):
            matrix[0][0], matrix[0][1] = right, 100 - right
        top1 = sum(hits) / 600
        honest = {"epoch": 20, "top1": top1, "class_average": top1, "confusions": confusions}
        late = {"epoch": 25, "top1": top1 + 0.01, "class_average": top1}
        course = [0.3] * 29 + [top1]
        result = {"loss": course, "selection_top1": course, "test_top1": course}
        result |= {"honest": honest, "published": late, "last": late}
        yield made_up(run, result)
    for seed in range(3):
        for loss in PAPER:
            run = nodes.Citation("cora", "gcn", loss, seed, 0.0)
            at = {"epoch": 0, "top1": 0.81 + 0.01 * seed, "class_average": 0.8}
            yield made_up(run, {"honest": at, "published": at, "last": at})


def made_up(run, result) -> Row:
    config = json.loads(json.dumps(to_mapping(run)))
    return Row("0", config, result, 1.0, "2026-01-01", {"softnce": "0", "torch": "0"})


EQUAL = dict.fromkeys(LOSSES, 0.0)


def test_paper_and_ours_stand_side_by_side():
    section = page.section(list(rows_of(EQUAL)))
    table = next(block for block in section.blocks if isinstance(block, Table))
    assert table.header[:4] == [
        "loss", "CellTypeGraph, paper: top-1", "CellTypeGraph, paper: class average", "tissue, ours: top-1",
    ]  # fmt: skip
    by_loss = {row[0]: row for row in table.rows}
    assert by_loss["soft target cross-entropy"][1:3] == ["87.67", "81.41"]
    assert by_loss["soft target InfoNCE"][1:3] == ["87.12", "81.27"]
    # folds of 60.5, 63.5, …, 72.5 %: mean 66.5, deviation 3·√2.5
    assert by_loss["NLL"][3] == f"66.5 ± {3 * math.sqrt(2.5):.1f}"
    assert by_loss["NLL"][5].startswith("67.5")
    assert "on other data" in table.caption


def test_equal_losses_are_called_equal():
    rows = list(rows_of(EQUAL))
    assert "within 0.0 points" in page.section(rows).summary
    assert "no loss can be told from" in page.section(rows).summary
    found = studies.load("nodes").judge(rows)
    assert found["nodes-hard"].verdict == "reproduced"
    assert found["nodes-soft-ce"].verdict == "undecided"
    assert found["nodes-soft-distribution"].verdict == "undecided"
    assert all("not CellTypeGraph" in finding.on for finding in found.values())


def test_differences_in_every_fold_are_told():
    rows = list(rows_of(EQUAL | {"soft-ce": 2.0, "soft-dist-info-nce": -3.0}))
    summary = page.section(rows).summary
    assert "within 5.0 points of each other, soft target cross-entropy in front" in summary
    assert "soft target cross-entropy is 2.0 points ahead of soft target InfoNCE" in summary
    assert "soft distribution InfoNCE is 3.0 points behind" in summary
    found = findings.claims(rows)
    assert found["nodes-soft-ce"].verdict == "reproduced"
    assert found["nodes-soft-ce"].ours.startswith("+2.00 [+2.00, +2.00]")
    assert found["nodes-soft-distribution"].verdict == "reproduced"
    assert found["nodes-soft-distribution"].ours.startswith("63.50, the next 66.50")


def test_claims_that_fail_are_not_reproduced():
    found = findings.claims(list(rows_of(EQUAL | {"soft-target-info-nce": 4.0, "soft-dist-info-nce": 1.0})))
    assert {key: finding.verdict for key, finding in found.items()} == {
        "nodes-soft-ce": "not reproduced",
        "nodes-hard": "not reproduced",
        "nodes-soft-distribution": "not reproduced",
        "nodes-expected": "beyond",  # equal to soft target cross-entropy and NLL
    }


def test_what_the_published_choice_adds_is_said():
    section = page.section(list(rows_of(EQUAL)))
    text = next(block for block in section.blocks if isinstance(block, str) and "published rule" in block)
    assert "adds 1.00 points on average" in text
    assert "the same epoch in 0 of 30 trainings" in text


def test_citation_graphs_with_spread():
    section = page.section(list(rows_of(EQUAL)))
    assert "82.0\N{NO-BREAK SPACE}% on Cora" in section.summary
    table = [block for block in section.blocks if isinstance(block, Table)][-1]
    assert table.header[1] == "Cora, GCN (3 seeds)"
    assert table.rows[0][1] == "82.0 ± 1.0"
    assert any(isinstance(block, str) and "the same accuracy, all of them" in block for block in section.blocks)
