"""Shares of a batch as tensors: images read and augmented, or rows of features."""

import warnings
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import Dataset

from softnce.cli import printable
from softnce.lab.data.batches import Batch, CorruptImage, Share
from softnce.lab.data.images import Images
from softnce.lab.data.transforms import Transform
from softnce.lab.seeds import borrowed_generators, start_generators


class ImageRows(Dataset):
    """Turns a share into tensors.

    An unreadable image raises an error with its name or, with ``skip``, is replaced by the next readable one of its
    class, so that the labels of the batch, which other devices already know, stay true; each is counted and named once.
    """

    def __init__(self, images: Images, transform: Transform, seed: int = 0, skip: bool = False) -> None:
        self.images, self.transform, self.seed, self.skip = images, transform, seed, skip
        self.labels = images.labels
        self.named: set[int] = set()

    def __len__(self) -> int:
        return len(self.labels)

    def __getitems__(self, share: Share) -> Batch:
        inputs, skipped = [], 0
        with borrowed_generators():
            for row in share.rows:
                image, lost = self._read(row)
                skipped += lost
                start_generators(self.seed, share.epoch, row)
                inputs.append(self.transform(image))
        return _batch(torch.stack(inputs), self.labels, share, skipped)

    def _read(self, row: int) -> tuple[Any, int]:
        error = self._attempt(row)
        if not isinstance(error, Exception):
            return error, 0
        if not self.skip:
            raise CorruptImage(
                f"cannot read {self.images.name(row)}: {error}; with --data.corrupt skip another image is used"
            ) from error
        if row not in self.named:
            self.named.add(row)
            warnings.warn(printable(f"skipped {self.images.name(row)}: {error}"), stacklevel=2)
        same = (self.labels == self.labels[row]).nonzero()[:, 0].tolist()
        place = same.index(row)
        for other in same[place + 1 :] + same[:place]:
            image = self._attempt(other)
            if not isinstance(image, Exception):
                return image, 1
        name = self.images.classes[int(self.labels[row])]
        raise CorruptImage(
            f"no image of class {name} can be read; the last one tried was {self.images.name(row)}"
        ) from error

    def _attempt(self, row: int) -> Any:
        try:
            return self.images.image(row)
        except (OSError, SyntaxError, ValueError) as error:  # what Pillow raises on broken files
            return error


class FeatureRows(Dataset):
    """Rows of a matrix in memory; a share is one indexing."""

    def __init__(self, features: Tensor, labels: Tensor) -> None:
        self.features, self.labels = features, labels

    def __len__(self) -> int:
        return len(self.labels)

    def __getitems__(self, share: Share) -> Batch:
        return _batch(self.features[share.rows], self.labels, share, 0)


def _batch(inputs: Tensor, labels: Tensor, share: Share, skipped: int) -> Batch:
    if share.batch is None:
        return Batch(inputs, labels[share.rows], skipped=skipped)
    assert share.own is not None
    own = share.own
    return Batch(inputs, labels[share.batch[own]], labels[share.batch], own, share.step, skipped)
