"""One model of every family of timm through the laboratory: built, its features, an update's gradients.

    python tests/lab/models/families.py     prints the table in docs/training.md; two minutes, almost no memory

Networks are on the meta device: every operation runs on shapes alone. A family is a module of timm.
"""

import warnings
from collections.abc import Iterator
from dataclasses import dataclass

import torch

from softnce.lab.models.images import build_network, form_of
from softnce.lab.optimiser import parameter_groups
from softnce.lab.recipes.recipe import Head, Model, Optimiser

import timm  # isort: skip


SKIPPED = {"gemma4_vit": "not tried: it computes from values, so it would need memory and minutes"}


@dataclass(frozen=True)
class Answer:
    """What a model gives for images of a size, or why it cannot."""

    features: int = 0
    drop_path: bool = False
    refused: str = ""


def families() -> Iterator[tuple[str, str]]:
    """Each module of timm with the first of its models."""
    firsts: dict[str, str] = {}
    for name in timm.list_models():
        firsts.setdefault(timm.models.model_entrypoint(name).__module__.rpartition(".")[2], name)
    yield from sorted(firsts.items())


def try_out(name: str, size: int) -> Answer:
    """Build the network with a linear head, group its parameters by layer, and take the gradient of a loss."""
    drop_path = 0.1
    try:
        form_of(name, drop_path, size)
    except ValueError as error:
        if "no stochastic depth" not in str(error):
            return Answer(refused=str(error))
        drop_path = 0.0
    try:
        with torch.device("meta"):
            network = build_network(Model(name, drop_path=drop_path), Head("linear"), 10, size)
            groups = parameter_groups(network, Optimiser(layer_decay=0.75))
            network.train()(torch.zeros(2, 3, size, size)).logsumexp(1).mean().backward()
    except ValueError as error:
        return Answer(refused=str(error))
    grouped = {id(p) for group in groups for p in group["params"]}
    assert grouped == {id(p) for p in network.parameters() if p.requires_grad}
    assert network.head.weight.grad is not None
    return Answer(network.head.in_features, drop_path > 0)


def main() -> None:
    warnings.simplefilter("ignore")
    print(f"timm {timm.__version__}\n")
    print("| family | model | features | stochastic depth | own size | 64 px |\n|---|---|---|---|---|---|")
    answers = []
    for family, name in families():
        if family in SKIPPED:
            print(f"| {family} | `{name}` | | | {SKIPPED[family]} | |")
            continue
        size = timm.models.get_pretrained_cfg(name).input_size[-1]
        own, small = try_out(name, size), try_out(name, 64)
        answers.append((own, small))
        cells = [f"{size} px: {own.refused}" if own.refused else f"{size}", small.refused or "yes"]
        print(
            f"| {family} | `{name}` | {own.features} | {'yes' if own.drop_path else 'no'} | {' | '.join(cells)} |",
            flush=True,
        )
    works, also = (sum(not answer.refused for answer in column) for column in zip(*answers, strict=True))
    print(f"\n{works} of {len(answers)} families work at their own size, {also} also at 64 px")


if __name__ == "__main__":
    main()
