"""Image collections: where the images are, what their labels are, and one way to read them."""

import csv
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Literal, Protocol

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from softnce.lab.recipes.recipe import Data

Split = Literal["train", "evaluation"]
SUFFIXES = {".jpg", ".jpeg", ".png", ".bmp", ".webp", ".tif", ".tiff", ".ppm", ".pgm", ".gif"}


class Images(Protocol):
    """Labelled images. Reading one may fail; everything else is known from the start."""

    labels: Tensor  # (N,)
    classes: list[str]

    def image(self, index: int) -> Image.Image: ...

    def name(self, index: int) -> str: ...


class ImageFiles:
    """Images in files, read when asked for."""

    def __init__(self, paths: Sequence[Path], labels: Sequence[int], classes: list[str]) -> None:
        self.paths = np.array([str(path) for path in paths])  # one block of memory that worker processes share
        self.labels = torch.tensor(labels, dtype=torch.long)
        self.classes = classes

    def image(self, index: int) -> Image.Image:
        return read_image(str(self.paths[index]))

    def name(self, index: int) -> str:
        return str(self.paths[index])


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


class ImageArray:
    """Images (N, H, W, C) or (N, H, W) of bytes in memory."""

    def __init__(self, pixels: np.ndarray, labels: np.ndarray, classes: Sequence[str], source: str) -> None:
        if (
            pixels.dtype != np.uint8
            or pixels.ndim not in (3, 4)
            or (pixels.ndim == 4 and pixels.shape[3] not in (1, 3))
        ):
            raise ValueError(
                f"{source}: x must be uint8 (N, H, W, 3), (N, H, W, 1) or (N, H, W), got {pixels.dtype} {pixels.shape}"
            )
        if len(pixels) == 0:
            raise ValueError(f"{source} holds no images")
        if labels.shape != (len(pixels),) or not np.issubdtype(labels.dtype, np.integer):
            raise ValueError(f"{source}: y must be {len(pixels)} integer labels, got {labels.dtype} {labels.shape}")
        if not 0 <= labels.min() <= labels.max() < len(classes):
            raise ValueError(f"{source}: labels are in 0 … {len(classes) - 1}, got {labels.min()} … {labels.max()}")
        self.pixels = pixels.squeeze(3) if pixels.ndim == 4 and pixels.shape[3] == 1 else pixels
        self.labels = torch.from_numpy(labels.astype(np.int64))
        self.classes = list(classes)
        self.source = source

    def image(self, index: int) -> Image.Image:
        return Image.fromarray(self.pixels[index]).convert("RGB")

    def name(self, index: int) -> str:
        return f"{self.source}, x[{index}]"


class Part:
    """Some of the images of a collection."""

    def __init__(self, whole: Images, indices: Tensor) -> None:
        self.whole, self.indices = whole, indices
        self.labels, self.classes = whole.labels[indices], whole.classes

    def image(self, index: int) -> Image.Image:
        return self.whole.image(int(self.indices[index]))

    def name(self, index: int) -> str:
        return self.whole.name(int(self.indices[index]))


def open_images(data: Data, split: Split | Literal["test"]) -> Images:
    """The images a recipe names: for training, for the evaluation of every epoch, or for the test at the end.

    With ``data.holdout`` evaluation is on a part of the training set that training leaves out, the same for every seed;
    else on the test images.
    """
    if split == "test" or (split == "evaluation" and data.holdout == 0):
        return _open(data, "evaluation")
    whole = _open(data, "train")
    if data.share < 1:
        whole = Part(whole, stratified(whole.labels, data.share)[1])
    if data.holdout == 0:
        return whole
    kept, held = stratified(whole.labels, data.holdout)
    return Part(whole, kept if split == "train" else held)


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
        raise ValueError(f"data.holdout {share:g} leaves one part of the {len(labels)} training samples empty")
    return mask.nonzero()[:, 0], held


def _open(data: Data, split: Split) -> Images:
    if data.kind == "digits":
        return digits(split)
    folder = data.dir.expanduser()
    if not folder.is_dir() and not data.download:
        raise ValueError(f"data.dir {folder} is not a folder; it should hold {data.kind} (see docs/training.md)")
    if data.kind in ("cifar10", "cifar100") and not (folder / "train.npz").exists():
        return cifar(data.kind, folder, split, data.download)
    if data.kind in ("arrays", "cifar10", "cifar100"):
        return arrays(folder, split)
    if data.kind == "tiny-imagenet":
        return tiny_imagenet(folder, split)
    return class_folders(folder, split)


def class_folders(folder: Path, split: Split) -> ImageFiles:
    """``train/<class>/…`` and ``val/<class>/…`` (or valid, validation, test), as ImageNet is usually unpacked."""
    names = ("train",) if split == "train" else ("val", "valid", "validation", "test")
    root = next((folder / name for name in names if (folder / name).is_dir()), None)
    if root is None:
        raise ValueError(f"data.dir {folder} has no folder {' or '.join(names)} with one folder per class")
    # The classes are those of training, so that a class without evaluation images keeps its number.
    source = folder / "train" if (folder / "train").is_dir() else root
    classes = sorted(entry.name for entry in source.iterdir() if entry.is_dir())
    if not classes:
        raise ValueError(f"{source} has no folders; one folder per class is needed")
    strangers = sorted({entry.name for entry in root.iterdir() if entry.is_dir()} - set(classes))
    if strangers:
        raise ValueError(f"{root} has classes that are not in {source}: {', '.join(strangers[:5])}")
    paths: list[Path] = []
    labels: list[int] = []
    for label, name in enumerate(classes):
        found = sorted(p for p in (root / name).rglob("*") if p.suffix.lower() in SUFFIXES)
        paths += found
        labels += [label] * len(found)
    if not paths:
        raise ValueError(f"{root} holds no images in its class folders ({', '.join(sorted(SUFFIXES))})")
    return ImageFiles(paths, labels, classes)


