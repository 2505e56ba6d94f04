"""Image collections in every layout; a wrong file is refused at once, with its name and the value."""

import numpy as np
import pytest
import torch
from PIL import Image

from experiments.data.images import open_images, read_image
from experiments.data.transforms import STATISTICS

GREY = np.zeros((4, 3, 3), np.uint8)


def picture(path, colour=0):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (10, 8), (colour, 0, 0)).save(path)


def both(kind, folder):
    return open_images(kind, folder, "train"), open_images(kind, folder, "evaluation")


def saved(folder, train=None, test=None):
    np.savez(folder / "train.npz", **({"x": GREY, "y": np.arange(4) % 2} | (train or {})))
    np.savez(folder / "test.npz", **({"x": GREY, "y": np.arange(4) % 2} | (test or {})))


def test_class_folders(tmp_path):
    for name in ("ant", "bee", "cow"):
        picture(tmp_path / "train" / name / "1.png")
    picture(tmp_path / "train" / "bee" / "deep" / "2.JPEG")
    picture(tmp_path / "val" / "cow" / "1.png", 9)
    train, held = both("folder", tmp_path)
    assert train.classes == held.classes == ["ant", "bee", "cow"]
    assert train.labels.tolist() == [0, 1, 1, 2]
    assert held.labels.tolist() == [2]  # numbered as in training, although the other classes are absent
    assert held.image(0).getpixel((0, 0)) == (9, 0, 0)
    assert held.name_of(0).endswith("val/cow/1.png")


@pytest.mark.parametrize("place", ["train/ant/2.png", "train/dog", "val/ant/3.png"])
def test_dead_links_are_named(tmp_path, place):
    for split in ("train", "val"):
        for name in ("ant", "bee"):
            picture(tmp_path / split / name / "1.png")
    (tmp_path / place).symlink_to(tmp_path / "gone")
    with pytest.raises(ValueError, match=f"{place} is a dead link, one of 1"):
        both("folder", tmp_path)


def test_tiny_imagenet_with_its_annotations(tmp_path):
    (tmp_path / "wnids.txt").write_text("n02\nn01\n")
    for wnid in ("n01", "n02"):
        picture(tmp_path / "train" / wnid / "images" / f"{wnid}_0.JPEG")
    for i in range(3):
        picture(tmp_path / "val" / "images" / f"val_{i}.JPEG", 50 * i)
    lines = ["val_0.JPEG\tn02\t0\t0\t63\t63", "val_1.JPEG\tn01\t0\t0\t63\t63", "val_2.JPEG\tn02\t1\t2\t3\t4"]
    (tmp_path / "val" / "val_annotations.txt").write_text("\n".join(lines) + "\n")
    train, held = both("tiny-imagenet", tmp_path)
    assert train.classes == ["n01", "n02"]
    assert (train.labels.tolist(), held.labels.tolist()) == ([0, 1], [1, 0, 1])
    assert [held.image(i).getpixel((0, 0))[0] for i in range(3)] == pytest.approx([0, 50, 100], abs=3)


def test_real_tiny_imagenet(real_data):
    train, held = both("tiny-imagenet", real_data / "tiny-imagenet")
    assert (len(train), len(held), len(train.classes)) == (8000, 2000, 200)
    assert held.labels.bincount().tolist() == [10] * 200


def test_digits_have_their_statistics(tmp_path):
    train, held = both("digits", tmp_path)
    assert len(train) + len(held) == 1797
    mean, deviation = STATISTICS["digits"]
    assert train.inputs.mean() / 255 == pytest.approx(mean[0], abs=6e-5)
    assert train.inputs.std() / 255 == pytest.approx(deviation[0], abs=6e-5)


def test_arrays_of_labels_and_of_votes(tmp_path):
    x = np.arange(4 * 5 * 5 * 3, dtype=np.uint8).reshape(4, 5, 5, 3)
    votes = np.array([[1, 0, 0], [0, 2, 3], [0.5, 0.5, 0], [0, 0, 1]])
    saved(tmp_path, {"x": x, "y": np.array([0, 2, 1, 2])}, {"x": x[:, :, :, 0]})
    train, held = both("arrays", tmp_path)
    assert train.classes == held.classes == ["0", "1", "2"]
    assert np.array_equal(np.asarray(train.image(1)), x[1])
    assert held.image(0).mode == "RGB"
    assert torch.equal(train.targets, train.labels)
    saved(tmp_path, {"x": x, "y": votes})
    train, held = both("arrays", tmp_path)
    assert train.labels.tolist() == [0, 2, 0, 2]
    assert train[torch.tensor([1, 2])].targets.tolist() == votes[1:3].tolist()
    assert held.classes == ["0", "1", "2"]


@pytest.mark.parametrize(("name", "kind"), [("16.png", np.uint16), ("float.tif", np.float32)])
def test_pixels_of_more_than_eight_bits_are_refused(tmp_path, name, kind):
    Image.fromarray(np.ones((16, 16), kind)).save(tmp_path / name)
    with pytest.raises(ValueError, match="need 8 bits per channel"):
        read_image(tmp_path / name)


@pytest.mark.parametrize(
    ("kind", "make", "message"),
    [
        ("imagenet", lambda d: None, "has no train "),
        ("imagenet", lambda d: [picture(d / "train" / k / "1.png") for k in "ab"], "has no val or valid"),
        ("folder", lambda d: (d / "train" / "a").mkdir(parents=True), "holds no images"),
        ("folder", lambda d: picture(d / "train" / "a" / "1.png"), "all training images are of one class"),
        ("tiny-imagenet", lambda d: None, "no wnids.txt"),
        ("arrays", lambda d: np.savez(d / "train.npz", x=np.zeros(3)), "needs x, uint8 images, and y"),
        ("arrays", lambda d: (d / "train.npz").write_bytes(b"PK\x03\x04 cut"), r"train\.npz is damaged"),
        ("arrays", lambda d: saved(d, {"y": np.array(["a", "b", "a", "b"])}), "y must be 4 integer labels .*got <U1"),
        ("arrays", lambda d: saved(d, {"y": np.array([0, 1, 10**12, 1])}), r"train.npz: y\[2\] is 1000000000000, need"),
        ("arrays", lambda d: saved(d, {"y": np.zeros(4, int)}), "all training images are of one class"),
        ("arrays", lambda d: saved(d, test={"y": np.array([0, 1, 9, 1])}), r"test.npz: y\[2\] is 9, need 0 to 1"),
        ("arrays", lambda d: saved(d, {"y": -np.eye(4)}), r"train.npz: y\[0\] is .*need votes of at least 0"),
        ("arrays", lambda d: saved(d, {"y": np.zeros((4, 2))}), r"train.npz: y\[0\] is .*a sum above 0"),
        ("arrays", lambda d: saved(d, {"x": GREY[:0]}), r"x must be uint8 .*\(0, 3, 3\)"),
        ("arrays", lambda d: saved(d, {"x": np.zeros((4, 2, 2))}), "x must be uint8"),
        ("arrays", lambda d: saved(d, {"x": GREY[:3]}), "y must be 3 integer labels or votes"),
        ("cifar100", lambda d: None, "data.download true"),
    ],
)
def test_wrong_data_are_named(kind, make, message, tmp_path):
    make(tmp_path)
    with pytest.raises(ValueError, match=message):
        both(kind, tmp_path)
