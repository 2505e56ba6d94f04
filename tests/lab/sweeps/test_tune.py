"""A search: what is searched, trials continued and shared, the best one found. The trainings are made up."""

import math

import pytest

from softnce.cli import main
from softnce.lab import recipes
from softnce.lab.commands.train import read_recipe
from softnce.lab.sweeps.many import Trained
from softnce.lab.sweeps.tune import Choice, Range, Search, search_space

DIGITS = recipes.load("laptop/digits")
SPACE = {"optimiser.base_lr": Range(1e-5, 1e-1, False), "loss.name": Choice(("soft-ce", "soft-target-info-nce"))}


def build(values):
    words = [word for name, value in values.items() for word in (f"--{name}", value)]
    return read_recipe("laptop/digits", DIGITS, words)[0]


def score(recipe):
    """Best at a rate of 1e-3."""
    return 1 - 0.1 * abs(math.log10(recipe.optimiser.base_lr) + 3) - 0.05 * (recipe.loss.name == "soft-ce")


def trained(run):
    return Trained(run, {"best": {"top1": score(run.recipe)}})


def here(runs):
    return map(trained, runs)


@pytest.fixture
def search(tmp_path):
    pytest.importorskip("optuna", reason="needs softnce[tune]")
    return lambda: Search(tmp_path, SPACE, "top1", build)


def test_what_is_searched():
    words = ["--optimiser.base_lr", "1e-4..1e-2", "--schedule.epochs=2..5", "--loss.name", "nll,soft-ce"]
    single, space = search_space(DIGITS, [*words, "--data.holdout", "0.2", "--data.dir", "../x"])
    assert single == ["--data.holdout", "0.2", "--data.dir", "../x"]
    assert space == {
        "optimiser.base_lr": Range(1e-4, 1e-2, False),
        "schedule.epochs": Range(2, 5, True),
        "loss.name": Choice(("nll", "soft-ce")),
    }
    assert [found.log for found in list(space.values())[:2]] == [True, False]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "nothing to search"),
        (["--optimiser.base_lr", "1e-4..x"], "--optimiser.base_lr: got '1e-4..x', need LOW..HIGH"),
        (["--optimiser.base_lr", "1..0.1"], "LOW below HIGH"),
        (["--optimiser.base_lr", "1..inf"], "both finite"),
    ],
)
def test_what_cannot_be_searched_is_named(words, message):
    with pytest.raises(ValueError, match=message):
        search_space(DIGITS, words)


def test_good_values_are_found(search):
    trials = list(search().run(25, here))
    assert [trial.number for trial in trials] == list(range(25))
    best = search().best_first()[0]
    assert best.metric == max(trial.metric for trial in trials)
    assert best.metric > 0.95
    assert score(search().recipe(best)) == best.metric


def test_a_stopped_search_goes_on_with_the_trial_it_left(search):
    stopped = []

    def stops(runs):
        for run in runs:
            stopped.append(run)
            if len(stopped) == 3:
                raise KeyboardInterrupt
            yield trained(run)

    with pytest.raises(KeyboardInterrupt):
        list(search().run(5, stops))
    again = list(search().run(5, here))
    assert [trial.number for trial in again] == [2, 3, 4]
    assert build(again[0].values) == stopped[2].recipe  # the same values in the same folder
    assert list(search().run(5, here)) == []
    assert [trial.number for trial in search().run(6, here)] == [5]


def test_two_processes_share_the_trials(search):
    first, second = search().run(6, here), search().run(6, here)
    numbers = [next(first).number, next(second).number, next(first).number, next(second).number]
    numbers += [trial.number for trial in first] + [trial.number for trial in second]
    assert sorted(numbers) == list(range(6))


def test_a_training_that_failed_is_a_failed_trial(search):
    def fails(runs):
        return (Trained(run, {}, "the loss is nan") for run in runs)

    assert [trial.metric for trial in search().run(2, fails)] == [None, None]
    assert search().best_first() == []