def tiny_imagenet(folder: Path, split: Split) -> ImageFiles:
    """The published layout: ``train/<wnid>/images/``, and ``val/images/`` with ``val/val_annotations.txt``."""
    listing = folder / "wnids.txt"
    if not listing.is_file():
        raise ValueError(f"data.dir {folder} has no wnids.txt; point it at the unpacked tiny-imagenet-200")
    wnids = sorted(listing.read_text().split())
    words = folder / "words.txt"
    names = {}
    if words.is_file():
        names = dict(line.split("\t", 1) for line in words.read_text().splitlines() if "\t" in line)
    classes = [names.get(wnid, wnid) for wnid in wnids]
    number = {wnid: label for label, wnid in enumerate(wnids)}
    if split == "train":
        paths, labels = [], []
        for wnid in wnids:
            found = sorted((folder / "train" / wnid / "images").glob("*.JPEG"))
            paths += found
            labels += [number[wnid]] * len(found)
    else:
        annotations = folder / "val" / "val_annotations.txt"
        if not annotations.is_file():
            raise ValueError(f"{annotations} is missing; it holds the class of each validation image")
        with annotations.open(newline="") as lines:
            rows = [row[:2] for row in csv.reader(lines, delimiter="\t") if row]
        strangers = sorted({wnid for _, wnid in rows} - set(wnids))
        if strangers:
            raise ValueError(f"{annotations} has classes that are not in wnids.txt: {', '.join(strangers[:5])}")
        paths = [folder / "val" / "images" / name for name, _ in rows]
        labels = [number[wnid] for _, wnid in rows]
    if not paths:
        raise ValueError(f"{folder} holds no {split} images in Tiny ImageNet's layout")
    return ImageFiles(paths, labels, classes)


def arrays(folder: Path, split: Split) -> ImageArray:
    """``train.npz`` and ``test.npz`` (or val.npz): ``x`` uint8 images, ``y`` labels, optionally ``classes`` names."""
    names = ("train.npz",) if split == "train" else ("test.npz", "val.npz")
    path = next((folder / name for name in names if (folder / name).is_file()), None)
    if path is None:
        raise ValueError(f"data.dir {folder} has no {' or '.join(names)}")
    pixels, labels, named = _stored(path, "x", "y", "classes")
    if pixels is None or labels is None:
        raise ValueError(f"{path} has no {'x' if pixels is None else 'y'}; x, uint8 images, and y, labels, are needed")
    training, names_said, labels_said = folder / "train.npz", named, labels
    if split != "train" and (named is None or training.is_file()):
        names_said, labels_said = _stored(training, "classes", "y")  # type: ignore[assignment]
    classes = _class_names(names_said, labels_said, training)
    if named is not None and classes != [str(name) for name in named]:
        raise ValueError(f"{path}: classes must be those of {training}, in the same order")
    return ImageArray(pixels, labels, classes, str(path))


def _class_names(named: np.ndarray | None, labels: np.ndarray | None, path: Path) -> list[str]:
    """The classes that the .npz file at ``path`` names, or the numbers up to its highest label."""
    if named is not None:
        return [str(name) for name in named]
    if labels is None or not np.issubdtype(labels.dtype, np.integer) or not len(labels):
        got = "none" if labels is None else f"{labels.dtype} {labels.shape}"
        raise ValueError(f"{path}: y must hold integer labels, got {got}")
    return [str(k) for k in range(int(labels.max()) + 1)]


def _stored(path: Path, *names: str) -> list[np.ndarray | None]:
    """Arrays of an .npz file, None for those it does not have; only these are read."""
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as stored:
            return [stored[name] if name in stored.files else None for name in names]
    except (OSError, ValueError, EOFError, AttributeError, zipfile.BadZipFile) as error:
        if isinstance(error, FileNotFoundError):
            raise ValueError(f"{path} is missing; it holds the names of the classes") from None
        raise ValueError(f"{path} is damaged or not an .npz file of plain arrays") from error


def cifar(kind: str, folder: Path, split: Split, download: bool) -> ImageArray:
    """CIFAR-10 or CIFAR-100 in the published files, through torchvision."""
    from softnce.lab.models import torchvision_operators  # noqa: F401  (before torchvision)

    from torchvision import datasets  # isort: skip

    loader = datasets.CIFAR10 if kind == "cifar10" else datasets.CIFAR100
    try:
        stored = loader(str(folder), train=split == "train", download=download)
    except RuntimeError as error:
        raise ValueError(
            f"data.dir {folder} has neither train.npz nor {kind}'s published files; --data.download true downloads them"
        ) from error
    return ImageArray(stored.data, np.array(stored.targets), stored.classes, f"{kind} {split}")


def digits(split: Split) -> ImageArray:
    """scikit-learn's 1,797 handwritten digits, 8×8; a fixed fifth of every class is for evaluation."""
    from sklearn.datasets import load_digits

    stored = load_digits()
    kept, held = stratified(torch.from_numpy(stored.target), 0.2)
    rows = (kept if split == "train" else held).numpy()
    pixels = np.round(stored.images[rows] * (255 / 16)).astype(np.uint8)
    return ImageArray(pixels, stored.target[rows], [str(k) for k in range(10)], f"digits {split}")
