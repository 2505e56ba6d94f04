"""From an image to the model's input tensor, by timm, as in MAE's fine-tuning."""

from collections.abc import Callable

from PIL import Image
from torch import Tensor

from softnce.lab.models import torchvision_operators  # noqa: F401  (before timm)
from softnce.lab.models.images import PACKAGED_MEAN, PACKAGED_STD
from softnce.lab.recipes.recipe import Data, Model

from timm.data import auto_augment, create_transform  # isort: skip
from timm.models import get_pretrained_cfg  # isort: skip

Transform = Callable[[Image.Image], Tensor]


def _posterize(image: Image.Image, bits: int, **_: object) -> Image.Image:
    # RandAugment at its strongest keeps 0 bits, which Pillow took for black until version 13 made it an error
    return Image.new(image.mode, image.size) if bits == 0 else auto_augment.posterize(image, bits)


for _name in ("Posterize", "PosterizeIncreasing", "PosterizeOriginal", "PosterizeTpu"):
    if _name in auto_augment.NAME_TO_OP:
        auto_augment.NAME_TO_OP[_name] = _posterize

# mean and deviation of the channels of each training set
STATISTICS = {
    "imagenet": ([0.485, 0.456, 0.406], [0.229, 0.224, 0.225]),
    "tiny-imagenet": ([0.4802, 0.4481, 0.3975], [0.2302, 0.2265, 0.2262]),
    "cifar100": ([0.5071, 0.4867, 0.4408], [0.2675, 0.2565, 0.2761]),
    "cifar10": ([0.4914, 0.4822, 0.4465], [0.2470, 0.2435, 0.2616]),
    "digits": ([0.3058] * 3, [0.3759] * 3),
}


def statistics(data: Data, model: Model) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Channel means and deviations: as given, as the weights were trained with, or the data set's (or ImageNet's).

    MAE's weights and those of files get the data set's, as in the paper.
    """
    mean, deviation = STATISTICS.get(data.kind, STATISTICS["imagenet"])
    if model.weights == "packaged":
        mean, deviation = PACKAGED_MEAN, PACKAGED_STD
    elif model.weights == "hub" and (theirs := get_pretrained_cfg(model.name)):
        mean, deviation = list(theirs.mean), list(theirs.std)
    return tuple(data.mean or mean), tuple(data.std or deviation)


def evaluation_transform(data: Data, model: Model) -> Transform:
    """Resize the shorter side to image_size/crop (bicubic), crop the centre, normalise."""
    mean, deviation = statistics(data, model)
    return create_transform(
        data.image_size, interpolation="bicubic", mean=mean, std=deviation, crop_pct=data.crop, is_training=False
    )


def training_transform(data: Data, model: Model) -> Transform:
    """Random resized crop, flip, RandAugment, normalise, random erasing (noise)."""
    if data.augment == "none":
        return evaluation_transform(data, model)
    mean, deviation = statistics(data, model)
    try:
        return create_transform(
            data.image_size,
            is_training=True,
            scale=(data.smallest_crop, 1.0),
            color_jitter=0.0,
            auto_augment=None if data.augment == "crop" else data.augment,
            interpolation="bicubic",
            re_prob=data.erasing,
            re_mode="pixel",
            mean=mean,
            std=deviation,
        )
    except (AssertionError, ValueError, KeyError, IndexError) as error:
        raise ValueError(
            f"data.augment: got {data.augment!r}, need none, crop or a string of timm such as rand-m9-mstd0.5-inc1"
        ) from error
