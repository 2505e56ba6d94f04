import pytest

from softnce.lab import recipes
from softnce.lab.sweeps.grid import combinations, folder_name, several

DIGITS, TISSUE = recipes.load("laptop/digits"), recipes.load("laptop/tissue")


def test_options_with_several_values():
    words = ["--seeds", "2", "--data.holdout=0.1", "--optimiser.base_lr", "1e-4,3e-4", "--data.mean", "[0.5,0.5,0.5]"]
    single, varied = several(DIGITS, [*words, "--data.dir", "a,b", "--resume"])
    assert single == ["--data.holdout", "0.1", "--data.mean", "[0.5,0.5,0.5]", "--data.dir", "a,b", "--resume"]
    assert varied == {"seed": ["0", "1"], "optimiser.base_lr": ["1e-4", "3e-4"]}
    options = combinations(single, varied)
    assert len(options) == 4
    assert options[1] == [*single, "--seed", "0", "--optimiser.base_lr", "3e-4"]


def test_all_folds():
    assert several(TISSUE, ["--folds", "all"]) == ([], {"data.fold": ["0", "1", "2", "3", "4"]})


@pytest.mark.parametrize(
    ("recipe", "words", "message"),
    [
        (DIGITS, ["--seeds", "0"], "--seeds: got '0', need a number of at least 1"),
        (DIGITS, ["--seeds", "many"], "--seeds: got 'many'"),
        (DIGITS, ["--folds", "all"], "--folds: data.kind digits has no folds"),
        (TISSUE, ["--folds", "3"], "--folds: got '3', need all"),
        (DIGITS, ["--optimiser.base_lr", "1e-4,1e-4"], "--optimiser.base_lr: got '1e-4,1e-4', need different values"),
        (DIGITS, ["--optimiser.base_lr", "1e-4,"], "need different values"),
        (DIGITS, ["1e-4"], "unexpected argument '1e-4'"),
    ],
)
def test_what_is_no_sweep_is_named(recipe, words, message):
    with pytest.raises(ValueError, match=message):
        several(recipe, words)


def test_folders_tell_trainings_apart():
    assert folder_name(DIGITS, ["optimiser.base_lr", "seed"]) == "base_lr=0.004,seed=0"
    names = folder_name(DIGITS, ["loss.name", "model.name"])
    assert names == "loss.name=soft-target-info-nce,model.name=test_resnet"
