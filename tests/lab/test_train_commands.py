"""softnce evaluate and softnce predict on what softnce train leaves behind."""

import json

import numpy as np
import pytest
import torch
from PIL import Image

from softnce.lab.recipes.recipe import Compute, Data, Head, Loss, Model, Optimiser, Recipe, Schedule
from softnce.lab.train import evaluate, predict
from softnce.lab.train import run as train


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A network that tells dark from bright images, at temperature 2."""
    root = tmp_path_factory.mktemp("run")
    random = np.random.default_rng(0)
    for name, n in (("train", 64), ("test", 30)):
        y = np.arange(n) % 2
        x = random.integers(0, 60, (n, 20, 20, 3)) + 180 * y[:, None, None, None]
        np.savez(root / f"{name}.npz", x=x.astype(np.uint8), y=y, classes=["dark", "bright"])
    recipe = Recipe(
        data=Data("arrays", root, image_size=32, workers=0, augment="none", crop=1.0),
        model=Model("test_vit", drop_path=0.0),
        head=Head("linear"),
        loss=Loss("nll", temperature=2.0),
        optimiser=Optimiser(batch=32, base_lr=2e-2),
        schedule=Schedule(epochs=4, warmup_epochs=1.0),
        compute=Compute("cpu", progress=False),
    )
    results = train.train(recipe, root / "out")
    return root, results


def test_evaluate_writes_results_and_a_diagram(run, tmp_path, capsys):
    root, results = run
    evaluate.main([str(root / "out"), "--out", str(tmp_path), "--data.workers", "0", "--progress", "false"])
    written = json.loads((tmp_path / "evaluation.json").read_text())
    assert written["split"] == "test"
    for name in ("top1", "ece", "nll", "classwise_ece"):
        assert written[name] == pytest.approx(results["best"][name], abs=1e-6)
    assert "top1" in capsys.readouterr().out
    with Image.open(tmp_path / "reliability.png") as picture:
        assert min(picture.size) > 600


def test_predict_names_the_right_class(run, tmp_path, capsys):
    root, results = run
    assert results["best"]["top1"] == 1.0
    Image.new("RGB", (33, 41), (230, 220, 225)).save(tmp_path / "day.png")
    Image.new("L", (20, 20), 10).save(tmp_path / "night.png")
    predict.main([str(root / "out"), str(tmp_path / "day.png"), str(tmp_path / "night.png")])
    day, first, _, night, second, _ = capsys.readouterr().out.splitlines()
    assert day.endswith("day.png")
    assert first.endswith("%  bright")
    assert night.endswith("night.png")
    assert second.endswith("%  dark")
    ((_, p), (_, q)) = predict.predict(root / "out", [tmp_path / "day.png"])[0]
    assert p + q == pytest.approx(1)
    # probabilities are the softmax of the scores over the loss's temperature
    trained = evaluate.load_trained(root / "out")
    x = torch.randn(2, 3, 32, 32)
    with torch.no_grad():
        torch.testing.assert_close(trained.logits(x), trained.network(x) / 2.0)


def test_loading_executes_nothing(tmp_path):
    class Trap:
        def __reduce__(self):
            return (exec, ("raise SystemExit('executed')",))

    torch.save({"about": Trap()}, tmp_path / "evil.ckpt")
    with pytest.raises(ValueError, match="is not a checkpoint of softnce train: UnpicklingError"):
        evaluate.load_trained(tmp_path / "evil.ckpt")


@pytest.mark.parametrize(
    ("main", "argv", "message"),
    [
        (evaluate.main, ["/no.ckpt"], "no checkpoint /no.ckpt"),
        (evaluate.main, ["--out", "x"], "a checkpoint is needed first"),
        (predict.main, ["/no.ckpt"], "at least one image"),
        (predict.main, ["/no.ckpt", "a.png"], "no checkpoint /no.ckpt"),
    ],
)
def test_mistakes_are_named(main, argv, message):
    with pytest.raises(SystemExit, match=message):
        main(argv)


def test_files_that_are_no_checkpoints_or_images(run, tmp_path):
    root, _ = run
    (tmp_path / "text.ckpt").write_text("hello")
    torch.save({"state_dict": {}}, tmp_path / "other.ckpt")
    for name in ("text.ckpt", "other.ckpt"):
        with pytest.raises(SystemExit, match="is not a checkpoint of softnce train"):
            evaluate.main([str(tmp_path / name)])
    (tmp_path / "broken.png").write_text("hello")
    with pytest.raises(SystemExit, match=r"cannot read .*broken\.png"):
        predict.main([str(root / "out"), str(tmp_path / "broken.png")])


def test_other_classes_are_refused(run, tmp_path):
    root, _ = run
    for name in ("train", "test"):
        x = np.zeros((3, 8, 8), np.uint8)
        np.savez(tmp_path / f"{name}.npz", x=x, y=np.arange(3))
    with pytest.raises(ValueError, match="has 3 classes, which are not the 2"):
        evaluate.evaluate(root / "out", data_dir=str(tmp_path), progress=False, workers=0)


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
    evaluate.main(
        [str(tmp_path / "one" / "last.ckpt"), "--out", str(tmp_path), "--data.workers", "0", "--progress", "false"]
    )


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


def test_a_run_that_cannot_go_on_says_so(tmp_path, capsys):
    options = ["--optimiser.batch", "512", "--data.workers", "0", "--compute.progress", "false"]
    train.main(["laptop/digits", *options, "--schedule.max_steps", "1", "--out", str(tmp_path)])
    with pytest.raises(SystemExit, match=r"no checkpoint \S*best\.ckpt; there is \S*last\.ckpt"):
        evaluate.main([str(tmp_path)])
    (tmp_path / "last.ckpt").write_bytes(b"")
    with pytest.raises(SystemExit, match=r"last\.ckpt is damaged \(it ends too early\)"):
        train.main(["--resume", str(tmp_path)])
    (tmp_path / "last.ckpt").unlink()
    train.main(["--resume", str(tmp_path)])
    assert "the run starts from the beginning" in capsys.readouterr().err


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
        (["--resume", "{run}", "--out", "elsewhere"], "leave --out away"),
    ],
)
def test_what_cannot_be_is_said_before_any_work(run, words, said, capsys):
    words = [word.format(run=run[0] / "out") for word in words]
    with pytest.raises(SystemExit) as stop:
        train.main(words)
    assert said in f"{stop.value.code} {capsys.readouterr().err}"
