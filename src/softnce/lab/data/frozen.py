"""Features of a frozen backbone: computed once and cached on disk, under a name that follows from their content."""

import hashlib
import json
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch
from rich.progress import track
from torch import Tensor, nn

from softnce.lab import stored
from softnce.lab.atomic import replacing
from softnce.lab.data.batches import EvaluationBatches, Loader
from softnce.lab.data.image_loader import ImageRows
from softnce.lab.data.images import ImageArray, ImageFiles, Images, Part
from softnce.lab.data.transforms import evaluation_transform, statistics
from softnce.lab.recipes.recipe import Recipe

import timm  # isort: skip


def features_of(recipe: Recipe, backbone: nn.Module, images: Images) -> Tensor:
    """Features (N, dim) of the images, prepared as in evaluation; from the cache if they are there.

    The cache key covers the content of the backbone's weights and of the images, the network and the transform; so a
    start reads every image once to see that none has changed. A damaged file is computed again.
    """
    if isinstance(images, Part):
        return features_of(recipe, backbone, images.whole)[images.indices]
    path = cache_path(recipe, backbone, images)
    if path.is_file():
        try:
            features = stored.load(path)
            if isinstance(features, Tensor) and len(features) == len(images.labels):
                return features
            reason = "it does not hold a row per image"
        except stored.Unreadable as error:
            reason = str(error)
        warnings.warn(f"computing features again: {path}: {reason}", stacklevel=2)
    features = compute_features(recipe, backbone, images)
    try:
        with replacing(path, shared=True) as partial, partial.open("wb") as file:
            torch.save(features, file)
    except (OSError, RuntimeError) as error:  # torch reports a failed write as either
        warnings.warn(f"the features are not kept: cannot write {path}: {error}", stacklevel=2)
    return features


def cache_path(recipe: Recipe, backbone: nn.Module, images: Images) -> Path:
    description = [
        recipe.model.name,
        timm.__version__,
        recipe.data.image_size,
        recipe.data.crop,
        statistics(recipe.data, recipe.model),
        recipe.compute.precision,
        *(["skip"] if recipe.data.corrupt == "skip" else []),  # other images may stand in for unreadable ones
    ]
    digest = hashlib.blake2b(json.dumps(description).encode(), digest_size=8)
    digest.update(weights_digest(backbone))
    digest.update(images.labels.numpy().tobytes())
    if isinstance(images, ImageArray):
        digest.update(repr(images.pixels.shape).encode())
        digest.update(images.pixels.tobytes())
    elif isinstance(images, ImageFiles):
        with ThreadPoolExecutor(8) as pool:
            for content in pool.map(_file_digest, images.paths.tolist()):
                digest.update(content)
    name = f"{recipe.model.name}-{recipe.data.kind}-{recipe.data.image_size}-{digest.hexdigest()}.pt"
    return recipe.data.cache.expanduser() / name


def weights_digest(network: nn.Module) -> bytes:
    """Changes with any parameter or buffer."""
    digest = hashlib.blake2b()
    for name, value in network.state_dict().items():
        digest.update(f"{name} {value.dtype} {tuple(value.shape)}".encode())
        digest.update(value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.digest()


def _file_digest(path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return hashlib.file_digest(file, "blake2b").digest()
    except OSError:  # as unreadable now as when its features are computed, which reports it
        return b"unreadable"


@torch.inference_mode()
def compute_features(recipe: Recipe, backbone: nn.Module, images: Images) -> Tensor:
    """Features (N, dim) in float32. Mixed precision and compilation as in the recipe; 100 images per pass."""
    wanted = recipe.compute.accelerator
    device = torch.device("cuda" if wanted in ("auto", "gpu") and torch.cuda.is_available() else "cpu")
    halves = {"bf16": torch.bfloat16, "fp16": torch.float16}
    low = halves.get(recipe.compute.precision)
    model = backbone.eval().to(device)
    model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    run = torch.compile(model) if recipe.compute.compile else model
    rows = ImageRows(images, evaluation_transform(recipe.data, recipe.model), skip=recipe.data.corrupt == "skip")
    size = 100
    loader = Loader(rows, EvaluationBatches(len(images.labels), size), recipe.data.workers)
    parts = []
    text = f"features of {len(images.labels):,} images by {recipe.model.name}"
    for batch in track(loader, text, disable=not recipe.compute.progress):
        inputs = batch.inputs.to(device, memory_format=torch.channels_last)
        # the last batch is filled up, so that a compiled model sees one shape
        filled = torch.cat([inputs, inputs.new_zeros(size - len(inputs), *inputs.shape[1:])])
        with torch.autocast(device.type, low, enabled=low is not None):
            parts.append(run(filled)[: len(inputs)].float().cpu())
    return torch.cat(parts)
