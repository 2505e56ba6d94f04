"""The runner: results saved as they come, resumed, shared; and the command's answers to bad input."""

import re
from functools import partial
from pathlib import Path

import pytest

from softnce.lab import studies
from softnce.lab.commands.study import main
from softnce.lab.diverged import Diverged
from softnce.lab.experiment.study import timed


@pytest.fixture
def toy(install):
    """What a study named ``toy`` runs."""
    return install("toy").run


def lines(out: Path) -> list[str]:
    return (out / "toy.jsonl").read_text().splitlines()


def test_list_names_every_study_with_its_first_line(capsys, toy):
    main(["list"])
    listed = capsys.readouterr().out
    assert re.search(r"^  toy +How large are squares\? A study for tests\.$", listed, re.M)
    assert re.search(r"^  density +Does InfoNCE estimate", listed, re.M)


def test_help_explains_study_and_options(capsys, toy):
    with pytest.raises(SystemExit) as exit:
        main(["toy", "--help"])
    assert exit.value.code == 0
    text = capsys.readouterr().out
    for part in ("The second paragraph explains.", "--power", "exponent, in 100 % of the cases", "--seeds", "--out"):
        assert part in text


def test_runs_are_saved_once_and_other_presets_add_theirs(tmp_path, toy):
    main(["toy", "--out", str(tmp_path)])
    assert toy.computed == [0, 1, 2]
    main(["toy", "--out", str(tmp_path)])
    assert toy.computed == [0, 1, 2]
    main(["toy", "--preset", "paper", "--out", str(tmp_path)])
    assert toy.computed == [0, 1, 2, 3, 4, 5]
    main(["toy", "--seeds", "4", "--power", "3", "--out", str(tmp_path)])
    assert toy.computed == [0, 1, 2, 3, 4, 5, 0, 1, 2, 3]
    assert len(lines(tmp_path)) == 10


def test_an_interrupted_study_goes_on_where_it_stopped(tmp_path, toy, capsys):
    toy.stop_before = 2
    with pytest.raises(SystemExit) as exit:
        main(["toy", "--preset", "paper", "--out", str(tmp_path)])
    assert exit.value.code == 130
    assert "2 runs were finished and saved" in capsys.readouterr().err
    kept = lines(tmp_path)
    assert len(kept) == 2
    toy.stop_before = None
    main(["toy", "--preset", "paper", "--out", str(tmp_path)])
    assert toy.computed == [0, 1, 2, 3, 4, 5]
    assert lines(tmp_path)[:2] == kept


def test_a_diverged_run_is_named_in_one_line(tmp_path, toy, monkeypatch):
    def diverge(run):
        raise Diverged("the loss is nan at step 3")

    monkeypatch.setattr(toy, "execute", lambda todo, progress: map(partial(timed, diverge), todo))
    with pytest.raises(SystemExit) as exit:
        main(["toy", "--out", str(tmp_path)])
    assert exit.value.code == (
        "softnce study toy: a run diverged, the loss is nan at step 3: Run(power=2, seed=0); finished runs are saved; "
        "try smaller learning rates"
    )


def test_a_damaged_line_is_named_and_only_its_run_done_again(tmp_path, toy, capsys):
    main(["toy", "--out", str(tmp_path)])
    good = lines(tmp_path)
    (tmp_path / "toy.jsonl").write_text("\n".join([good[0], good[1][:40], good[2]]) + "\n")
    capsys.readouterr()
    main(["toy", "--out", str(tmp_path)])
    assert toy.computed == [0, 1, 2, 1]
    assert re.search(r"^warning: .*toy\.jsonl:2: damaged line", capsys.readouterr().err, re.M)
    assert lines(tmp_path)[:3] == [good[0], good[1][:40], good[2]]
    assert len(lines(tmp_path)) == 4


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["toys"], "softnce study: unknown study 'toys'; did you mean 'toy'?"),
        (["xyz"], "softnce study: unknown study 'xyz'; `softnce study list` lists the studies"),
        (["toy", "--seeds", "0"], "softnce study toy: seeds: got 0, need at least 1"),
        (["toy", "--power", "-1"], "softnce study toy: power: got -1, need at least 0"),
        (["toy", "--powr", "3"], "softnce study toy: unknown option --powr; did you mean --power?"),
        (["toy", "--preset", "slow"], "softnce study toy: --preset: got 'slow', need one of quick, paper"),
        (
            ["density", "--alignments", "[0, 100]"],
            "softnce study density: alignments: got 100, need at least 0 and less than 100",
        ),
        (
            ["density", "--alignments", "[-5]"],
            "softnce study density: alignments: got -5, need at least 0 ",
        ),
        (["density", "--seeds", "0"], "softnce study density: seeds: got 0, need at least 1"),
        (["density", "--sizes.num_modes", "30"], "softnce study density: num_modes: got 30, need 2 to 20"),
        (["density", "--batch_size", "40000"], "softnce study density: batch_size: got 40000, need at most 32000"),
        (["digits", "--train_size", "2000"], "softnce study digits: train_size: got 2000"),
    ],
)
def test_bad_input_is_one_line(argv, message, capsys, toy):
    with pytest.raises(SystemExit) as exit:
        main(argv)
    assert exit.value.code == 2
    error = capsys.readouterr().err
    assert error.startswith(message)
    assert error.count("\n") == 1


def test_unwritable_out_is_one_line(tmp_path, capsys, toy):
    (tmp_path / "file").write_text("")
    with pytest.raises(SystemExit) as exit:
        main(["toy", "--out", str(tmp_path / "file")])
    assert exit.value.code == 2
    error = capsys.readouterr().err
    assert error.startswith("softnce study toy: out: cannot write ")
    assert error.count("\n") == 1
    assert toy.computed == [], "nothing was computed in vain"


def test_all_studies_one_after_another(toy, install, tmp_path, monkeypatch, capsys):
    poor = (
        Path(toy.__file__)
        .read_text()
        .replace("    for run in todo", '    raise ValueError("data: none here")\n    for run in todo')
    )
    install("poor", run=poor)
    monkeypatch.setattr(studies, "__path__", [str(tmp_path / "more")])  # no others
    with pytest.raises(SystemExit) as stop:
        main(["all", "--preset", "quick", "--out", str(tmp_path / "out")])
    assert stop.value.code == 2
    found = capsys.readouterr()
    assert "softnce study poor: data: none here" in found.err
    assert "could not run poor" in found.err
    assert len(lines(tmp_path / "out")) == 3  # the other one was run all the same


def test_all_takes_only_what_all_studies_share(tmp_path, capsys):
    with pytest.raises(SystemExit):
        main(["all", "--power", "3", "--out", str(tmp_path)])
    assert "power" in capsys.readouterr().err
