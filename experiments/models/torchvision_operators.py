"""Lets torchvision be imported where its compiled operators cannot be loaded.

A torchvision built for CUDA fails on import beside a CPU build of torch: it describes operators of its extension that
then do not exist. Nothing here calls them, so their signatures are enough. The packages data, models and cells import
this module before anything imports torchvision, timm, torchmetrics, transformers or Lightning.
"""

import sys
from importlib.util import find_spec
from pathlib import Path

import torch

library = None  # the declarations live as long as this object
spec = None if "torchvision" in sys.modules else find_spec("torchvision")
if spec is not None and spec.origin is not None:
    extensions = [path for path in Path(spec.origin).parent.glob("_C*") if path.suffix in (".so", ".pyd")]
    try:
        for path in extensions:
            torch.ops.load_library(path)
    except OSError:
        extensions = []
    if not extensions:
        library = torch.library.Library("torchvision", "DEF")
        for name in ("nms", "qnms"):
            library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
