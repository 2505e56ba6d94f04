"""The study from its command line: which runs, their results, findings and page."""

from dataclasses import replace
from pathlib import Path

import pytest

from softnce.lab import studies
from softnce.lab.commands import study as study_command
from softnce.lab.experiment.results import Row
from softnce.lab.report.page import Table
from softnce.lab.studies.links import findings, page
from softnce.lab.studies.links import run as links

PAPER = Path(__file__).parents[4] / "results" / "paper"
TINY = ["--epochs", "2", "--rank", "4", "--checks", "20", "--losses", "[info-nce, expected-info-nce]"]


def test_the_search_tries_the_same_for_every_loss_without_the_test_split() -> None:
    runs = links.runs(replace(links.PRESETS["quick"], search=True, losses=links.LOSSES))
    trials = [run for run in runs if not run.is_final]
    tried = {loss: [(run.lr, run.n3, run.epochs) for run in trials if run.loss == loss] for loss in links.LOSSES}
    assert len(tried["info-nce"]) == 6
    assert all(grid == tried["info-nce"] for grid in tried.values())


def test_final_trainings_are_those_of_the_table_unless_others_are_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(links, "FINAL", {("WN18RR", "info-nce"): links.Setting(0.7, 0.2, 64, 5, 8)})
    monkeypatch.setattr(links, "SEEDS", {})
    paper = replace(links.PRESETS["paper"], graphs=("WN18RR",), seeds=2, search=False)
    assert [(r.loss, r.lr, r.n3, r.batch, r.epochs, r.is_final, r.seed) for r in links.runs(paper)] == [
        ("info-nce", 0.7, 0.2, 64, 5, True, 0),
        ("info-nce", 0.7, 0.2, 64, 5, True, 1),
    ]
    assert {run.loss for run in links.runs(replace(paper, losses=("softmax",)))} == {"softmax"}
    assert {run.loss for run in links.runs(links.PRESETS["quick"])} == set(links.LOSSES)


def test_some_trainings_have_fewer_seeds_unless_they_are_named() -> None:
    paper = replace(links.PRESETS["paper"], graphs=("FB15k-237",), search=False)

    def seeds(config: links.Config, loss: str, model: str = "complex") -> list[int]:
        return [run.seed for run in links.runs(config) if (run.loss, run.model) == (loss, model)]

    assert seeds(paper, "info-nce") == [0, 1, 2, 3, 4]
    assert seeds(paper, "soft-softmax") == [0, 1, 2]
    assert seeds(paper, "sampled-softmax") == seeds(paper, "info-nce", "distmult") == [0]
    assert seeds(replace(paper, seeds=2), "soft-softmax") == [0, 1]
    assert seeds(replace(paper, losses=("sampled-softmax",), seeds=2), "sampled-softmax") == [0, 1]


@pytest.mark.slow
def test_the_study_makes_its_page(made) -> None:
    rows = made("links", *TINY)
    assert {row.config["loss"] for row in rows} == {"info-nce", "expected-info-nce"}
    tables = [block for block in page.section(rows).blocks if isinstance(block, Table)]
    assert len(tables) == 1


def test_missing_data_is_said_before_any_work(tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.delenv("SOFTNCE_DATA", raising=False)
    with pytest.raises(SystemExit):
        study_command.main(["links", "--preset", "paper", "--out", str(tmp_path)])
    assert "SOFTNCE_DATA, which is not set" in capsys.readouterr().err


def row(loss: str, mrr: float, seed: int = 0, **changes) -> Row:
    (run,) = links.runs(replace(links.PRESETS["paper"], graphs=("FB15k-237",), losses=(loss,), seeds=1, search=False))
    config = {**run.__dict__, "seed": seed, **changes}
    times = {"softmax": 100.0, "soft-softmax": 90.0}
    course = {"epoch": [1, 2], "cpu_seconds": [times.get(loss, 10.0), times.get(loss, 10.0) * 2], "mrr": [0.2, mrr]}
    scores = {"mrr": mrr, "hits1": 0.2, "hits3": 0.3, "hits10": 0.6}
    result = {
        "course": {**course, "seconds": course["cpu_seconds"]}, "valid": scores, "test": scores, "test_seen": scores,
        "unseen": 28, "parameters": 1000, "held_bytes": 8000, "step_bytes": 1000,
    }  # fmt: skip
    return Row(f"{loss}{seed}{changes}", config, result, 1.0, "", {})


def test_findings_judge_quality_time_and_soft_targets() -> None:
    names = findings.NAMES
    rows = [row("info-nce", 0.34, 0), row("info-nce", 0.341, 1), row("softmax", 0.35), row("soft-softmax", 0.35)]
    rows += [row("expected-info-nce", 0.35, 0), row("expected-info-nce", 0.3511, 1)]
    found = findings.claims(rows)
    assert found["links-time"].verdict == "beyond"
    assert (
        found["links-time"].ours == f"{names['info-nce']} 20 s, {names['softmax']} 200 s, {names['soft-softmax']} 180 s"
    )
    unfinished = findings.claims([row("info-nce", 0.34), row("soft-softmax", 0.3)])["links-time"]
    assert (unfinished.ours, unfinished.verdict) == (
        f"{names['info-nce']} 20 s, {names['soft-softmax']} more than 180 s",
        "beyond",
    )
    short = findings.claims([row("info-nce", 0.34)])["links-time"]
    assert short.verdict == "undecided"
    assert found["links-soft-targets"].verdict == "beyond"
    behind = [row("info-nce", 0.34 + 0.0001 * seed, seed) for seed in range(2)]
    behind += [row("expected-info-nce", 0.33, seed) for seed in range(2)]
    assert findings.claims(behind)["links-soft-targets"].verdict == "not reproduced"
    assert found["links-quality"].verdict == "undecided"  # WN18RR is missing
    low = findings.claims([row("info-nce", 0.30)])
    assert low["links-quality"].verdict == "not reproduced"
    assert "links-time" not in low


def test_of_several_settings_the_one_best_on_the_validation_split_is_shown() -> None:
    rows = [row("info-nce", 0.30), row("info-nce", 0.34, lr=0.7), row("info-nce", 0.35, lr=0.9, is_final=False)]
    (best,) = findings.finals(rows).values()
    assert best.config["lr"] == 0.7


def test_the_quickest_setting_of_a_loss_counts_for_its_time_trials_too() -> None:
    names = findings.NAMES
    trial = row("soft-softmax", 0.34, lr=0.9, is_final=False)
    trial.result["course"]["cpu_seconds"] = [30.0, 60.0]
    rows = [row("grouped-info-nce", 0.34), row("soft-softmax", 0.35), trial]
    assert findings.quickest(rows, "soft-softmax") == (60.0, True)
    assert findings.quickest([row("softmax", 0.2)], "softmax") == (200.0, False)
    assert findings.quickest(rows, "softmax") is None
    found = findings.claims(rows)["links-time"]
    assert (found.ours, found.verdict) == (f"{names['grouped-info-nce']} 20 s, {names['soft-softmax']} 60 s", "beyond")


def test_the_preset_trains_what_was_best_on_the_validation_split() -> None:
    found = findings.finals(studies.load("links").results(PAPER).rows())
    assert {(graph, loss) for graph, _, loss in found} == set(links.FINAL)
    for (graph, model, loss), trained in found.items():
        config = trained.config
        if model == "distmult":  # as many real dimensions twice
            config = {**config, "rank": config["rank"] // 2}
        assert links.Setting(*(config[name] for name in links.Setting._fields)) == links.FINAL[graph, loss]
