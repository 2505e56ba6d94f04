import json
from pathlib import Path

import numpy as np
import pytest

from softnce.lab.data.celltypegraph import Specimen
from softnce.lab.data.folds import honest_folds, published_folds


def specimens(**stages: int) -> list[Specimen]:
    return [Specimen(Path(stage) / f"{i:02d}.h5") for stage, n in stages.items() for i in range(n)]


BENCHMARK_SIZES = dict(zip("abcdefghi", (10, 7, 10, 9, 10, 10, 9, 9, 10), strict=True))


def test_published_specimens(real_data: Path):
    """The rule, applied to the published names, gives the published folds, in order."""
    path = real_data / "celltypegraph_5fold_specimens.json"
    if not path.exists():
        pytest.skip(f"{path.name} is not in SOFTNCE_DATA")
    published = json.loads(path.read_text())
    names = sorted(tuple(name.split("_", 1)) for fold in published.values() for name in fold)
    folds = published_folds([Specimen(Path(stage) / f"{stack}.h5") for stage, stack in names])
    assert [[s.name for s in fold.test] for fold in folds] == [published[f"val_fold_{i}"] for i in range(5)]


def test_the_rule_in_its_own_words():
    """np.random.seed(0), shuffle, array_split, stage by stage."""
    folds = published_folds(specimens(**BENCHMARK_SIZES))
    state = np.random.get_state()  # noqa: NPY002
    for stage, n in BENCHMARK_SIZES.items():
        names = [f"{stage}_{i:02d}" for i in range(n)]
        np.random.seed(0)  # noqa: NPY002
        np.random.shuffle(names)  # noqa: NPY002
        for fold, part in zip(folds, np.array_split(names, 5), strict=True):
            assert [s.name for s in fold.test if s.stage == stage] == part.tolist()
    np.random.set_state(state)  # noqa: NPY002
    assert [len(fold.test) for fold in folds] == [18, 18, 17, 17, 14]
    assert [len(fold.train) for fold in folds] == [66, 66, 67, 67, 70]


def test_folds_leave_numpys_global_generator_alone():
    np.random.seed(5)  # noqa: NPY002
    expected = np.random.random()  # noqa: NPY002
    np.random.seed(5)  # noqa: NPY002
    published_folds(specimens(a=10))
    assert np.random.random() == expected  # noqa: NPY002


@pytest.mark.parametrize("make", [published_folds, honest_folds])
def test_every_specimen_is_tested_once_and_never_trained_on_in_its_fold(make):
    everything = specimens(**BENCHMARK_SIZES)
    folds = make(everything)
    assert sorted(s.name for fold in folds for s in fold.test) == sorted(s.name for s in everything)
    for fold in folds:
        assert not set(fold.train) & (set(fold.test) | set(fold.selection))
        assert set(fold.train) | set(fold.test) | set(fold.selection) == set(everything)


def test_published_epoch_is_chosen_on_the_test_specimens_the_honest_one_is_not():
    everything = specimens(**BENCHMARK_SIZES)
    for published, honest in zip(published_folds(everything), honest_folds(everything), strict=True):
        assert published.selection == published.test == honest.test
        assert not set(honest.selection) & set(honest.test)
        assert sorted(s.stage for s in honest.selection) == list(BENCHMARK_SIZES), "one of each stage"


def test_too_few_specimens():
    with pytest.raises(ValueError, match="8 specimens in 2 stages cannot fill 5 folds"):
        published_folds(specimens(a=4, b=4))
    with pytest.raises(ValueError, match="k: got 1"):
        honest_folds(specimens(a=10), k=1)


def test_a_small_stage_is_spread_over_some_folds():
    folds = published_folds(specimens(a=5, b=2))
    assert [len(fold.test) for fold in folds] == [2, 2, 1, 1, 1]
