"""Features of a frozen backbone: computed once and cached on disk."""

import hashlib
import json
from pathlib import Path

import torch
from rich.progress import track
from torch import Tensor, nn

from softnce.lab.atomic import replacing
from softnce.lab.data.batches import EvaluationBatches, Loader
from softnce.lab.data.image_loader import ImageRows
from softnce.lab.data.images import ImageArray, ImageFiles, Images, Part
from softnce.lab.data.transforms import evaluation_transform, statistics
from softnce.lab.recipes.recipe import Recipe


def features_of(recipe: Recipe, backbone: nn.Module, images: Images) -> Tensor:
    """Features (N, dim) of the images, prepared as in evaluation; from the cache if they are there.

    The cache key covers the model, its weights, the transform and the images (for files, their names and labels).
    """
    if isinstance(images, Part):
        return features_of(recipe, backbone, images.whole)[images.indices]
    path = cache_path(recipe, images)
    if path.is_file():
        return torch.load(path, map_location="cpu", weights_only=True)
    features = compute_features(recipe, backbone, images)
    with replacing(path, shared=True) as partial:
        torch.save(features, partial)
    return features


def cache_path(recipe: Recipe, images: Images) -> Path:
    weights = Path(recipe.model.weights)
    description = [
        recipe.model.name,
        [str(weights.resolve()), weights.stat().st_size] if weights.is_file() else recipe.model.weights,
        recipe.data.image_size,
        recipe.data.crop,
        statistics(recipe.data, recipe.model),
        recipe.compute.precision,
    ]
    digest = hashlib.sha256(json.dumps(description).encode())
    digest.update(images.labels.numpy().tobytes())
    if isinstance(images, ImageArray):
        digest.update(images.pixels.tobytes())
    elif isinstance(images, ImageFiles):
        digest.update("\n".join(images.paths.tolist()).encode())
    name = f"{recipe.model.name}-{recipe.data.kind}-{recipe.data.image_size}-{digest.hexdigest()[:16]}.pt"
    return recipe.data.cache.expanduser() / name


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
