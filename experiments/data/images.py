"""Image collections: arrays, class folders, CIFAR, Tiny ImageNet, digits."""

import csv
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from experiments.data.targets import hard_labels

Split = Literal["train", "evaluation"]
SUFFIXES = {".jpg", ".jpeg", ".png", ".bmp", ".webp", ".tif", ".tiff", ".ppm", ".pgm", ".gif"}


@dataclass(frozen=True)
class Images:
    """Labelled images; reading one may fail, everything else is known from the start.

    Attributes:
        source: (N,) paths of files, or (N, H, W[, 3]) bytes.
        labels: (N,) classes.
        classes: their K names.
        votes: (N, K) votes or probabilities of the rows, if there are any.
        name: where arrays come from, for messages.
    """

    source: np.ndarray
    labels: Tensor
    classes: list[str]
    votes: Tensor | None = None
    name: str = ""

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, rows: Tensor) -> "Images":
        votes = None if self.votes is None else self.votes[rows]
        return Images(self.source[rows.numpy()], self.labels[rows], self.classes, votes, self.name)

    @property
    def targets(self) -> Tensor:
        """Votes (N, K) if there are any, else labels (N,)."""
        return self.labels if self.votes is None else self.votes

    def image(self, row: int) -> Image.Image:
        """The image as RGB; raises OSError, SyntaxError or ValueError if it cannot be read."""
        item = self.source[row]
        return read_image(str(item)) if self.source.dtype.kind == "U" else Image.fromarray(item).convert("RGB")

    def name_of(self, row: int) -> str:
        return str(self.source[row]) if self.source.dtype.kind == "U" else f"{self.name}, x[{row}]"


def read_image(path: str | Path) -> Image.Image:
    """An image file as RGB of 8 bits; raises OSError, SyntaxError or ValueError if it cannot be read."""
    try:
        opened = Image.open(path)
    except Image.DecompressionBombError as error:
        raise ValueError(str(error)) from None
    with opened as file:
        if file.mode == "F":
            raise ValueError("its pixels are floating point numbers; 8 or 16 bits are needed")
        if file.mode.startswith("I"):  # 16 bits; Pillow would cut off at 255
            high = np.asarray(file).astype(np.int64).clip(0, 65535) >> 8
            return Image.fromarray(high.astype(np.uint8)).convert("RGB")
        return file.convert("RGB")


def open_images(kind: str, folder: Path, split: Split, download: bool = False) -> Images:
    """The images of a data set: for training, or for evaluation."""
    folder = folder.expanduser()
    if kind == "digits":
        return digits(split)
    if not folder.is_dir() and not download:
        raise ValueError(f"data.dir {folder} is not a folder; it should hold {kind} (see docs/experiments.md)")
    if kind in ("cifar10", "cifar100") and not (folder / "train.npz").exists():
        found = cifar(kind, folder, split, download)
    elif kind in ("arrays", "cifar10", "cifar100"):
        found = arrays(folder, split)
    else:
        found = tiny_imagenet(folder, split) if kind == "tiny-imagenet" else class_folders(folder, split)
    if split == "train" and len(found.labels.unique()) < 2:
        raise ValueError(f"data.dir {folder}: all training images are of one class, need at least two")
    return found


