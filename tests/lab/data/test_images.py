import os
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from softnce.lab.data.images import open_images, read_image, stratified
from softnce.lab.data.transforms import (
    STATISTICS,
)
from softnce.lab.recipes.recipe import Data


def picture(path, colour=0):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (10, 8), (colour, 0, 0)).save(path)


GREY = np.zeros((2, 3, 3), np.uint8)


def saved(folder, **test):
    np.savez(folder / "train.npz", x=GREY, y=np.arange(2))
    np.savez(folder / "test.npz", **test)


def exported(name):
    folder = Path(os.environ.get("SOFTNCE_DATA", "/nowhere")) / name
    if not folder.is_dir():
        pytest.skip(f"no {name} in $SOFTNCE_DATA")
    return folder


def test_class_folders(tmp_path):
    for name in ("ant", "bee", "cow"):
        picture(tmp_path / "train" / name / "1.png")
    picture(tmp_path / "train" / "bee" / "deep" / "2.JPEG")
    picture(tmp_path / "val" / "cow" / "1.png", 9)
    train, held = (open_images(Data("folder", tmp_path), split) for split in ("train", "evaluation"))
    assert train.classes == held.classes == ["ant", "bee", "cow"]
    assert train.labels.tolist() == [0, 1, 1, 2]
    assert held.labels.tolist() == [2]  # numbered as in training, although the other classes are absent
    assert held.image(0).size == (10, 8)
    assert held.name(0).endswith("val/cow/1.png")


def tiny(folder):
    (folder / "wnids.txt").write_text("n02\nn01\n")
    (folder / "words.txt").write_text("n01\tgoldfish\nn02\tnewt, eft\n")
    for wnid in ("n01", "n02"):
        picture(folder / "train" / wnid / "images" / f"{wnid}_0.JPEG")
    for i in range(3):
        picture(folder / "val" / "images" / f"val_{i}.JPEG", 50 * i)
    lines = ["val_0.JPEG\tn02\t0\t0\t63\t63", "val_1.JPEG\tn01\t0\t0\t63\t63", "val_2.JPEG\tn02\t1\t2\t3\t4"]
    (folder / "val" / "val_annotations.txt").write_text("\n".join(lines) + "\n")
    return Data("tiny-imagenet", folder)


def test_tiny_imagenet_with_its_annotations(tmp_path):
    data = tiny(tmp_path)
    train, held = open_images(data, "train"), open_images(data, "evaluation")
    assert train.classes == ["goldfish", "newt, eft"]
    assert train.labels.tolist() == [0, 1]
    assert held.labels.tolist() == [1, 0, 1]
    assert [held.image(i).getpixel((0, 0))[0] for i in range(3)] == pytest.approx([0, 50, 100], abs=3)


def test_real_tiny_imagenet():
    data = Data("tiny-imagenet", exported("tiny-imagenet"))
    train, held = open_images(data, "train"), open_images(data, "evaluation")
    assert (len(train.labels), len(held.labels), len(train.classes)) == (8000, 2000, 200)
    assert held.labels.bincount().tolist() == [10] * 200
    assert held.image(0).size == (64, 64)


@pytest.mark.slow
def test_real_cifar_has_the_published_statistics():
    train = open_images(Data("cifar100", exported("cifar100")), "train")
    assert (len(train.labels), len(train.classes)) == (50000, 100)
    pixels = train.pixels.reshape(-1, 3).astype(np.float64) / 255
    assert pixels.mean(0) == pytest.approx([0.50707516, 0.48654887, 0.44091784], abs=1e-8)
    assert pixels.std(0) == pytest.approx([0.26733429, 0.25643846, 0.27615047], abs=1e-8)
    # The recipes take the constants of the authors' code, which are off in the fourth digit.
    mean, deviation = STATISTICS["cifar100"]
    assert mean == pytest.approx([0.5071, 0.4865, 0.4409], abs=2.1e-4)
    assert deviation == pytest.approx([0.2673, 0.2564, 0.2762], abs=2.1e-4)


def test_digits_have_their_statistics():
    train, held = open_images(Data("digits"), "train"), open_images(Data("digits"), "evaluation")
    assert len(train.labels) + len(held.labels) == 1797
    mean, deviation = STATISTICS["digits"]
    assert train.pixels.mean() / 255 == pytest.approx(mean[0], abs=6e-5)
    assert train.pixels.std() / 255 == pytest.approx(deviation[0], abs=6e-5)


