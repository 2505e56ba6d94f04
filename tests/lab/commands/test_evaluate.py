"""softnce evaluate and softnce predict on what softnce train leaves behind."""

import csv
import errno
import json
import math
import os
from pathlib import Path

import pytest
import torch
from PIL import Image

from softnce.lab.commands import evaluate, predict
from softnce.lab.data.batches import CorruptImage
from softnce.lab.data.image_loader import ImageRows
from softnce.lab.data.images import ImageFiles


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


@pytest.mark.slow
def test_every_sample_is_a_line(run, tmp_path):
    root, results = run
    options = ["--out", str(tmp_path), "--data.workers", "0", "--progress", "false", "--samples", "true"]
    evaluate.main([str(root / "out"), *options])
    with (tmp_path / "samples.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["label"] for row in rows] == ["dark", "bright"] * 15
    assert all(row["name"].endswith(f"test.npz, x[{i}]") for i, row in enumerate(rows))
    assert sum(row["label"] == row["predicted"] for row in rows) / 30 == results["best"]["top1"]
    assert sum(float(row["nll"]) for row in rows) / 30 == pytest.approx(results["best"]["nll"], abs=1e-6)
    for row in rows:
        assert float(row["nll"]) == pytest.approx(-math.log(float(row["probability_of_label"])))
        assert float(row["probability"]) >= float(row["probability_of_label"])


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


@pytest.mark.slow
def test_metrics_are_printed_even_if_nothing_can_be_written(run, tmp_path, capsys, monkeypatch):
    def full(path, *_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))

    monkeypatch.setattr(Path, "write_text", full)
    with pytest.raises(SystemExit, match=r"softnce evaluate: out: cannot write in .*: the disk is full"):
        evaluate.main([str(run[0] / "out"), "--out", str(tmp_path), "--data.workers", "0", "--progress", "false"])
    assert "top1" in capsys.readouterr().out


def test_a_decompression_bomb_is_an_unreadable_image(run, tmp_path, monkeypatch):
    file = tmp_path / "bomb.png"
    Image.new("L", (64, 64)).save(file)
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 100)
    with pytest.raises(SystemExit, match=r"cannot read .*bomb\.png: .*decompression bomb"):
        predict.main([str(run[0] / "out"), str(file)])
    rows = ImageRows(ImageFiles([file], [0], ["a"]), lambda image: image)
    with pytest.raises(CorruptImage, match=r"cannot read .*bomb\.png: .*decompression bomb.*data\.corrupt skip"):
        rows._read(0)


def test_names_cannot_steer_the_terminal(run, tmp_path, capsys):
    content = torch.load(run[0] / "out" / "best.ckpt", weights_only=True)
    content["about"]["classes"] = ["dark\x1b[2J", "bright\r\x07"]
    torch.save(content, tmp_path / "best.ckpt")
    Image.new("L", (20, 20), 10).save(tmp_path / "a\x1b[31m.png")
    predict.main([str(tmp_path), str(tmp_path / "a\x1b[31m.png")])
    out = capsys.readouterr().out
    assert r"dark\x1b[2J" in out
    assert r"bright\r\x07" in out
    assert all(c.isprintable() or c == "\n" for c in out)
