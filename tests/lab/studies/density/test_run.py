import json
from pathlib import Path

import pytest
from rich.progress import Progress

from softnce.lab import studies
from softnce.lab.configuration import from_args, to_mapping
from softnce.lab.experiment.results import run_id
from softnce.lab.report import drawing
from softnce.lab.report.charts import Figure
from softnce.lab.report.page import Table
from softnce.lab.studies.density import gradient_noise
from softnce.lab.studies.density import run as density

TINY = [
    *("--seeds", "2", "--alignments", "[0, 30, 60]", "--epochs", "12", "--patience", "5", "--batch_size", "128"),
    *("--sizes.num_modes", "4", "--sizes.dimension", "5", "--sizes.num_points", "60", "--sizes.num_samples", "512"),
    *("--noise_seeds", "1", "--noise_epochs", "3", "--maps", "[60]"),
    *("--grid.alignments", "[60]", "--grid.seeds", "1", "--grid.epochs", "10", "--grid.batch_sizes", "[64, 128]"),
    *("--contrast.alignments", "[60]", "--contrast.seeds", "1", "--contrast.epochs", "5"),
]


def configuration(*more: str) -> density.Config:
    return from_args(density.Config, [*TINY, *more], prog="p", description="", presets=density.PRESETS)


@pytest.fixture(scope="module")
def finished(tmp_path_factory) -> Path:
    """A directory with the whole study at a tiny size; tests that change it work on a copy."""
    out = tmp_path_factory.mktemp("density")
    studies.load("density").make(configuration("--out", str(out)))
    return out


def test_every_run_of_the_presets_is_distinct_and_typed():
    for config in density.PRESETS.values():
        wanted = density.runs(config)
        fits = [run for run in wanted if isinstance(run, density.Fit)]
        assert len(set(fits)) == len(fits)
    main = [run for run in density.runs(density.PRESETS["paper"]) if isinstance(run, density.Fit)]
    papers = [
        run
        for run in main
        if run.loss in ("nll", "info-nce") and run.optimiser == "adam" and run.lr == 1e-3 and run.epochs == 500
    ]
    assert len(papers) == 9 * 10 * 2


@pytest.mark.slow
def test_every_run_has_a_row_and_none_is_done_twice(finished):
    study = studies.load("density")
    rows = study.results(finished).rows()
    assert len(rows) == len(set(density.runs(configuration())))
    for row in rows:
        if row.config["part"] == "fit":
            assert row.result["kl"] > 0
            assert row.result["parameter_error"] > 0
            assert 1 <= row.result["epochs"] <= row.config["epochs"]
    before = (finished / "density.jsonl").read_bytes()
    study.make(configuration("--out", str(finished)))
    assert (finished / "density.jsonl").read_bytes() == before


@pytest.mark.slow
def test_section_has_every_figure_and_the_measured_numbers(finished):
    rows = studies.load("density").results(finished).rows()
    section = studies.load("density").page.section(rows)
    figures = [block for block in section.blocks if isinstance(block, Figure)]
    assert [figure.name for figure in figures] == ["kl", "noise", "grid", "soft", "maps"]
    for figure in figures:
        assert drawing.png(figure, dpi=40).startswith(b"\x89PNG")
    table, *_ = (block for block in section.blocks if isinstance(block, Table))
    measured = [
        row.result["kl"]
        for row in rows
        if row.config["part"] == "fit"
        and row.config["patience"]
        and (row.config["loss"], row.config["optimiser"], row.config["data"]["alignment"]) == ("nll", "adam", 30.0)
    ]
    assert len(measured) == 2
    assert table.rows[1][:2] == ["30 %", f"{1e3 * sum(measured) / 2:.2f}"]


def test_a_seed_gives_the_same_numbers_alone_and_in_company(tmp_path, finished):
    # The same fit in another batch of fits: other alignments and seeds beside it do not matter.
    study = studies.load("density")
    together = {row.id: row.result for row in study.results(finished).rows()}
    wanted = [
        run
        for run in density.runs(configuration())
        if isinstance(run, density.Fit) and run.patience and run.data.alignment == 30 and run.data.seed == 1
    ]
    with Progress(disable=True) as progress:
        outcomes = list(density.execute(wanted, progress))
    assert len(outcomes) == 7
    for outcome in outcomes:
        name = run_id("density", density.VERSION, to_mapping(outcome.run))
        assert outcome.result["kl"] == pytest.approx(together[name]["kl"], rel=1e-3)


def test_noise_of_the_same_batches_is_measured_once(monkeypatch, finished):
    measured = []
    measure = gradient_noise.measure
    monkeypatch.setattr(
        gradient_noise, "measure", lambda *given, **options: measured.append(given) or measure(*given, **options)
    )
    wanted = [run for run in set(density.runs(configuration())) if isinstance(run, density.Noise)]
    with Progress(disable=True) as progress:
        outcomes = list(density.execute(wanted, progress))
    assert len(measured) == len({(run.data, run.batch_size) for run in wanted}) < len(wanted) == len(outcomes)
    for outcome in outcomes:
        assert outcome.result.keys() == {*outcome.run.losses, "largest_curvature"}
        assert [float(lr) for lr in outcome.result["nll"]["excess_kl"]] == list(outcome.run.lrs)


@pytest.mark.parametrize(
    ("parts", "figures"),
    [
        (("fit",), ["kl", "grid", "soft"]),
        (("fit", "noise"), ["kl", "noise", "grid", "soft"]),
        (("fit", "optimum", "map"), ["kl", "grid", "soft", "maps"]),
    ],
)
def test_a_page_of_what_there_is_while_the_rest_still_runs(tmp_path, finished, parts, figures):
    lines = (finished / "density.jsonl").read_text().splitlines()
    kept = [line for line in lines if json.loads(line)["config"]["part"] in parts]
    (tmp_path / "density.jsonl").write_text("\n".join(kept) + "\n")
    section = studies.load("density").page.section(studies.load("density").results(tmp_path).rows())
    assert [block.name for block in section.blocks if isinstance(block, Figure)] == figures


@pytest.mark.slow
def test_both_losses_reach_the_statistical_limit():
    # The claim of the study's first figure at one alignment, four seeds; 2n·KL is about chi-square with 380 degrees
    # of freedom, so the mean over 4 seeds has a standard error of 3.6 %: 15 % is four of them.
    from softnce.lab.studies.density.error import kl_divergence, statistical_limit
    from softnce.lab.studies.density.fits import Stopping, Variant, fit
    from softnce.lab.studies.density.mixture import sample_mixtures

    seeds = [0, 1, 2, 3]
    data = sample_mixtures([60] * 4, seeds)
    fits = fit(data, [Variant("nll"), Variant("info-nce")], seeds, stopping=Stopping())
    kl = kl_divergence(data, fits.weights).mean(0)
    assert kl.tolist() == pytest.approx([statistical_limit(20, 20, 32_000)] * 2, rel=0.15)
