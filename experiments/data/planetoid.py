"""The citation graphs Cora, CiteSeer and PubMed from their published files, which are pickles, without unpickling.

A pickle names functions to call, so a manipulated file runs code in every reader that obeys it. Here each of the six
names that these files use stands for an object that only keeps its arguments, and any other name is an error. Arrays
are then built from the kept values.
"""

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch_geometric.data import Data
from torch_geometric.utils import coalesce, index_to_mask, remove_self_loops

PARTS = ("x", "tx", "allx", "y", "ty", "ally", "graph", "test.index")
VALIDATION = 500
"""Nodes after the training nodes that choose the epoch."""


def read_graph(raw: Path, name: str) -> Data:
    """The graph in ``raw/ind.<name>.*`` with the masks of its public split; the same as PyG's ``Planetoid`` reads.

    Raises FileNotFoundError if files are missing and ValueError if they do not hold such a graph.
    """
    paths = {part: raw / f"ind.{name.lower()}.{part}" for part in PARTS}
    if missing := [path.name for path in paths.values() if not path.is_file()]:
        raise FileNotFoundError(f"{raw}: missing {', '.join(missing)}")
    tx, allx, y, ty, ally = (_matrix(paths[part]) for part in ("tx", "allx", "y", "ty", "ally"))
    neighbours = _content(paths["graph"])
    try:
        tested = torch.from_numpy(np.loadtxt(paths["test.index"], dtype=np.int64, ndmin=1))
        # test nodes are stored in another order than they are numbered; in CiteSeer some isolated ones are left out
        first, ordered = int(tested.min()), tested.sort().values
        x, labels = (
            torch.cat([known, known.new_zeros(int(tested.max()) + 1 - first, known.shape[1])]) for known in (allx, ally)
        )
        x[tested], labels[tested] = tx, ty
        if first != len(allx) or len(ordered.unique()) != len(tx):
            raise ValueError("test.index does not number the nodes that follow allx")
        count, known = len(x), len(y)
        edges = torch.tensor([(node, other) for node, others in neighbours.items() for other in others]).T
        if edges.dtype != torch.long or int(edges.min()) < 0 or int(edges.max()) >= count:
            raise ValueError(f"graph has nodes outside 0 … {count - 1}")
        return Data(
            x=x,
            edge_index=coalesce(remove_self_loops(edges)[0], num_nodes=count, sort_by_row=False),
            y=labels.argmax(1),
            train_mask=index_to_mask(torch.arange(known), size=count),
            val_mask=index_to_mask(torch.arange(known, known + VALIDATION), size=count),
            test_mask=index_to_mask(tested, size=count),
        )
    except (ValueError, IndexError, RuntimeError, TypeError, AttributeError) as error:
        raise ValueError(f"{raw} does not hold {name}: {' '.join(str(error).split())}") from error


class _Kept:
    """Stands for an object of a pickle: its arguments and its state."""

    def __init__(self, *arguments: Any) -> None:
        self.arguments = arguments
        self.state: Any = None

    def __setstate__(self, state: Any) -> None:
        self.state = state


class _Array(_Kept):
    def values(self) -> np.ndarray:
        _, shape, kind, transposed, content = self.state
        (code, *_), (_, order, *_) = kind.arguments, kind.state
        if code not in ("f4", "f8", "i4", "i8") or order not in ("<", ">"):
            raise ValueError(f"its numbers are {order}{code}")
        flat = np.frombuffer(content if isinstance(content, bytes) else content.encode("latin1"), f"{order}{code}")
        return flat.reshape(shape, order="F" if transposed else "C")


class _Sparse(_Kept):
    def values(self) -> np.ndarray:
        from scipy.sparse import csr_matrix

        data, indices, indptr = (self.state[part].values() for part in ("data", "indices", "indptr"))
        matrix = csr_matrix((data, indices, indptr), shape=self.state["_shape"])
        matrix.check_format(full_check=True)
        return matrix.toarray()


NAMES: dict[tuple[str, str], Any] = {
    ("scipy.sparse.csr", "csr_matrix"): _Sparse,
    ("numpy.core.multiarray", "_reconstruct"): _Array,
    ("numpy", "ndarray"): _Kept,
    ("numpy", "dtype"): _Kept,
    ("collections", "defaultdict"): lambda *_: {},
    ("__builtin__", "list"): _Kept,
}


class _Reader(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in NAMES:
            raise pickle.UnpicklingError(f"it names {module}.{name}, which these files never do; it was not called")
        return NAMES[module, name]


def _content(path: Path) -> Any:
    with path.open("rb") as file:
        try:
            return _Reader(file, encoding="latin1").load()
        except Exception as error:  # what a damaged pickle raises depends on the damage
            raise ValueError(f"{path} cannot be read safely: {' '.join(str(error).split())}") from error


def _matrix(path: Path) -> Tensor:
    content = _content(path)
    try:
        values = content.values()
        if values.ndim != 2:
            raise ValueError(f"its shape is {values.shape}")
        return torch.from_numpy(values.astype(np.float32))
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{path} does not hold a matrix: {error}") from error
