"""The network of a checkpoint without the laboratory: weights, a program of torch.export, or ONNX."""

import json
import logging
import warnings
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal

import torch
from torch import Tensor, nn

from softnce.lab.atomic import replacing, write_text
from softnce.lab.data.transforms import statistics
from softnce.lab.recipes.recipe import AnyRecipe, GraphRecipe, Recipe, TextRecipe
from softnce.lab.train.evaluate import Trained, load_trained

Format = Literal["weights", "pt2", "onnx"]
SUFFIX: dict[Format, str] = {"weights": ".pt", "pt2": ".pt2", "onnx": ".onnx"}
LIMIT = 1e-4
"""Largest difference of a probability between a network and its export."""


Inputs = dict[str, Tensor]
"""What an exported program takes, by name and in order."""


class Classes(nn.Module):
    """A network's inputs, prepared as in training, to probabilities of the classes (N, K)."""

    def __init__(self, network: nn.Module, temperature: float) -> None:
        super().__init__()
        self.network, self.temperature = network, temperature

    def forward(self, inputs: Any) -> Tensor:
        return (self.network(inputs).float() / self.temperature).softmax(1)


class NodeClasses(nn.Module):
    """The same of a graph in parts: features (N, d), edges (2, E) and, where the network uses them, theirs (E, e)."""

    def __init__(self, network: nn.Module, temperature: float) -> None:
        super().__init__()
        self.classes = Classes(network, temperature)

    def forward(self, x: Tensor, edge_index: Tensor, edge_attr: Tensor | None = None) -> Tensor:
        return self.classes(SimpleNamespace(x=x, edge_index=edge_index, edge_attr=edge_attr))


def export(checkpoint: Path, out: Path | None = None, format: Format = "pt2") -> tuple[Path, float]:
    """Write the network of a checkpoint, and beside it a JSON file with what is needed to use it.

    Args:
        checkpoint: a file, or the folder of a run for its best.ckpt.
        out: the file; None: beside the checkpoint, with the suffix of the format.
        format: ``"weights"``: the network's state_dict, loaded with ``torch.load(weights_only=True)``; ``"pt2"``: a
            program that needs torch only; ``"onnx"``: for other runtimes. The programs take any number of images or
            sentences, or a graph of any size, and return probabilities.

    Returns:
        The file, and the largest difference of a probability to the network's own, over random inputs of another size
        than the program was traced with. Raises ValueError if the network cannot be exported, or if the difference
        exceeds 1e-4.
    """
    trained = load_trained(checkpoint)
    source = checkpoint / "best.ckpt" if checkpoint.is_dir() else checkpoint
    out = source.with_suffix(SUFFIX[format]) if out is None else out
    kind = NodeClasses if isinstance(trained.recipe, GraphRecipe) else Classes
    module = kind(trained.network.cpu(), trained.recipe.loss.temperature).eval()
    generator = torch.Generator().manual_seed(0)
    traced, other = (_random_inputs(trained, n, generator) for n in (2, 3))
    with replacing(out, shared=True) as partial:
        if format == "weights":
            torch.save(trained.network.state_dict(), partial)
            found = torch.load(partial, map_location="cpu", weights_only=True)
            trained.network.load_state_dict(found)
            answers = module(*other.values())
        else:
            write = _export_program if format == "pt2" else _export_onnx
            answers = write(module, traced, other, _sizes(trained.recipe), partial)
        with torch.no_grad():
            difference = (answers - module(*other.values())).abs().max().item()
        if not difference <= LIMIT:
            raise ValueError(f"the exported network differs from the trained one: a probability by {difference:.2g}")
    write_text(out.with_suffix(".json"), json.dumps(_about(trained), indent=2, ensure_ascii=False))
    if isinstance(trained.recipe, TextRecipe):
        from softnce.lab.models.text import tokeniser

        words = tokeniser(trained.recipe.model).backend_tokenizer
        words.no_padding()  # programs want their own, and the stored settings may pad to a fixed length
        words.enable_truncation(trained.recipe.data.max_tokens)
        write_text(out.with_suffix(".tokenizer.json"), words.to_str())
    return out, difference


