"""The network of a checkpoint without the laboratory: weights, a program of torch.export, or ONNX."""

import json
import logging
import warnings
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from softnce.lab.atomic import replacing, write_text
from softnce.lab.data.transforms import statistics
from softnce.lab.recipes.recipe import Recipe
from softnce.lab.train.evaluate import Trained, load_trained

Format = Literal["weights", "pt2", "onnx"]
SUFFIX: dict[Format, str] = {"weights": ".pt", "pt2": ".pt2", "onnx": ".onnx"}
LIMIT = 1e-4
"""Largest difference of a probability between a network and its export."""


class Classes(nn.Module):
    """Images (N, 3, S, S), normalised as in training, to probabilities of the classes (N, K)."""

    def __init__(self, network: nn.Module, temperature: float) -> None:
        super().__init__()
        self.network, self.temperature = network, temperature

    def forward(self, images: Tensor) -> Tensor:
        return (self.network(images).float() / self.temperature).softmax(1)


def export(checkpoint: Path, out: Path | None = None, format: Format = "pt2") -> tuple[Path, float]:
    """Write the network of a checkpoint of images, and beside it a JSON file with what is needed to use it.

    Args:
        checkpoint: a file, or the folder of a run for its best.ckpt.
        out: the file; None: beside the checkpoint, with the suffix of the format.
        format: ``"weights"``: the network's state_dict, loaded with ``torch.load(weights_only=True)``; ``"pt2"``: a
            program that needs torch only; ``"onnx"``: for other runtimes. The programs take any number of images and
            return probabilities.

    Returns:
        The file, and the largest difference of a probability to the network's own, over three random images of another
        batch size than the program was traced with. Raises ValueError if the network cannot be exported, or if the
        difference exceeds 1e-4.
    """
    trained = load_trained(checkpoint)
    if not isinstance(trained.recipe, Recipe):
        raise ValueError(f"{checkpoint} does not classify images, and only networks of images can be exported")
    source = checkpoint / "best.ckpt" if checkpoint.is_dir() else checkpoint
    out = source.with_suffix(SUFFIX[format]) if out is None else out
    size = trained.recipe.data.image_size
    module = Classes(trained.network.cpu(), trained.recipe.loss.temperature).eval()
    generator = torch.Generator().manual_seed(0)
    traced, other = (torch.randn(n, 3, size, size, generator=generator) for n in (2, 3))
    with replacing(out, shared=True) as partial:
        if format == "weights":
            torch.save(trained.network.state_dict(), partial)
            found = torch.load(partial, map_location="cpu", weights_only=True)
            trained.network.load_state_dict(found)
            answers = module(other)
        else:
            answers = (_export_program if format == "pt2" else _export_onnx)(module, traced, other, partial)
        with torch.no_grad():
            difference = (answers - module(other)).abs().max().item()
        if not difference <= LIMIT:
            raise ValueError(f"the exported network differs from the trained one: a probability by {difference:.2g}")
    write_text(out.with_suffix(".json"), json.dumps(_about(trained), indent=2, ensure_ascii=False))
    return out, difference


def _about(trained: Trained) -> dict[str, Any]:
    recipe = trained.recipe
    assert isinstance(recipe, Recipe)
    mean, std = statistics(recipe.data, recipe.model)
    return {
        "classes": trained.classes,
        "image_size": recipe.data.image_size,
        "crop": recipe.data.crop,
        "mean": list(mean),
        "std": list(std),
        "temperature": recipe.loss.temperature,
    }


def _export_program(module: nn.Module, traced: Tensor, other: Tensor, path: Path) -> Tensor:
    """Write the program, and return what it says of ``other`` when it is read again."""
    batch = torch.export.Dim("batch")
    try:
        program = torch.export.export(module, (traced,), dynamic_shapes={"images": {0: batch}})
    except Exception as error:  # whatever a network does that cannot be traced
        raise ValueError(f"torch.export cannot trace this network: {str(error).strip().splitlines()[0]}") from error
    with path.open("wb") as file:
        torch.export.save(program, file)
    with path.open("rb") as file:
        again = torch.export.load(file)
    with torch.no_grad():
        return again.module()(other)


def _export_onnx(module: nn.Module, traced: Tensor, other: Tensor, path: Path) -> Tensor:
    """As :func:`_export_program`, for ONNX; read again by onnxruntime."""
    try:
        import onnxruntime
    except ModuleNotFoundError:
        raise ValueError("format onnx needs onnx, onnxscript and onnxruntime: pip install 'softnce[export]'") from None
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of torch about its own exporter
        try:
            torch.onnx.export(
                module,
                (traced,),
                str(path),
                input_names=["images"],
                output_names=["probabilities"],
                dynamic_shapes={"images": {0: torch.export.Dim("batch")}},
                dynamo=True,
                external_data=False,
                verbose=False,
            )
        except Exception as error:  # an operator that ONNX does not have
            raise ValueError(f"ONNX cannot express this network: {str(error).strip().splitlines()[0]}") from error
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    return torch.from_numpy(session.run(None, {"images": other.numpy()})[0])
