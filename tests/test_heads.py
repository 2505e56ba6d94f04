import pytest
import torch
from torch import nn

import softnce
from softnce import heads


def test_the_papers_head() -> None:
    head = heads.MLPHead(768, 200)
    shapes = [tuple(m.weight.shape) for m in head if isinstance(m, nn.Linear)]
    assert shapes == [(4096, 768), (4096, 4096), (200, 4096)]
    assert all(m.bias is None for m in head if isinstance(m, nn.Linear))
    assert [type(m).__name__ for m in head] == ["Linear", "BatchNorm1d", "ReLU"] * 2 + ["Linear"]


def test_output_norm_has_no_parameters_and_fixes_the_scale() -> None:
    head = heads.MLPHead(8, 5, hidden=16, output_norm=True)
    assert sum(p.numel() for p in head[-1].parameters()) == 0
    scores = head(100 * torch.randn(64, 8))
    torch.testing.assert_close(scores.std(0, correction=0), torch.ones(5), rtol=1e-3, atol=1e-3)


def test_cosine_head_sees_directions_only() -> None:
    head = heads.CosineHead(8, 5, temperature=0.1)
    z = torch.randn(3, 8)
    torch.testing.assert_close(head(z), head(7 * z))
    assert head(z).abs().max() <= 10.001
    cosine = nn.functional.cosine_similarity(z[:, None], head.weight[None], dim=-1)
    torch.testing.assert_close(head(z), cosine / 0.1)
    assert "log_temperature" in dict(head.named_parameters())
    fixed = heads.CosineHead(8, 5, learn_temperature=False)
    assert "log_temperature" in dict(fixed.named_buffers())


def test_a_label_table_says_what_it_needs() -> None:
    with pytest.raises(ValueError, match="at least 1, got 3 and 0"):
        heads.LabelEmbeddingHead(3, 0)
    head = heads.LabelEmbeddingHead(3, 5)
    with pytest.raises(TypeError, match=r"criterion must be .* got NLL, which needs the logits"):
        head.loss(torch.randn(2, 3), torch.tensor([0, 1]), softnce.NLL())  # type: ignore[arg-type]
