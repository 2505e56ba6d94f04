"""Learning rates are chosen by the held-out score of seed 0, never by the test score."""

from dataclasses import replace

from softnce.lab.configuration import to_mapping
from softnce.lab.experiment import search
from softnce.lab.experiment.comparison import difference, percent
from softnce.lab.experiment.probe import Probe
from softnce.lab.experiment.results import Row
from softnce.lab.experiment.statistics import signed
from softnce.lab.recipes.recipe import Loss

RATES = (1e-4, 1e-3)
A, B = Probe(loss=Loss("soft-ce")), Probe(loss=Loss("soft-target-info-nce"))


def row(probe, held_out, test=0.5):
    result = {"held_out": {"top1": held_out}, "test": {"top1": test}}
    return Row("", to_mapping(probe), result, 0.0, "", {})


def at(probe, lr, seed=0):
    return replace(probe, lr=lr, seed=seed)


def test_trials_then_all_seeds_at_the_best_rate():
    assert search.trials([A, B], RATES) == [at(A, 1e-4), at(A, 1e-3), at(B, 1e-4), at(B, 1e-3)]
    rows = [row(at(A, 1e-4), 0.7, 0.1), row(at(A, 1e-3), 0.6, 0.9), row(at(B, 1e-4), 0.5)]
    # B is not finished; A's test scores say otherwise and are not asked
    assert search.tuned([A, B], rows, RATES, seeds=2) == [at(A, 1e-4, 0), at(A, 1e-4, 1)]


def test_rows_at_other_rates_and_settings_are_left_out():
    rows = [row(at(A, 1e-4), 0.7), row(at(A, 1e-3), 0.6), row(at(A, 1e-4, 1), 0.1), row(at(A, 1e-3, 1), 0.9)]
    (chosen,) = search.at_best_rate(rows, RATES).values()
    assert [(r.config["lr"], r.config["seed"]) for r in chosen] == [(1e-4, 0), (1e-4, 1)]


def test_the_mean_of_several_seeds_may_decide():
    assert search.trials([A], RATES, 2) == [at(A, 1e-4, 0), at(A, 1e-4, 1), at(A, 1e-3, 0), at(A, 1e-3, 1)]
    first, second = [row(at(A, 1e-4), 0.7), row(at(A, 1e-3), 0.6)], [row(at(A, 1e-4, 1), 0.1), row(at(A, 1e-3, 1), 0.9)]
    unfinished = row(at(A, 1e-4, 2), 1.0)
    beyond = [row(at(A, 1e-4, 3), 1.0), row(at(A, 1e-3, 3), 0.0)]
    rows = [*first, *second, unfinished, *beyond]
    assert list(search.best_rates(rows, RATES).values()) == [1e-4]
    assert list(search.best_rates(rows, RATES, searched=3).values()) == [1e-3]
    assert list(search.best_rates(first, RATES, searched=3).values()) == [1e-4]


def test_differences_are_paired_by_seed():
    ours = [row(at(A, 1e-3, seed), 0.5, 0.6 + seed / 10) for seed in (0, 1, 2)]
    theirs = [row(at(B, 1e-3, seed), 0.5, 0.5 + seed / 10) for seed in (2, 1)]
    found = difference(ours, theirs, percent("top1"))
    assert found.count == 2
    assert abs(found.mean - 10) < 1e-9
    assert signed(found, 1) == "+10.0 [+10.0, +10.0]"
    assert found.spread(1) == "10.0 ± 0.0"


def test_the_rates_of_the_search_are_those_most_settings_have():
    c = replace(A, batch=8)
    rows = [row(at(A, lr), 0.5) for lr in RATES] + [row(at(B, lr), 0.5) for lr in RATES] + [row(at(c, 3.0), 0.5)]
    assert search.tried_rates(rows) == list(RATES)
    assert search.tried_rates([]) == []
