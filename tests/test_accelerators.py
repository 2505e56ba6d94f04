"""What a step asks of an accelerator, without one: tensors on the device "meta" stand in for those of a GPU.

They have shapes and no values: reading one raises an error, as reading one of a GPU would make the host wait. Every
operation that is dispatched is counted, and the memory of its results for as long as they live. No time is measured.
"""

import weakref
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from softnce import (
    BatchCandidates,
    ExpectedInfoNCE,
    NoiseCandidates,
    SoftTargetInfoNCE,
    SoftTargets,
    _inputs,
    noise,
    set_memory_budget,
    set_validation,
)
from softnce._core import contrast as kernel
from softnce.heads import LabelEmbeddingHead
from softnce.targets import soft_targets

K = 1000
FREE = {"detach", "alias", "lift_fresh", "empty", "empty_like", "empty_strided", "new_empty", "promote_types"}
"""Operations that launch nothing."""
LOSSES = {"soft target": SoftTargetInfoNCE, "expected": ExpectedInfoNCE}


class Trace(TorchDispatchMode):
    """Operations that launch something, and the most bytes that were allocated at once."""

    def __init__(self, logits: torch.Tensor) -> None:
        super().__init__()
        self.launched: list[str] = []
        self.now = self.peak = 0
        self._known = {logits.untyped_storage()._cdata}

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = function(*args, **(kwargs or {}))
        if not function.is_view and function._opname not in FREE:
            self.launched.append(function._opname)
        for found in result if isinstance(result, (tuple, list)) else [result]:
            if isinstance(found, torch.Tensor) and not found.is_sparse:
                self._allocate(found.untyped_storage())
        return result

    def _allocate(self, storage: torch.UntypedStorage) -> None:
        key, size = storage._cdata, storage.nbytes()
        if key in self._known:
            return
        self._known.add(key)
        self.now += size
        self.peak = max(self.peak, self.now)
        weakref.finalize(storage, self._free, key, size)

    def _free(self, key: int, size: int) -> None:
        self._known.discard(key)
        self.now -= size


@pytest.fixture
def as_if_real(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tensors of ``meta`` are taken for some of a GPU after the first calls."""
    for module in (_inputs, soft_targets):
        monkeypatch.setattr(module, "values_are_readable", lambda *_: True)
    monkeypatch.setattr(_inputs, "FIRST", 0)


def targets(kind: str, rows: int, smoothing: float = 0.1) -> torch.Tensor | SoftTargets:
    labels = torch.zeros(rows, dtype=torch.long, device="meta")
    if kind == "labels":
        return labels
    if kind == "dense":
        return torch.empty(rows, K, device="meta")
    soft = SoftTargets(K, labels[:, None], None, smoothing)
    return soft.mix(soft.flip(0), torch.empty(rows, device="meta"))


def trace(name: str, kind: str, rows: int) -> Trace:
    loss = LOSSES[name](noise.uniform(K)).to("meta")
    logits, given = torch.empty(rows, K, device="meta").requires_grad_(), targets(kind, rows)
    with Trace(logits) as traced:
        loss(logits, given).backward()
    return traced


def trace_table(kind: str) -> Trace:
    head = LabelEmbeddingHead(64, K).to("meta")
    loss = ExpectedInfoNCE(noise.uniform(K), candidates=BatchCandidates() + NoiseCandidates(1024)).to("meta")
    features, given = torch.empty(720, 64, device="meta").requires_grad_(), targets(kind, 720, smoothing=0.0)
    head.loss(features, given, loss).backward()  # keeps what later draws from η use again
    with Trace(features) as traced:
        head.loss(features, given, loss).backward()
    return traced


@pytest.mark.parametrize("rows", [1024, 8192])
@pytest.mark.parametrize("kind", ["labels", "pairs", "dense"])
@pytest.mark.parametrize("name", LOSSES)
def test_a_step_is_a_few_launches_at_any_size_and_no_wait(as_if_real: None, name: str, kind: str, rows: int) -> None:
    assert len(trace(name, kind, rows).launched) <= 60


@pytest.mark.parametrize("name", LOSSES)
def test_memory_keeps_to_the_budget(as_if_real: None, name: str) -> None:
    rows, logits, before = 8192, 4 * 8192 * K, kernel._budget
    try:
        large = trace(name, "pairs", rows)
        set_memory_budget(64 << 20)
        small = trace(name, "pairs", rows)
    finally:
        set_memory_budget(before)
    # Besides the block: the gradient, the labels and what a few columns of all rows take.
    assert large.peak <= before + 1.1 * logits
    assert small.peak <= (64 << 20) + 1.1 * logits
    assert len(small.launched) > len(large.launched) or name == "expected"


@pytest.mark.parametrize("kind", ["labels", "pairs"])
def test_a_step_from_a_table_waits_for_nothing(as_if_real: None, kind: str) -> None:
    """Sorting the classes, drawing negatives and two products come on top of the loss."""
    assert len(trace_table(kind).launched) <= 100


def test_reading_is_noticed(as_if_real: None) -> None:
    with pytest.raises((RuntimeError, NotImplementedError)):
        bool(torch.empty(3, device="meta").sum() > 0)


def test_values_are_checked_in_the_first_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_inputs, "values_are_readable", lambda *_: True)
    with set_validation(True):
        wide, narrow = torch.empty(3, 5, device="meta"), torch.empty(3, 4, device="meta")
        assert [_inputs.values_are_checked(wide) for _ in range(10)] == [True] * 8 + [False] * 2
        assert _inputs.values_are_checked(narrow)
        set_validation(True)
        assert _inputs.values_are_checked(wide)
        assert all(_inputs.values_are_checked(torch.empty(3, 5)) for _ in range(10))
