"""A teacher's outputs in a file: the k likeliest classes of every training sample, computed once and read many times.

    parts = [TeacherOutputs.from_logits(teacher(x), k=5) for x in batches]      # in the order of the rows
    TeacherOutputs.cat(parts).save("teacher.pt", labels)

    targets = TeacherOutputs.load("teacher.pt", labels, num_classes=1000).targets("spread")    # SoftTargets
    loss(student(x), targets[rows])

The file is what ``torch.save`` makes of a dictionary of tensors and plain values, and is read with
``weights_only=True``, so that loading it cannot run code. For N samples it holds:

    format       "softnce teacher outputs", and version 1
    classes      K
    temperature  the teacher's logits were divided by it
    index        (N, k) classes, likeliest first, in the smallest integer type that holds K − 1
    probability  (N, k) their probabilities among all K classes, float32; a row sums to at most 1
    labels       SHA-256 of the N labels as int64, or "" where there are none

A sample needs at most 6·k bytes up to 32,768 classes. The probability of the other classes is 1 minus the row's sum;
the reader decides whether it is spread over all classes or given to the k, and may use fewer than k. Reading refuses a
file that does not fit the data (another number of samples or classes, other labels or another order of them).
"""

import hashlib
import os
import sys
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from softnce._checks import as_tensor, as_whole
from softnce.targets import SoftTargets

FORMAT = "softnce teacher outputs"
VERSION = 1


@dataclass(frozen=True)
class TeacherOutputs:
    """The k likeliest classes of N samples and their probabilities, likeliest first.

    Attributes:
        index: (N, k) classes.
        probability: (N, k) their probabilities among all classes.
        num_classes: K.
        temperature: the teacher's logits were divided by it.
    """

    index: Tensor
    probability: Tensor
    num_classes: int
    temperature: float = 1.0

    @classmethod
    def from_logits(cls, logits: Tensor, k: int, temperature: float = 1.0) -> "TeacherOutputs":
        """The best k classes of logits (N, K), softened by ``temperature``."""
        soft = SoftTargets.from_topk(
            as_tensor(logits, "logits").detach(), k, temperature, "spread"
        )  # checks its arguments
        assert soft.index is not None
        assert soft.weight is not None
        return cls(soft.index, soft.weight.float(), soft.num_classes, float(temperature))

    @staticmethod
    def cat(parts: "Sequence[TeacherOutputs]") -> "TeacherOutputs":
        """The outputs of several batches, one after the other."""
        if not isinstance(parts, (list, tuple)) or not all(isinstance(part, TeacherOutputs) for part in parts):
            raise TypeError(f"parts must be a list of TeacherOutputs, got {type(parts).__name__}")
        if not parts:
            raise ValueError("parts is empty: at least one TeacherOutputs is needed")
        first = parts[0]
        for part in parts[1:]:
            if _shape(part) != _shape(first):
                raise ValueError(
                    "parts differ in k, number of classes or temperature: "
                    f"got {_shape(first)} and {_shape(part)}, in this order"
                )
        index, probability = (torch.cat([getattr(part, name) for part in parts]) for name in ("index", "probability"))
        return TeacherOutputs(index, probability, first.num_classes, first.temperature)

    def __len__(self) -> int:
        return len(self.index)

    def targets(self, remainder: Literal["renormalise", "spread"] = "renormalise", k: int | None = None) -> SoftTargets:
        """Soft targets of the best ``k`` classes (None: all that were kept).

        The probability of the others is given to the k in proportion ("renormalise") or spread uniformly over all
        classes ("spread"). If k is a quarter of the classes or more, rows are stored dense, which is then faster.
        """
        kept = self.index.shape[1]
        k = kept if k is None else as_whole(k, "k")
        if not 1 <= k <= kept:
            raise ValueError(f"k must be in [1, {kept}], the number of classes kept per sample, got {k}")
        if remainder not in ("renormalise", "spread"):
            raise ValueError(f"remainder must be 'renormalise' or 'spread', got {remainder!r}")
        index, weight = self.index[:, :k].long(), self.probability[:, :k].float()
        total = weight.sum(1, keepdim=True)
        if remainder == "renormalise":
            soft = SoftTargets(self.num_classes, index, weight / total)
        else:
            soft = SoftTargets(self.num_classes, index, weight, (1 - total[:, 0]).clamp(0, 1))
        return SoftTargets(self.num_classes, None, soft.dense()) if 4 * k >= self.num_classes else soft

    def save(self, path: str | os.PathLike[str], labels: Tensor | None = None) -> None:
        """Write the file, complete or not at all; a hash of ``labels`` (N,) is stored with it."""
        path = Path(path)
        if labels is not None and len(labels) != len(self):
            raise ValueError(f"labels has {len(labels)} entries, but there are outputs of {len(self)} samples")
        content = {
            "format": FORMAT,
            "version": VERSION,
            "classes": self.num_classes,
            "temperature": self.temperature,
            "index": self.index.to("cpu", _smallest(self.num_classes)).contiguous(),
            "probability": self.probability.to("cpu", torch.float32).contiguous(),
            "labels": fingerprint(labels),
        }
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_name(f"{path.name}.{os.getpid()}.partial")
        try:
            torch.save(content, partial)
            partial.replace(path)
        finally:
            partial.unlink(missing_ok=True)

    @classmethod
    def load(cls, path: str | os.PathLike[str], labels: Tensor | None, num_classes: int) -> "TeacherOutputs":
        """Read the file and check that it belongs to samples with these ``labels`` (N,).

        Without labels (None) only the number of classes is compared.
        """
        content = _read(Path(path))
        index, probability = content["index"].long(), content["probability"]
        found = cls(index, probability, content["classes"], content["temperature"])
        if found.num_classes != num_classes:
            raise ValueError(f"{path}: the teacher has {found.num_classes} classes, but the data has {num_classes}")
        if labels is not None:
            if len(labels) != len(found):
                raise ValueError(f"{path}: holds outputs of {len(found)} samples, but the data has {len(labels)}")
            if content["labels"] and content["labels"] != fingerprint(labels):
                raise ValueError(f"{path}: belongs to other samples, or to these in another order: the labels differ")
        return found


