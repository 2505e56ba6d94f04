"""A teacher's outputs in a file: the k likeliest classes of every training sample, computed once and read many times.

    parts = [TeacherOutputs.from_logits(teacher(x), k=5) for x in batches]      # in the order of the rows
    TeacherOutputs.cat(parts).save("teacher.pt", labels)

    targets = TeacherOutputs.load("teacher.pt", labels, num_classes=1000).targets("group")    # SoftTargets
    loss(student(x), targets[rows])

The file is a line of text, the SHA-256 of everything after it, and a dictionary written by ``torch.save``: at most 6·k
bytes per sample up to 32,768 classes. A damaged file or one of other data is refused; none can run code.
"""

import hashlib
import io
import os
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

import torch
from torch import Tensor

from softnce._inputs import as_tensor, as_whole, one_of
from softnce.targets import SoftTargets
from softnce.targets._constructors import Rest, of_topk

HEADER = b"softnce teacher outputs 2\n"
FIELDS = {"classes": int, "temperature": float, "index": Tensor, "probability": Tensor, "labels": str}
"""``labels`` is the SHA-256 of the samples' labels as int64, or ""."""


@dataclass(frozen=True)
class TeacherOutputs:
    """Classes ``index`` (N, k) and their ``probability`` (N, k) among all classes, softened, likeliest first."""

    index: Tensor
    probability: Tensor
    num_classes: int
    temperature: float = 1.0

    @classmethod
    def from_logits(cls, logits: Tensor, k: int, temperature: float = 1.0) -> "TeacherOutputs":
        """The best k classes of logits (N, K), softened by ``temperature``."""
        soft = SoftTargets.from_topk(as_tensor(logits, "logits").detach(), k, temperature, "group")
        return cls(soft.classes, soft.pair_weight().float(), soft.num_classes, float(temperature))

    @staticmethod
    def cat(parts: "Sequence[TeacherOutputs]") -> "TeacherOutputs":
        """The outputs of several batches, one after the other."""
        if not isinstance(parts, (list, tuple)) or not all(isinstance(part, TeacherOutputs) for part in parts):
            raise TypeError(f"parts must be a list of TeacherOutputs, got {type(parts).__name__}")
        shapes = {(part.index.shape[1], part.num_classes, part.temperature) for part in parts}
        if len(shapes) != 1:
            raise ValueError(f"parts must have one k, number of classes and temperature, got {shapes or 'no parts'}")
        index, probability = torch.cat([p.index for p in parts]), torch.cat([p.probability for p in parts])
        return TeacherOutputs(index, probability, parts[0].num_classes, parts[0].temperature)

    def __len__(self) -> int:
        return len(self.index)

    def targets(self, remainder: Rest = "renormalise", k: int | None = None) -> SoftTargets:
        """Soft targets of the best ``k`` classes (None: all that were kept); stored dense if that is faster.

        ``remainder`` is ``rest`` of :meth:`SoftTargets.from_topk_log_probs`.
        """
        kept = self.index.shape[1]
        k = kept if k is None else as_whole(k, "k")
        if k > kept:
            raise ValueError(f"k must be in [1, {kept}], the number of classes kept per sample, got {k}")
        one_of(*get_args(Rest))(remainder, "remainder")
        soft = of_topk(SoftTargets, self.index[:, :k].long(), self.probability[:, :k], self.num_classes, remainder)
        return soft if remainder == "group" or 4 * k < self.num_classes else soft.to_dense()

    def save(self, path: str | os.PathLike[str], labels: Tensor | None = None) -> None:
        """Write the file, complete or not at all; a hash of ``labels`` (N,) is stored with it."""
        path = Path(path)
        if labels is not None and len(labels) != len(self):
            raise ValueError(f"labels has {len(labels)} entries, but there are outputs of {len(self)} samples")
        types = (torch.uint8, torch.int16, torch.int32)
        smallest = next(dtype for dtype in types if self.num_classes - 1 <= torch.iinfo(dtype).max)
        fields = {
            "classes": self.num_classes,
            "temperature": self.temperature,
            "index": self.index.to("cpu", smallest).contiguous(),
            "probability": self.probability.to("cpu", torch.float32).contiguous(),
            "labels": fingerprint(labels),
        }
        content = io.BytesIO()
        torch.save(fields, content)
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_name(f"{path.name}.{os.getpid()}.partial")
        try:
            partial.write_bytes(HEADER + hashlib.sha256(content.getbuffer()).digest() + content.getbuffer())
            partial.replace(path)
        finally:
            partial.unlink(missing_ok=True)

    @classmethod
    def load(cls, path: str | os.PathLike[str], labels: Tensor | None, num_classes: int) -> "TeacherOutputs":
        """Read the file; it must belong to samples with these ``labels`` (N,), or of this number of classes if None."""
        content = _read(Path(path))
        found = cls(content["index"].long(), content["probability"], content["classes"], content["temperature"])
        if found.num_classes != num_classes:
            raise ValueError(f"{path}: the teacher has {found.num_classes} classes, but the data has {num_classes}")
        if labels is not None and len(labels) != len(found):
            raise ValueError(f"{path}: holds outputs of {len(found)} samples, but the data has {len(labels)}")
        if labels is not None and content["labels"] not in ("", fingerprint(labels)):
            raise ValueError(f"{path}: belongs to other samples, or to these in another order: the labels differ")
        return found


def fingerprint(labels: Tensor | None) -> str:
    """SHA-256 of labels, "" for none."""
    # torch gives the bytes of a tensor by numpy only, which may not be installed
    return "" if labels is None else hashlib.sha256(struct.pack(f"<{len(labels)}q", *labels.tolist())).hexdigest()


def _read(path: Path) -> dict[str, Any]:
    """The fields of a file, checked."""
    try:
        whole = path.read_bytes()
    except OSError as error:
        raise ValueError(f"{path}: cannot be read: {error.strerror}") from None
    header, digest, content = whole[: len(HEADER)], whole[len(HEADER) :][:32], whole[len(HEADER) + 32 :]
    if header != HEADER:
        raise ValueError(f"{path}: not a file of teacher outputs that this version reads")
    if hashlib.sha256(content).digest() != digest:
        raise ValueError(f"{path}: damaged: the content has another SHA-256 than was written")
    try:
        fields: dict[str, Any] = torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
        is_whole = all(isinstance(fields[name], kind) for name, kind in FIELDS.items()) and _is_topk(fields)
    except Exception:  # torch raises many kinds of error for bytes it did not write
        is_whole = False
    if not is_whole:
        raise ValueError(f"{path}: not a file of teacher outputs, or damaged")
    return fields


def _is_topk(fields: dict[str, Any]) -> bool:
    """Whether classes and probabilities are (N, k) and in range."""
    index, probability = fields["index"].long(), fields["probability"].double()
    if index.dim() != 2 or index.shape != probability.shape or index.shape[1] == 0:
        return False
    total = probability.sum(1)
    inside = (index >= 0) & (index < fields["classes"]) & (probability >= 0)
    return bool(inside.all() & ((total > 0) & (total <= 1 + 1e-4)).all())
