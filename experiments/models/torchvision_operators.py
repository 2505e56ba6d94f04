"""Let torchvision be imported when its compiled operators cannot be loaded.

A torchvision built for CUDA fails on import beside a CPU build of torch: it describes two operators of its
compiled extension (``nms``, ``qnms``) that then do not exist. Nothing here calls them, so declaring their
signatures is enough. Import this module before torchvision, timm, torchmetrics or Lightning. It does nothing
where the extension loads.
"""

import sys
from importlib.util import find_spec
from pathlib import Path

import torch

SIGNATURE = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"


def _extension_loads(folders: list[str]) -> bool:
    libraries = [path for folder in folders for suffix in (".so", ".pyd") for path in Path(folder).glob(f"_C*{suffix}")]
    try:
        for path in libraries:
            torch.ops.load_library(path)
    except OSError:
        return False
    return bool(libraries)


def _declare() -> "torch.library.Library | None":
    """The declarations; None when the extension loads or torchvision is absent or already imported."""
    spec = None if "torchvision" in sys.modules else find_spec("torchvision")
    if spec is None or _extension_loads(list(spec.submodule_search_locations or [])):
        return None
    library = torch.library.Library("torchvision", "DEF")
    for name in ("nms", "qnms"):
        library.define(name + SIGNATURE)
    return library


library = _declare()  # the declarations live as long as this object