def test_arrays(tmp_path):
    x = np.arange(4 * 5 * 5 * 3, dtype=np.uint8).reshape(4, 5, 5, 3)
    np.savez(tmp_path / "train.npz", x=x, y=np.array([0, 2, 1, 2]))
    np.savez(tmp_path / "test.npz", x=x[:, :, :, 0], y=np.array([0, 0, 1, 1]))
    train, held = (open_images(Data("arrays", tmp_path), split) for split in ("train", "evaluation"))
    assert train.classes == held.classes == ["0", "1", "2"]
    assert np.array_equal(np.asarray(train.image(1)), x[1])
    assert held.image(0).mode == "RGB"


def test_sixteen_bits_are_scaled_and_floats_refused(tmp_path):
    fine = np.arange(256, dtype=np.uint16).reshape(16, 16) * 257
    for name, pixels in (("8.png", fine >> 8), ("16.png", fine), ("float.tif", fine.astype(np.float32))):
        Image.fromarray(pixels.astype(np.uint8) if name == "8.png" else pixels).save(tmp_path / name)
    assert np.array_equal(np.asarray(read_image(tmp_path / "16.png")), np.asarray(read_image(tmp_path / "8.png")))
    with pytest.raises(ValueError, match="8 or 16 bits are needed"):
        read_image(tmp_path / "float.tif")


def test_holdout_is_a_fixed_part_of_every_class():
    data = Data("digits", holdout=0.25)
    train, held = open_images(data, "train"), open_images(data, "evaluation")
    whole = open_images(Data("digits"), "train")
    assert len(train.labels) + len(held.labels) == len(whole.labels)
    for count, part in zip(whole.labels.bincount(), held.labels.bincount(), strict=True):
        assert part == round(0.25 * int(count))
    assert not set(train.indices.tolist()) & set(held.indices.tolist())
    assert torch.equal(held.indices, open_images(data, "evaluation").indices)
    assert held.image(3).tobytes() == whole.image(int(held.indices[3])).tobytes()
    with pytest.raises(ValueError, match=r"data\.holdout 0\.01 leaves one part of the 3 training samples empty"):
        stratified(torch.zeros(3, dtype=torch.long), 0.01)


@pytest.mark.parametrize(
    ("kind", "make", "message"),
    [
        ("imagenet", lambda d: None, "no folder train"),
        ("imagenet", lambda d: picture(d / "train" / "a" / "1.png"), "no folder val or valid"),
        ("folder", lambda d: (d / "train").mkdir(), "one folder per class is needed"),
        ("folder", lambda d: (d / "train" / "a").mkdir(parents=True), "holds no images"),
        ("tiny-imagenet", lambda d: None, "no wnids.txt"),
        ("arrays", lambda d: None, "no train.npz"),
        ("arrays", lambda d: np.savez(d / "train.npz", x=np.zeros(3)), "has no y; x, uint8 images, and y"),
        ("arrays", lambda d: (d / "train.npz").write_bytes(b""), r"train\.npz is damaged or not an \.npz file"),
        ("arrays", lambda d: (d / "train.npz").write_bytes(b"PK\x03\x04 cut"), r"train\.npz is damaged"),
        ("arrays", lambda d: (d / "train.npz").write_text("text"), r"train\.npz is damaged"),
        ("arrays", lambda d: np.savez(d / "train.npz", x=GREY, y=np.array(["a", "b"])), "y must hold integer labels"),
        ("arrays", lambda d: np.savez(d / "train.npz", x=GREY[:0], y=np.zeros(0, int), classes=["a"]), "no images"),
        ("arrays", lambda d: saved(d, x=GREY[:0], y=np.zeros(0, int)), r"test\.npz holds no images"),
        ("arrays", lambda d: saved(d, x=GREY, y=np.arange(2), classes=["1", "0"]), "in the same order"),
        ("arrays", lambda d: np.savez(d / "train.npz", x=np.zeros((3, 2, 2)), y=np.zeros(3, int)), "x must be uint8"),
        (
            "arrays",
            lambda d: np.savez(d / "train.npz", x=np.zeros((3, 2, 2), np.uint8), y=np.zeros(2, int)),
            "y must be 3 integer labels",
        ),
        (
            "arrays",
            lambda d: np.savez(d / "train.npz", x=np.zeros((1, 2, 2), np.uint8), y=np.array([3]), classes=["a"]),
            "labels are in 0 … 0, got 3",
        ),
        ("cifar100", lambda d: None, "data.download true"),
    ],
)
def test_missing_data_is_named(kind, make, message, tmp_path):
    make(tmp_path)
    with pytest.raises(ValueError, match=message):
        [open_images(Data(kind, tmp_path), split) for split in ("train", "evaluation")]


def test_a_folder_that_is_not_there():
    with pytest.raises(ValueError, match=r"data\.dir /nowhere is not a folder"):
        open_images(Data("imagenet", Path("/nowhere")), "train")
