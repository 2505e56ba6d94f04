"""Image collections: arrays, class folders, CIFAR, Tiny ImageNet, digits."""

import zipfile
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from experiments.data.samples import Samples, first_of, numbered, stratified

Split = Literal["train", "evaluation"]
UNREADABLE = (OSError, SyntaxError, ValueError, Image.DecompressionBombError)  # Pillow's, for broken files


class Images(Samples):
    """Labelled images; reading one may fail, everything else is known from the start."""

    @property
    def are_files(self) -> bool:
        return self.inputs.dtype.kind == "U"

    def image(self, row: int) -> Image.Image:
        """The image as RGB; raises one of UNREADABLE."""
        item = self.inputs[row]
        return read_image(str(item)) if self.are_files else Image.fromarray(item).convert("RGB")

    def name_of(self, row: int) -> str:
        return str(self.inputs[row]) if self.are_files else f"{self.source}, x[{row}]"


def read_image(path: str | Path) -> Image.Image:
    """An image file as RGB of 8 bits; raises one of UNREADABLE."""
    with Image.open(path) as file:
        if file.mode.startswith(("F", "I")):  # Pillow would cut off at 255
            raise ValueError(f"its pixels are of mode {file.mode}, need 8 bits per channel")
        return file.convert("RGB")


def open_images(kind: str, folder: Path, split: Split, download: bool = False) -> Images:
    """The images of a data set: for training, or for evaluation."""
    folder = folder.expanduser()
    if kind == "digits":
        return digits(split)
    if not folder.is_dir() and not download:
        raise ValueError(f"data.dir {folder} is not a folder; it should hold {kind} (see docs/experiments.md)")
    if kind.startswith("cifar") and not (folder / "train.npz").exists():
        found = cifar(kind, folder, split, download)
    else:
        readers = {"arrays": arrays, "cifar10": arrays, "cifar100": arrays, "tiny-imagenet": tiny_imagenet}
        found = readers.get(kind, class_folders)(folder, split)
    if split == "train" and len(found.labels.unique()) < 2:
        raise ValueError(f"data.dir {folder}: all training images are of one class, need at least two")
    return found


def class_folders(folder: Path, split: Split) -> Images:
    """``train/<class>/…`` and ``val/<class>/…`` (or valid, validation, test), as ImageNet is usually unpacked."""
    root = first_of(folder, *(("train",) if split == "train" else ("val", "valid", "validation", "test")))
    if dead := [path for path in root.rglob("*") if path.is_symlink() and not path.exists()]:
        raise ValueError(f"{min(dead)} is a dead link, one of {len(dead)} below {folder}: repair or remove them")
    # The classes are those of training, so that a class without evaluation images keeps its number.
    classes = sorted(path.name for path in first_of(folder, "train").iterdir() if path.is_dir())
    numbered((path.name for path in root.iterdir() if path.is_dir()), classes, root)  # refuses others
    return _files(root, classes)


def tiny_imagenet(folder: Path, split: Split) -> Images:
    """The published layout: ``train/<wnid>/images/``, and ``val/images/`` with ``val/val_annotations.txt``."""
    classes = sorted(first_of(folder, "wnids.txt").read_text().split())
    if split == "train":
        return _files(folder / "train", classes)
    annotations = first_of(folder, "val/val_annotations.txt")
    rows = [line.split("\t") for line in annotations.read_text().splitlines()]
    paths = np.array([str(folder / "val" / "images" / row[0]) for row in rows])
    return Images(paths, numbered((row[1] for row in rows), classes, annotations), classes)


def _files(root: Path, classes: list[str]) -> Images:
    """Image files below one folder per class."""
    from torchvision.datasets.folder import IMG_EXTENSIONS, make_dataset

    suffixes = (*IMG_EXTENSIONS, ".gif")
    numbers = {name: label for label, name in enumerate(classes)}
    found = make_dataset(root, numbers, suffixes, allow_empty=True) if classes else []
    if not found:
        raise ValueError(f"{root} holds no images in folders, one per class ({', '.join(suffixes)})")
    paths, labels = zip(*found, strict=True)
    return Images(np.array(paths), torch.tensor(labels), classes)  # one block that processes share