def fingerprint(labels: Tensor | None) -> str:
    """SHA-256 of labels, "" for none."""
    if labels is None:
        return ""
    values = array("q", labels.tolist())  # int64; torch gives its bytes by numpy only, which may not be installed
    if sys.byteorder == "big":
        values.byteswap()
    return hashlib.sha256(values.tobytes()).hexdigest()


def _shape(outputs: TeacherOutputs) -> tuple[int, int, float]:
    return outputs.index.shape[1], outputs.num_classes, outputs.temperature


def _smallest(num_classes: int) -> torch.dtype:
    for dtype in (torch.uint8, torch.int16):
        if num_classes - 1 <= torch.iinfo(dtype).max:
            return dtype
    return torch.int32


def _read(path: Path) -> dict[str, Any]:
    """The content of a file, checked."""
    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
    except FileNotFoundError:
        raise ValueError(f"{path}: no such file") from None
    except OSError as error:
        raise ValueError(f"{path}: cannot be read: {error.strerror}") from None
    except Exception:  # what torch raises for bytes it did not write depends on the bytes
        raise ValueError(f"{path}: not a file of teacher outputs, or damaged") from None
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise ValueError(f"{path}: not a file of teacher outputs")
    if content.get("version") != VERSION:
        raise ValueError(f"{path}: has version {content.get('version')!r}, but only version {VERSION} is supported")
    kinds = {"classes": int, "temperature": float, "index": Tensor, "probability": Tensor, "labels": str}
    for name, kind in kinds.items():
        if not isinstance(content.get(name), kind):
            raise ValueError(f"{path}: {name} must be {kind.__name__}, got {type(content.get(name)).__name__}")
    index, probability = content["index"], content["probability"]
    if index.dim() != 2 or index.shape != probability.shape or index.shape[1] == 0:
        raise ValueError(
            f"{path}: index and probability must both have shape (N, k), got {tuple(index.shape)} and "
            f"{tuple(probability.shape)}"
        )
    inside = bool(((index >= 0) & (index.long() < content["classes"])).all())
    total = probability.double().sum(1)
    if not inside or not bool(((probability >= 0).all(1) & (total > 0) & (total <= 1 + 1e-4)).all()):
        raise ValueError(f"{path}: damaged: classes or probabilities are out of range")
    return content
