"""Features of a frozen backbone: computed once and cached on disk, under a name that follows from their content."""

import hashlib
import json
import warnings
from dataclasses import asdict
from pathlib import Path

import timm
import torch
from filelock import FileLock
from torch import Tensor, nn

from experiments.data import stored
from experiments.data.images import Images
from experiments.data.transforms import View

CACHE = Path("~/.cache/softnce")
BATCH = 100


def features_of(images: Images, backbone: nn.Module, seen: View, name: str, cache: Path = CACHE) -> Tensor:
    """Features (N, dim) of the images of a split; from the cache if they are there and not damaged.

    The cache key covers the content of the backbone's weights and of the images, and the view.
    """
    digest = hashlib.blake2b(json.dumps([timm.__version__, "32", asdict(seen)]).encode(), digest_size=8)
    digest.update(weights_digest(backbone) + images.labels.numpy().tobytes())
    if images.are_files:
        for path in images.inputs.tolist():
            digest.update(hashlib.blake2b(Path(path).read_bytes()).digest())
    else:
        digest.update(repr(images.inputs.shape).encode() + images.inputs.tobytes())
    path = cache.expanduser() / f"{name}-{seen.size}-{digest.hexdigest()}.pt"
    path.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(path.parent / ".lock"):  # several processes may want them, one computes them
        if path.is_file():
            try:
                return stored.load(path)
            except stored.Unreadable as error:
                warnings.warn(f"computing features again: {path}: {error}", stacklevel=2)
        features = _compute(images, backbone, seen)
        partial = path.with_suffix(".partial")
        torch.save(features, partial)
        partial.replace(path)
    return features


def weights_digest(network: nn.Module) -> bytes:
    """Changes with any parameter or buffer."""
    digest = hashlib.blake2b()
    for name, value in network.state_dict().items():
        digest.update(f"{name} {value.dtype} {tuple(value.shape)}".encode())
        digest.update(value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.digest()


@torch.inference_mode()
def _compute(images: Images, backbone: nn.Module, seen: View) -> Tensor:
    from rich.progress import track

    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model: nn.Module = backbone.eval().to(device)
    model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    transform, parts = seen.transform(), []
    for start in track(range(0, len(images), BATCH), f"features of {len(images):,} images", transient=True):
        rows = range(start, min(start + BATCH, len(images)))
        inputs = torch.stack([transform(images.image(row)) for row in rows])
        parts.append(model(inputs.to(device, memory_format=torch.channels_last)).float().cpu())
    return torch.cat(parts)