def stratified(labels: Tensor, share: float, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Indices of two parts, ascending; the second holds ``share`` of every class, rounded."""
    shuffled = torch.randperm(len(labels), generator=torch.Generator().manual_seed(seed))
    second = []
    for label in labels.unique():
        members = shuffled[labels[shuffled] == label]
        second.append(members[: round(share * len(members))])
    held = torch.cat(second).sort().values
    mask = torch.ones(len(labels), dtype=torch.bool)
    mask[held] = False
    if len(held) == 0 or not mask.any():
        raise ValueError(f"a share of {share:g} leaves one part of the {len(labels)} training samples empty")
    return mask.nonzero()[:, 0], held


def class_folders(folder: Path, split: Split) -> Images:
    """``train/<class>/…`` and ``val/<class>/…`` (or valid, validation, test), as ImageNet is usually unpacked."""
    names = ("train",) if split == "train" else ("val", "valid", "validation", "test")
    root = next((folder / name for name in names if (folder / name).is_dir()), None)
    if root is None:
        raise ValueError(f"data.dir {folder} has no folder {' or '.join(names)} with one folder per class")
    # The classes are those of training, so that a class without evaluation images keeps its number.
    source = folder / "train" if (folder / "train").is_dir() else root
    dead = [p for top in {source, root} for p in sorted(top.rglob("*")) if p.is_symlink() and not p.exists()]
    if dead:
        raise ValueError(f"{dead[0]} is a dead link, one of {len(dead)} below {folder}: repair or remove them")
    classes = sorted(entry.name for entry in source.iterdir() if entry.is_dir())
    if not classes:
        raise ValueError(f"{source} has no folders; one folder per class is needed")
    strangers = sorted({entry.name for entry in root.iterdir() if entry.is_dir()} - set(classes))
    if strangers:
        raise ValueError(f"{root} has classes that are not in {source}: {', '.join(strangers[:5])}")
    found = [sorted(p for p in (root / name).rglob("*") if p.suffix.lower() in SUFFIXES) for name in classes]
    if not any(found):
        raise ValueError(f"{root} holds no images in its class folders ({', '.join(sorted(SUFFIXES))})")
    return _files(found, classes)


def tiny_imagenet(folder: Path, split: Split) -> Images:
    """The published layout: ``train/<wnid>/images/``, and ``val/images/`` with ``val/val_annotations.txt``."""
    listing, words, annotations = folder / "wnids.txt", folder / "words.txt", folder / "val" / "val_annotations.txt"
    if not listing.is_file():
        raise ValueError(f"data.dir {folder} has no wnids.txt; point it at the unpacked tiny-imagenet-200")
    wnids = sorted(listing.read_text().split())
    lines = words.read_text().splitlines() if words.is_file() else []
    names = dict(line.split("\t", 1) for line in lines if "\t" in line)
    found: dict[str, list[Path]] = {wnid: [] for wnid in wnids}
    rows: list[Path] = []
    if split == "train":
        for wnid in wnids:
            found[wnid] = sorted((folder / "train" / wnid / "images").glob("*.JPEG"))
        if not any(found.values()):
            raise ValueError(f"{folder} holds no training images in Tiny ImageNet's layout")
        return _files(list(found.values()), [names.get(wnid, wnid) for wnid in wnids])
    if not annotations.is_file():
        raise ValueError(f"{annotations} is missing; it holds the class of each validation image")
    with annotations.open(newline="") as file:
        pairs = [row[:2] for row in csv.reader(file, delimiter="\t") if row]
    if strangers := sorted({wnid for _, wnid in pairs} - set(wnids)):
        raise ValueError(f"{annotations} has classes that are not in wnids.txt: {', '.join(strangers[:5])}")
    rows = [folder / "val" / "images" / name for name, _ in pairs]
    labels = torch.tensor([wnids.index(wnid) for _, wnid in pairs])
    return Images(np.array([str(path) for path in rows]), labels, [names.get(wnid, wnid) for wnid in wnids])


def _files(found: Sequence[Sequence[Path]], classes: list[str]) -> Images:
    """Files by class."""
    paths = np.array([str(path) for of_class in found for path in of_class])  # one block that worker processes share
    labels = torch.arange(len(classes)).repeat_interleave(torch.tensor([len(of_class) for of_class in found]))
    return Images(paths, labels, classes)


def arrays(folder: Path, split: Split) -> Images:
    """``train.npz`` and ``test.npz`` (or val.npz): ``x`` uint8 images, ``y`` labels, optionally ``classes`` names.

    ``y`` are labels (N,), or votes or probabilities (N, K).
    """
    names = ("train.npz",) if split == "train" else ("test.npz", "val.npz")
    path = next((folder / name for name in names if (folder / name).is_file()), None)
    if path is None:
        raise ValueError(f"data.dir {folder} has no {' or '.join(names)}")
    pixels, y, named = _stored(path, "x", "y", "classes")
    if pixels is None or y is None:
        raise ValueError(f"{path} has no {'x' if pixels is None else 'y'}; x, uint8 images, and y, labels, are needed")
    training = folder / "train.npz"
    names_said, y_said = named, y
    if split != "train" and (named is None or training.is_file()):
        if not training.is_file():
            raise ValueError(f"{training} is missing; it holds the names of the classes")
        names_said, y_said = _stored(training, "classes", "y")
    classes = _class_names(names_said, y_said, training)
    if named is not None and classes != [str(name) for name in named]:
        raise ValueError(f"{path}: classes must be those of {training}, in the same order")
    if pixels.dtype != np.uint8 or pixels.ndim not in (3, 4) or (pixels.ndim == 4 and pixels.shape[3] not in (1, 3)):
        raise ValueError(
            f"{path}: x must be uint8 (N, H, W, 3), (N, H, W, 1) or (N, H, W), got {pixels.dtype} {pixels.shape}"
        )
    if len(pixels) == 0:
        raise ValueError(f"{path} holds no images")
    pixels = pixels.squeeze(3) if pixels.ndim == 4 and pixels.shape[3] == 1 else pixels
    labels = read_labels(y, len(pixels), len(classes), str(path))
    return Images(pixels, hard_labels(labels), classes, labels if labels.dim() == 2 else None, str(path))


def read_labels(y: np.ndarray, rows: int, num_classes: int, source: str) -> Tensor:
    """Labels (N,), or votes (N, K), of an array; a ValueError names ``source``, the row and the value."""
    if y.shape == (rows,) and np.issubdtype(y.dtype, np.integer):
        wrong = np.flatnonzero((y < 0) | (y >= num_classes))
        if len(wrong):
            raise ValueError(f"{source}: y[{wrong[0]}] is {y[wrong[0]]}, need 0 to {num_classes - 1}")
        return torch.from_numpy(y.astype(np.int64))
    if y.shape == (rows, num_classes) and y.dtype.kind in "iuf":
        votes = torch.from_numpy(y.astype(np.float32))
        wrong = np.flatnonzero((~torch.isfinite(votes) | (votes < 0)).any(1) | (votes.sum(1) == 0))
        if len(wrong):
            raise ValueError(
                f"{source}: y[{wrong[0]}] is {y[wrong[0]][:5]}, need votes of at least 0 and a sum above 0"
            )
        return votes
    raise ValueError(
        f"{source}: y must be {rows} integer labels or votes ({rows}, {num_classes}), got {y.dtype} {y.shape}"
    )


def _class_names(named: np.ndarray | None, y: np.ndarray | None, path: Path) -> list[str]:
    """The classes that the .npz file at ``path`` names, the columns of its votes, or the numbers up to its highest."""
    if named is not None:
        return [str(name) for name in named]
    if y is not None and y.ndim == 2:
        return [str(k) for k in range(y.shape[1])]
    if y is None or y.ndim != 1 or not np.issubdtype(y.dtype, np.integer) or not len(y):
        raise ValueError(f"{path}: y must hold labels, got {'none' if y is None else f'{y.dtype} {y.shape}'}")
    highest = int(y.argmax())
    if y[highest] >= len(y):  # more classes than rows: a wrong label rather than that many classes
        raise ValueError(
            f"{path}: y[{highest}] is {y[highest]}, need less than the {len(y)} rows; for classes without rows, "
            "store the names of all as classes"
        )
    return [str(k) for k in range(int(y[highest]) + 1)]


def _stored(path: Path, *names: str) -> list[np.ndarray | None]:
    """Arrays of an .npz file, None for absent ones; only these are read."""
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as stored:
            return [stored[name] if name in stored.files else None for name in names]
    except (OSError, ValueError, EOFError, AttributeError, zipfile.BadZipFile) as error:
        raise ValueError(f"{path} is damaged or not an .npz file of plain arrays") from error


def cifar(kind: str, folder: Path, split: Split, download: bool) -> Images:
    """CIFAR-10 or CIFAR-100 in the published files, through torchvision."""
    from experiments.models import torchvision_operators  # noqa: F401  (before torchvision)

    from torchvision import datasets  # isort: skip

    loader = datasets.CIFAR10 if kind == "cifar10" else datasets.CIFAR100
    try:
        stored = loader(str(folder), train=split == "train", download=download)
    except RuntimeError as error:
        raise ValueError(
            f"data.dir {folder} has neither train.npz nor {kind}'s published files; --data.download true downloads them"
        ) from error
    return Images(stored.data, torch.tensor(stored.targets), stored.classes, name=f"{kind} {split}")


def digits(split: Split) -> Images:
    """scikit-learn's 1,797 handwritten digits, 8×8; a fixed fifth of every class is for evaluation."""
    from sklearn.datasets import load_digits

    stored = load_digits()
    kept, held = stratified(torch.from_numpy(stored.target), 0.2)
    rows = (kept if split == "train" else held).numpy()
    pixels = np.round(stored.images[rows] * (255 / 16)).astype(np.uint8)
    return Images(pixels, torch.from_numpy(stored.target[rows]), [str(k) for k in range(10)], name=f"digits {split}")
