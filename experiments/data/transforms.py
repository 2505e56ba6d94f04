"""From an image to the network's input, by timm, as in MAE's fine-tuning."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from types import ModuleType

from PIL import Image
from torch import Tensor

Transform = Callable[[Image.Image], Tensor]
# mean and deviation of the channels of each training set
STATISTICS = {
    "imagenet": ([0.485, 0.456, 0.406], [0.229, 0.224, 0.225]),
    "tiny-imagenet": ([0.4802, 0.4481, 0.3975], [0.2302, 0.2265, 0.2262]),
    "cifar100": ([0.5071, 0.4867, 0.4408], [0.2675, 0.2565, 0.2761]),
    "cifar10": ([0.4914, 0.4822, 0.4465], [0.2470, 0.2435, 0.2616]),
    "digits": ([0.3058] * 3, [0.3759] * 3),
}


@dataclass(frozen=True)
class View:
    """How a network sees images in evaluation: the shorter side resized to size/crop, its centre, normalised."""

    size: int
    crop: float
    mean: Sequence[float]
    std: Sequence[float]

    def transform(self, **options: object) -> Transform:
        """timm's, for evaluation unless ``options`` say otherwise."""
        options = {"is_training": False, "crop_pct": self.crop} | options
        return _timm().create_transform(self.size, interpolation="bicubic", mean=self.mean, std=self.std, **options)


def view(kind: str, weights: str, model: str, size: int, crop: float) -> View:
    """The view with the channel statistics of the weights, or of the data set (or ImageNet) for MAE's and none."""
    mean, std = STATISTICS.get(kind, STATISTICS["imagenet"])
    if weights == "packaged":  # EfficientNet-Lite was trained on (x·255 − 127)/128
        mean, std = [127 / 255] * 3, [128 / 255] * 3
    elif weights == "hub":
        from timm.models import get_pretrained_cfg

        if theirs := get_pretrained_cfg(model):
            mean, std = list(theirs.mean), list(theirs.std)
    return View(size, crop, mean, std)


def training_transform(seen: View, augment: str, smallest_crop: float, erasing: float) -> Transform:
    """Random resized crop of at least ``smallest_crop`` of the area, flip, RandAugment, normalise, random erasing.

    ``augment`` is timm's AutoAugment/RandAugment string; ``crop``: crop and flip only; ``none``: as in evaluation.
    """
    if augment == "none":
        return seen.transform()
    policy = None if augment == "crop" else augment
    random = {"scale": (smallest_crop, 1.0), "color_jitter": 0.0, "auto_augment": policy, "re_prob": erasing}
    try:
        return seen.transform(is_training=True, re_mode="pixel", **random)
    except (AssertionError, ValueError, KeyError, IndexError) as error:
        raise ValueError(
            f"data.augment: got {augment!r}, need none, crop or a string of timm such as rand-m9-mstd0.5-inc1"
        ) from error


@cache
def _timm() -> ModuleType:
    """timm's transforms, with a posterize of 0 bits: RandAugment's strongest, an error since Pillow 13."""
    import timm.data
    from timm.data import auto_augment

    def posterize(image: Image.Image, bits: int, **_: object) -> Image.Image:
        return Image.new(image.mode, image.size) if bits == 0 else auto_augment.posterize(image, bits)

    for name in ("Posterize", "PosterizeIncreasing", "PosterizeOriginal", "PosterizeTpu"):
        auto_augment.NAME_TO_OP[name] = posterize
    return timm.data
