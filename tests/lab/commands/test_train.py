import json
from importlib.util import find_spec

import pytest
import torch
from PIL import Image

from softnce.lab import recipes
from softnce.lab.commands import evaluate, train


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["laptop/cora", "--data.dir", "/nowhere"], "missing ind.cora.x"),
        (["laptop/tissues"], "did you mean 'laptop/tissue'"),
        (["celltypegraph/nll", "--data.dir", "/nowhere"], "no CellTypeGraph data in /nowhere"),
        (["celltypegraph/nll", "--optimiser.layers", "3"], "did you mean --model.layers"),
        (["laptop/cora", "--data.augment", "paper"], "data.augment paper needs cells with positions"),
        (["laptop/tissue", "--loss.name", "nll"], "nll takes hard labels"),
    ],
)
def test_commands_end_in_one_line(argv, message, capsys):
    with pytest.raises(SystemExit) as stopped:
        train.main(argv)
    text = f"{stopped.value}{capsys.readouterr().err}"
    assert message in text
    assert len(text.strip().splitlines()) == 1


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--out", "x"], "the first argument must be a RECIPE"),
        (["laptop/digit"], "did you mean 'laptop/digits'"),
        (["--resume", "/nowhere"], "--resume /nowhere: no run there"),
        (["cifar100/nll", "--data.dir", "/nowhere", "--compute.precision", "32"], "data.dir /nowhere is not a folder"),
        (["cifar100/nll"], "fp16 needs a GPU"),
        (["laptop/digits", "--loss.name", "nll"], "nll takes hard labels"),
        (["laptop/digits", "--compute.wandb", "mine"], "compute.wandb needs wandb: pip install 'softnce[wandb]'"),
        (["laptop/digits", "--optimiser.batch", "3000"], "exceeds the 1438 training samples"),
        (["laptop/digits", "--optimiser.bacth", "30"], "did you mean --optimiser.batch"),
        (["laptop/digits", "--compute.accelerator", "gpu"], "compute.accelerator gpu: torch finds none"),
        (["laptop/digits", "--data.augment", "foo"], "data.augment: got 'foo', need none, crop or a string of timm"),
        (["laptop/digits", "--compute.nodes", "2"], "compute.nodes 2 needs MASTER_ADDR, MASTER_PORT, NODE_RANK"),
        (
            ["laptop/digits", "--data.kind", "folder", "--data.dir", "a\x1b[31mb"],
            r"data.dir a\x1b[31mb is not a folder",
        ),
    ],
)
def test_mistakes_end_in_one_line(argv, message, capsys, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr("softnce.lab.train.run._is_installed", lambda name: False)
    with pytest.raises(SystemExit) as stopped:
        train.main(argv)
    text = f"{stopped.value}{capsys.readouterr().err}"
    assert message in text
    assert len(text.strip().splitlines()) == 1


def test_a_folder_called_wandb_is_not_wandb(tmp_path, monkeypatch):
    """As wandb itself leaves one behind: it can be imported."""
    (tmp_path / "wandb").mkdir()
    monkeypatch.syspath_prepend(tmp_path)
    if find_spec("wandb").origin is not None:
        pytest.skip("wandb is installed")
    with pytest.raises(SystemExit, match=r"compute.wandb needs wandb: pip install"):
        train.main(["laptop/digits", "--compute.wandb", "mine"])


def test_other_seeds_and_folds_have_folders_of_their_own(tmp_path):
    def folder(*argv):
        return str(train.parse(list(argv)).trainings[0].out)

    assert folder("laptop/digits") == folder("laptop/digits", "--seed", "0") == "runs/laptop-digits"
    assert folder("laptop/digits", "--seed", "3") == "runs/laptop-digits-seed3"
    assert folder("laptop/tissue", "--data.fold", "2") == "runs/laptop-tissue-fold2"
    assert folder("laptop/tissue", "--data.fold=2", "--seed=1") == "runs/laptop-tissue-seed1-fold2"
    assert folder("laptop/digits", "--seed", "3", "--out", ".") == "."
    file = tmp_path / "mine.yaml"
    file.write_text("seed: 3")
    assert folder(str(file)).endswith("mine")
    assert folder(str(file), "--seed", "0").endswith("mine-seed0")


@pytest.mark.parametrize("inherited", ["3", "[a.yaml]", "{a: b}"])
def test_inheriting_no_file_is_one_line(tmp_path, inherited, capsys):
    file = tmp_path / "mine.yaml"
    file.write_text(f"inherit: {inherited}")
    with pytest.raises(SystemExit, match=r"mine\.yaml: inherit: got .*, need the path of a recipe file"):
        train.main([str(file)])


def test_command_line_overrides_the_recipe(tmp_path):
    command = train.parse(["laptop/digits", "--optimiser.batch", "64", "--out", str(tmp_path), "--resume"])
    (training,) = command.trainings
    assert training.recipe.optimiser.batch == 64
    assert training.recipe.model.name == recipes.load("laptop/digits").model.name
    assert (training.out, command.options.out, command.options.resume) == (tmp_path, tmp_path, True)


def test_several_values_are_several_trainings(tmp_path):
    words = ["laptop/digits", "--seeds", "2", "--optimiser.base_lr", "1e-3,4e-3", "--out", str(tmp_path)]
    command = train.parse(words)
    assert [str(training.out.relative_to(tmp_path)) for training in command.trainings] == [
        "seed=0,base_lr=0.001", "seed=0,base_lr=0.004", "seed=1,base_lr=0.001", "seed=1,base_lr=0.004",
    ]  # fmt: skip
    assert [(t.recipe.seed, t.recipe.optimiser.base_lr) for t in command.trainings][-1] == (1, 4e-3)


def test_several_trainings_have_a_folder_of_their_own_by_default():
    """Not that of a single run of the recipe."""
    words = ["laptop/digits", "--seeds", "2"]
    assert {str(training.out.parent) for training in train.parse(words).trainings} == {"runs/laptop-digits-sweep"}


def test_equal_values_are_no_sweep():
    with pytest.raises(ValueError, match=r"--optimiser.base_lr 1e-3,0.001: two of these trainings are the same"):
        train.parse(["laptop/digits", "--optimiser.base_lr", "1e-3,0.001"])


def test_help_teaches(capsys):
    train.main(["--help"])
    assert "softnce train laptop/digits" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        train.main(["laptop/digits", "--help"])
    text = capsys.readouterr().out
    assert "--targets.smoothing" in text
    assert "default: 0.1" in text


@pytest.mark.slow
def test_steps_that_end_within_an_epoch_claim_no_score(tmp_path, capsys):
    options = ["--optimiser.batch", "512", "--data.workers", "0", "--compute.progress", "false"]
    # 1,437 training images make 2 steps an epoch
    train.main(["laptop/digits", *options, "--schedule.max_steps", "3", "--out", str(tmp_path / "three")])
    results = json.loads((tmp_path / "three" / "results.json").read_text())
    assert results["best"]["step"] == 2
    assert results["last"] == {"epoch": 1, "step": 3}
    capsys.readouterr()
    train.main(["laptop/digits", *options, "--schedule.max_steps", "1", "--out", str(tmp_path / "one")])
    assert "no epoch was completed" in capsys.readouterr().out
    train.main(["laptop/digits", *options, "--schedule.max_steps", "0", "--out", str(tmp_path / "none")])
    assert capsys.readouterr().out == "no epoch was completed, so nothing was measured\n"
    evaluate.main(
        [str(tmp_path / "one" / "last.ckpt"), "--out", str(tmp_path), "--data.workers", "0", "--progress", "false"]
    )


@pytest.mark.slow
def test_more_steps_can_be_asked_for_later(tmp_path):
    options = ["--optimiser.batch", "512", "--data.workers", "0", "--compute.progress", "false"]
    options += ["--schedule.epochs", "2", "--schedule.warmup_epochs", "1"]  # of 2 steps each
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    train.main(["laptop/digits", *options, "--out", str(whole)])
    train.main(["laptop/digits", *options, "--out", str(parts), "--schedule.max_steps", "3"])
    train.main(["--resume", str(parts), "--schedule.max_steps", "-1"])
    assert (whole / "results.json").read_text() == (parts / "results.json").read_text()
    a, b = (torch.load(folder / "last.ckpt", weights_only=True)["state_dict"] for folder in (whole, parts))
    assert all(torch.equal(a[name], b[name]) for name in a)


@pytest.mark.slow
def test_a_run_that_cannot_go_on_says_so(tmp_path, capsys):
    options = ["--optimiser.batch", "512", "--data.workers", "0", "--compute.progress", "false"]
    train.main(["laptop/digits", *options, "--schedule.max_steps", "1", "--out", str(tmp_path)])
    with pytest.raises(SystemExit, match=r"no checkpoint \S*best\.ckpt; there is \S*last\.ckpt"):
        evaluate.main([str(tmp_path)])
    (tmp_path / "last.ckpt").write_bytes(b"")
    with pytest.raises(SystemExit, match=r"last\.ckpt is damaged \(it is truncated, damaged or no file"):
        train.main(["--resume", str(tmp_path)])
    (tmp_path / "last.ckpt").unlink()
    train.main(["--resume", str(tmp_path)])
    assert "the run starts from the beginning" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize("workers", ["0", "1"])
def test_a_broken_image_is_one_line(tmp_path, workers):
    for part in ("train", "val"):
        for name in ("a", "b"):
            folder = tmp_path / part / name
            folder.mkdir(parents=True)
            for i in range(4):
                Image.new("RGB", (8, 8), (40 * i, 0, 0)).save(folder / f"{i}.png")
    broken = tmp_path / "train" / "a" / "2.png"
    broken.write_bytes(broken.read_bytes()[:40])
    options = [
        *("--data.kind", "folder", "--data.dir", str(tmp_path), "--data.workers", workers, "--optimiser.batch", "4"),
        *("--compute.progress", "false", "--out", str(tmp_path / "run")),
    ]
    with pytest.raises(SystemExit, match=r"^softnce train: cannot read \S*2\.png: [^\n]*--data\.corrupt skip[^\n]*$"):
        train.main(["laptop/digits", *options])
    broken.write_bytes((tmp_path / "train" / "b" / "2.png").read_bytes())
    train.main(["laptop/digits", *options[:-1], str(tmp_path / "whole"), "--schedule.max_steps", "2"])
    (tmp_path / "val" / "b" / "1.png").write_bytes(b"")
    with pytest.raises(SystemExit, match=r"^softnce evaluate: cannot read \S*1\.png: [^\n]*$"):
        evaluate.main([str(tmp_path / "whole"), "--data.workers", workers, "--progress", "false"])


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["laptop/digits", "--optimiser.batch", "1"], "optimiser.batch"),
        (["--resume", "{run}", "--out", "elsewhere"], "omit --out"),
    ],
)
def test_what_cannot_be_is_said_before_any_work(run, words, said, capsys):
    words = [word.format(run=run[0] / "out") for word in words]
    with pytest.raises(SystemExit) as stop:
        train.main(words)
    assert said in f"{stop.value.code} {capsys.readouterr().err}"
