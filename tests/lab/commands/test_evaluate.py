"""softnce evaluate and softnce predict on what softnce train leaves behind."""

import json

import pytest
import torch
from PIL import Image

from softnce.lab.commands import evaluate, predict


@pytest.mark.slow
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


@pytest.mark.parametrize(
    ("main", "argv", "message"),
    [
        (evaluate.main, ["/no.ckpt"], "no checkpoint /no.ckpt"),
        (evaluate.main, ["--out", "x"], "the first argument must be a checkpoint"),
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
