"""Wrong arguments of constructors and methods are refused in one line that names the argument."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from softnce import SoftTargets

N, K = 4, 3
LABELS = torch.tensor([0, 1, 2, 1])
LOGITS = torch.tensor([[2.0, -1, 0], [0, 1, 0], [1, 0, 3], [-1, 2, 0]])
PROBS = LOGITS.softmax(1)
SOFT = SoftTargets.from_labels(LABELS, K)
OTHER_K = SoftTargets.from_labels(LABELS, K + 1)
NUMBERS = ["1", None, True, math.nan]
WHOLE = ["2", 2.5, None, True, 0, -1]
SMOOTHING = {"smoothing": [*NUMBERS, 1.5, -0.1], "smoothing_dist": [torch.ones(K), [0.5, 0.5], "uniform", PROBS]}
NO_LABELS = ["text", None, 3, LABELS + 1, LABELS - 1, LABELS.float(), LABELS > 0, LABELS[None], np.array(["a"])]
NO_LOGITS = ["text", None, LABELS, LOGITS[0], torch.full((N, K), -math.inf), LOGITS * math.nan, LOGITS + math.inf]
NO_PROBS = [LOGITS, LABELS, PROBS[0], torch.ones(N, K), torch.ones(N, 0), PROBS * math.nan, [[0.5], [0.5, 0.5]]]
NO_VOTES = ["text", LABELS, torch.zeros(N, K), -torch.ones(N, K), torch.ones(N, K) > 0, torch.ones(N, 7)]
NO_PAIRS = [torch.ones(N), torch.ones(N, 1).long(), torch.full((N, 1), 0.5), torch.ones(N, 2)]
NO_ROWS = [N, -N - 1, None, "0", 0.5, True, [0.5], [N], (0, 0), torch.ones(N + 1) > 0, torch.zeros(1, 1).long(), ["a"]]

CALLS: list[tuple[Callable[..., Any], dict[str, Any], dict[str, list[Any]]]] = [
    (SoftTargets, {"num_classes": K, "index": LABELS[:, None], "weight": None}, {"index": [None]}),
    (
        SoftTargets.from_labels,
        {"labels": LABELS, "num_classes": K},
        {"labels": [*NO_LABELS, [0, "1"]], "num_classes": WHOLE, "ignore_index": ["255", 2.5, None, True], **SMOOTHING},
    ),
    (SoftTargets.from_dense, {"probs": PROBS}, {"probs": ["text", None, *NO_PROBS]}),
    (
        SoftTargets.from_pairs,
        {"index": LABELS[:, None], "weight": torch.ones(N, 1), "num_classes": K},
        {
            "index": ["text", None, LABELS, LABELS[:, None] + 1, LABELS[:, None].float(), [[0], [1]]],
            "weight": ["text", None, *NO_PAIRS],
            "num_classes": WHOLE,
        },
    ),
    (
        SoftTargets.from_topk,
        {"logits": LOGITS, "k": 2},
        {"logits": NO_LOGITS, "k": [*WHOLE, K + 1], "temperature": [*NUMBERS, 0.0], "remainder": ["drop", None]},
    ),
    (
        SoftTargets.from_topk_log_probs,
        {"index": LABELS[:, None], "log_probs": torch.zeros(N, 1), "num_classes": K},
        {
            "index": ["text", LABELS, LABELS[:, None] + 1],
            "log_probs": ["text", torch.zeros(N), torch.ones(N, 1), torch.full((N, 1), -math.inf), LABELS[:, None]],
            "num_classes": WHOLE,
            "rest": ["drop", None, 1],
        },
    ),
    (
        SoftTargets.from_votes,
        {"counts": torch.ones(N, K), "num_classes": K},
        {"counts": NO_VOTES, "num_classes": WHOLE, **SMOOTHING},
    ),
    (
        SOFT.mix,
        {"other": SOFT.flip(0), "lam": 0.5},
        {
            "other": [LABELS, None, SOFT[:2], OTHER_K],
            "lam": ["half", None, 1.5, -0.1, math.nan, torch.ones(N + 1), torch.full((N,), 2.0), [0.5]],
        },
    ),
    (SOFT.smooth, {"smoothing": 0.1}, {**SMOOTHING}),
    (SOFT.flip, {"dim": 0}, {"dim": [1, -1, None, "rows"]}),
    (SOFT.to, {"device": "cpu"}, {"device": [LABELS, 1.5], "dtype": [torch.long, "float32"]}),
    (SoftTargets.cat, {"parts": [SOFT, SOFT]}, {"parts": [[], SOFT, LABELS, [SOFT, LABELS], [SOFT, OTHER_K], None, 3]}),
    (lambda others: SOFT.compact(others), {"others": SOFT}, {"others": [LABELS, None, SOFT.smooth(0.1), OTHER_K]}),
    (SOFT.allclose, {"other": SOFT}, {"other": [LABELS, None, SOFT[:2]]}),
    (SOFT.argmax, {}, {"ignore_index": ["255", 2.5, None, True]}),
    (SOFT.sample, {}, {"generator": [0, "seed"]}),
    (lambda rows: SOFT[rows], {"rows": 0}, {"rows": NO_ROWS}),
]


@pytest.mark.parametrize(("call", "good", "wrong"), CALLS)
def test_wrong_arguments_are_named(call: Callable[..., Any], good: dict, wrong: dict) -> None:
    call(**good)
    for argument, values in wrong.items():
        for value in values:
            with pytest.raises((ValueError, TypeError, IndexError), match=rf"\b{argument}\b"):
                call(**{**good, argument: value})
