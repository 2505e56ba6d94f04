import pytest

from softnce.lab import recipes
from softnce.lab.commands.recipes import main


@pytest.mark.slow
def test_printed_table_shows_the_effective_values(capsys):
    main([])
    lines = capsys.readouterr().out.splitlines()
    cells = {line.split()[0]: " ".join(line.split()[1:]) for line in lines[1:]}
    soft = "adamw 0.00055 0.0022 1024 100 5 0.05 0.65 0.1 0.8 1 rand-m9-mstd0.5-inc1 0.1"
    hard = "adamw 0.00025 0.001 1024 100 5 0.05 0.65 0 0 0 rand-m9-mstd0.5-inc1 0.1"
    assert cells["imagenet/soft-target-info-nce"] == soft
    assert cells["tiny-imagenet/info-nce"] == hard


def test_shown_recipe_can_be_loaded(capsys, tmp_path):
    main(["cifar100/nll"])
    file = tmp_path / "shown.yaml"
    file.write_text(capsys.readouterr().out)
    assert recipes.load(str(file)) == recipes.load("cifar100/nll")


def test_unknown_recipe_names_the_nearest(capsys):
    with pytest.raises(SystemExit, match="did you mean 'cifar100/nll'"):
        main(["cifar100/nl"])
