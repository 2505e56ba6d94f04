"""The citation graphs Cora, CiteSeer and PubMed from their published files, which are pickles.

A pickle names functions to call, so a manipulated file runs code in a reader that obeys it. Every file is therefore
read first by an unpickler that knows nothing but the six harmless names these files use; then PyG reads them.
"""

import pickle
import warnings
from pathlib import Path
from typing import Any

from torch_geometric.data import Data
from torch_geometric.io import read_planetoid_data

PICKLES = ("x", "tx", "allx", "y", "ty", "ally", "graph")
NAMES = {
    ("scipy.sparse.csr", "csr_matrix"), ("numpy.core.multiarray", "_reconstruct"), ("numpy", "ndarray"),
    ("numpy", "dtype"), ("collections", "defaultdict"), ("__builtin__", "list"),
}  # fmt: skip


class _Reader(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in NAMES:
            raise pickle.UnpicklingError(f"it names {module}.{name}, which these files never do; it was not called")
        return super().find_class(module, name)


def read_graph(raw: Path, name: str) -> Data:
    """The graph in ``raw/ind.<name>.*`` with the masks of its public split.

    Raises FileNotFoundError if files are missing and ValueError if they do not hold such a graph.
    """
    paths = [raw / f"ind.{name.lower()}.{part}" for part in (*PICKLES, "test.index")]
    if missing := [path.name for path in paths if not path.is_file()]:
        raise FileNotFoundError(f"{raw}: missing {', '.join(missing)}")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # about the old names in the files
        for path in paths[:-1]:
            try:
                with path.open("rb") as file:
                    content = _Reader(file, encoding="latin1").load()
                if hasattr(content, "check_format"):  # a sparse matrix, whose indices may point anywhere
                    content.check_format(full_check=True)
            except Exception as error:  # what a damaged pickle raises depends on the damage
                raise ValueError(f"{path} cannot be read safely: {' '.join(str(error).split())}") from error
        try:
            graph = read_planetoid_data(str(raw), name)
            graph.validate()
            if (graph.train_mask | graph.val_mask)[graph.test_mask].any():
                raise ValueError("test.index names nodes of the other parts")
        except Exception as error:  # so does what PyG raises
            raise ValueError(f"{raw} does not hold {name}: {' '.join(str(error).split())}") from error
    return graph