def test_another_search_needs_another_folder(search, tmp_path):
    search()
    with pytest.raises(ValueError, match="holds a search for"):
        Search(tmp_path, SPACE, "nll", build)


@pytest.mark.parametrize(
    ("word", "value", "said"),
    [
        ("targets.smoothing", "0.3", "targets.smoothing was 0.1, is 0.3"),
        ("schedule.epochs", "99", "schedule was .*, is .*epochs=99"),  # longer trials would look better
    ],
)
def test_trials_of_other_recipes_are_not_compared(search, tmp_path, word, value, said):
    search()
    with pytest.raises(ValueError, match=f"holds a search in another recipe: {said}"):
        Search(tmp_path, SPACE, "top1", lambda values: build(values | {word: value}))
    Search(tmp_path, SPACE, "top1", lambda values: build(values | {"data.workers": "0"}))


@pytest.mark.parametrize(
    "words",
    [["tune", "laptop/digits", "--optimiser.base_lr", "1e-3..1e-1"], ["train", "laptop/digits", "--seeds", "2"]],
)
def test_a_folder_that_cannot_be_written_is_refused(words, tmp_path, capsys):
    pytest.importorskip("optuna", reason="needs softnce[tune]")
    (tmp_path / "file").touch()
    with pytest.raises(SystemExit) as stop:
        main([*words, "--data.holdout", "0.2", "--out", str(tmp_path / "file" / "out")])
    assert stop.value.code == 2
    assert f"softnce {words[0]}: out: cannot write in {tmp_path}/file/out: Not a directory" in capsys.readouterr().err


def test_the_folder_of_a_run_is_not_searched_in(search, tmp_path):
    (tmp_path / "recipe.yaml").touch()
    with pytest.raises(ValueError, match=r"holds a run: choose another --out$"):
        search()


def test_a_damaged_journal_is_named(search, tmp_path):
    (tmp_path / "optuna.log").write_text("no journal\n")
    with pytest.raises(ValueError, match=r"optuna.log is damaged .*: choose another --out"):
        search()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["laptop/digits"], "nothing to search"),
        (["laptop/digits", "--optimiser.base_lr", "1e-4..1e-2"], "the validation data are the test data"),
        (["laptop/digits", "--optimiser.base_lr", "1e-4..1e-2", "--data.hold", "1"], "did you mean --data.holdout"),
        (["laptop/digits", "--optimiser.base_lr", "1e-4..1e-2", "--trials", "0"], "trials: got 0"),
        (["laptop/digits", "--optimiser.base_rl", "1e-4..1e-2"], "did you mean --optimiser.base_lr"),
        (
            ["laptop/digits", "--data.holdout", "0.2", "--loss.name", "soft-ce,soft-c"],
            "--loss.name: got 'soft-c', need",
        ),
        (["laptop/digits", "--data.holdout", "0.2", "--targets.smoothing", "0..2"], "targets.smoothing: got 2, need"),
        (["--trials", "3"], "the first argument must be a RECIPE"),
    ],
)
def test_the_command_refuses_in_one_line(words, message, capsys):
    with pytest.raises(SystemExit) as stop:
        main(["tune", *words])
    error = capsys.readouterr().err
    assert stop.value.code == 2
    assert message in error
    assert error.count("\n") == 1


@pytest.mark.slow
def test_the_command_writes_the_best_recipe(tmp_path, monkeypatch, capsys):
    pytest.importorskip("optuna", reason="needs softnce[tune]")
    monkeypatch.setattr("softnce.lab.sweeps.many.engine", lambda *arguments: here)
    words = ["laptop/digits", "--data.holdout", "0.2", "--optimiser.base_lr", "1e-4..1e-2", "--trials", "4"]
    main(["tune", *words, "--out", str(tmp_path)])
    best = recipes.load(str(tmp_path / "best.yaml"))
    assert best.data.holdout == 0.2
    assert f"{score(best):.4f}" in capsys.readouterr().out