def _random_inputs(trained: Trained, n: int, generator: torch.Generator) -> Inputs:
    """``n`` images or sentences, or a graph of 10·n nodes."""
    recipe = trained.recipe
    if isinstance(recipe, Recipe):
        size = recipe.data.image_size
        return {"images": torch.randn(n, 3, size, size, generator=generator)}
    if isinstance(recipe, TextRecipe):
        from softnce.lab.models.text import PADDING

        length = min(5 * n, recipe.data.max_tokens)
        tokens = torch.randint(100, (n, length), generator=generator)
        tokens[0, length // 2 :] = PADDING
        return {"tokens": tokens}
    nodes, edges = trained.features
    graph = {
        "x": torch.randn(10 * n, nodes, generator=generator),
        "edge_index": torch.randint(10 * n, (2, 30 * n), generator=generator),
        "edge_attr": torch.randn(30 * n, edges, generator=generator),
    }
    if not (edges and recipe.model.edge_features):
        del graph["edge_attr"]
    return graph


def _sizes(recipe: AnyRecipe) -> dict[str, dict[int, Any]]:
    """Which dimensions of the inputs may have any size."""
    size = torch.export.Dim
    if isinstance(recipe, Recipe):
        return {"images": {0: size("batch")}}
    if isinstance(recipe, TextRecipe):
        return {"tokens": {0: size("batch"), 1: size("length", max=recipe.data.max_tokens)}}
    edges = size("edges")
    return {"x": {0: size("nodes")}, "edge_index": {1: edges}, "edge_attr": {0: edges}}


def _about(trained: Trained) -> dict[str, Any]:
    recipe = trained.recipe
    about: dict[str, Any] = {"classes": trained.classes, "temperature": recipe.loss.temperature}
    if isinstance(recipe, Recipe):
        mean, std = statistics(recipe.data, recipe.model)
        size, crop = recipe.data.image_size, recipe.data.crop
        return about | {"image_size": size, "crop": crop, "mean": list(mean), "std": list(std)}
    if isinstance(recipe, TextRecipe):
        from softnce.lab.models.text import PADDING

        return about | {"max_tokens": recipe.data.max_tokens, "padding": PADDING}
    nodes, edges = trained.features
    return about | {"node_features": nodes, "edge_features": edges if recipe.model.edge_features else 0}


def _export_program(module: nn.Module, traced: Inputs, other: Inputs, sizes: dict[str, Any], path: Path) -> Tensor:
    """Write the program, and return what it says of ``other`` when it is read again."""
    try:
        program = torch.export.export(module, tuple(traced.values()), dynamic_shapes=[sizes[name] for name in traced])
    except Exception as error:  # whatever a network does that cannot be traced
        raise ValueError(f"torch.export cannot trace this network: {str(error).strip().splitlines()[0]}") from error
    with path.open("wb") as file:
        torch.export.save(program, file)
    with path.open("rb") as file:
        again = torch.export.load(file)
    with torch.no_grad():
        return again.module()(*other.values())


def _export_onnx(module: nn.Module, traced: Inputs, other: Inputs, sizes: dict[str, Any], path: Path) -> Tensor:
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
                tuple(traced.values()),
                str(path),
                input_names=list(traced),
                output_names=["probabilities"],
                dynamic_shapes=[sizes[name] for name in traced],
                dynamo=True,
                external_data=False,
                verbose=False,
            )
        except Exception as error:  # an operator that ONNX does not have
            raise ValueError(f"ONNX cannot express this network: {str(error).strip().splitlines()[0]}") from error
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    return torch.from_numpy(session.run(None, {name: value.numpy() for name, value in other.items()})[0])