def arrays(folder: Path, split: Split) -> Images:
    """``train.npz`` and ``test.npz`` (or val.npz): ``x`` uint8 images; ``y`` labels (N,), or votes (N, K)."""
    training = first_of(folder, "train.npz")
    path = training if split == "train" else first_of(folder, "test.npz", "val.npz")
    pixels, y = _stored(path)
    pixels = pixels.squeeze(3) if pixels.shape[3:] == (1,) else pixels
    if pixels.dtype != np.uint8 or pixels.ndim < 3 or pixels.shape[3:] not in ((), (3,)) or len(pixels) == 0:
        raise ValueError(f"{path}: x must be uint8 images (N, H, W[, 1 or 3]), got {pixels.dtype} {pixels.shape}")
    known = y if split == "train" else _stored(training)[1]
    highest = int(known.max()) if known.dtype.kind in "iu" and len(known) else -1
    # more classes than rows: rather a wrong label
    count = known.shape[1] if known.ndim == 2 else min(highest + 1, len(known))
    return Images(pixels, _targets(y, len(pixels), count, path), list(map(str, range(count))), str(path))


def _targets(y: np.ndarray, rows: int, num_classes: int, path: Path) -> Tensor:
    """Labels (N,), or votes (N, K), of an array; a ValueError names the file, the row and the value."""
    if y.shape == (rows,) and y.dtype.kind in "iu":
        values, need = y.astype(np.int64), f"0 to {num_classes - 1}"
        wrong = (values < 0) | (values >= num_classes)
    elif y.shape == (rows, num_classes) and y.dtype.kind in "iuf":
        values, need = y.astype(np.float32), "votes of at least 0 and a sum above 0"
        wrong = (~np.isfinite(values) | (values < 0)).any(1) | (values.sum(1) == 0)
    else:
        need = f"{rows} integer labels or votes ({rows}, {num_classes})"
        raise ValueError(f"{path}: y must be {need}, got {y.dtype} {y.shape}")
    if wrong.any():
        row = wrong.argmax()
        raise ValueError(f"{path}: y[{row}] is {y[row, :5] if y.ndim == 2 else y[row]}, need {need}")
    return torch.from_numpy(values)


def _stored(path: Path) -> tuple[np.ndarray, np.ndarray]:
    """``x`` and ``y`` of an .npz file."""
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as stored:
            return stored["x"], stored["y"]
    except KeyError:
        raise ValueError(f"{path} needs x, uint8 images, and y, labels") from None
    except (OSError, ValueError, EOFError, AttributeError, zipfile.BadZipFile) as error:
        raise ValueError(f"{path} is damaged or not an .npz file of plain arrays") from error


def cifar(kind: str, folder: Path, split: Split, download: bool) -> Images:
    """CIFAR-10 or CIFAR-100 in the published files, through torchvision."""
    from torchvision import datasets

    loader = datasets.CIFAR10 if kind == "cifar10" else datasets.CIFAR100
    try:
        stored = loader(str(folder), train=split == "train", download=download)
    except RuntimeError as error:
        raise ValueError(f"data.dir {folder}: {error} (--data.download true)") from error
    return Images(stored.data, torch.tensor(stored.targets), stored.classes, f"{kind} {split}")


def digits(split: Split) -> Images:
    """scikit-learn's 1,797 handwritten digits, 8×8; a fixed fifth of every class is for evaluation."""
    from sklearn.datasets import load_digits

    stored = load_digits()
    kept, held = stratified(torch.from_numpy(stored.target), 0.2)
    rows = (kept if split == "train" else held).numpy()
    pixels = np.round(stored.images[rows] * (255 / 16)).astype(np.uint8)
    return Images(pixels, torch.from_numpy(stored.target[rows]), [str(k) for k in range(10)], f"digits {split}")
