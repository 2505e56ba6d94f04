"""Files as Python 2 wrote them."""

import io
import os
import pickle
from collections import defaultdict
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.sparse import csr_matrix

from experiments.data.graphs import citation_task, open_task
from experiments.data.planetoid import PICKLES, read_graph


class Python2(pickle._Pickler):
    """Protocol 2 with strings of bytes, and the old names of modules."""

    dispatch = pickle._Pickler.dispatch | {bytes: lambda self, b: self.write(b"T" + len(b).to_bytes(4, "little") + b)}


def pickled(value) -> bytes:
    file = io.BytesIO()
    Python2(file, 2).dump(value)
    return file.getvalue().replace(b"numpy._core", b"numpy.core").replace(b"sparse._csr", b"sparse.csr")


@pytest.fixture
def cora(tmp_path: Path) -> Path:
    """520 nodes of 3 classes: 6 to train on, 500 to choose the epoch on, the last 4 to test on."""
    random = np.random.default_rng(0)
    features = (random.random((520, 7)) < 0.3).astype(np.float32)
    classes = np.eye(3, dtype=np.int32)[np.arange(520) % 3]
    stored = [518, 516, 519, 517]  # the order of tx, ty and test.index
    ring = {node: [(node + 1) % 520, (node - 1) % 520, node] for node in range(520)}
    contents = {
        "x": csr_matrix(features[:6]), "tx": csr_matrix(features[stored]), "allx": csr_matrix(features[:516]),
        "y": classes[:6], "ty": classes[stored], "ally": classes[:516], "graph": defaultdict(list, ring),
    }  # fmt: skip
    raw = tmp_path / "Cora" / "raw"
    raw.mkdir(parents=True)
    for part, content in contents.items():
        (raw / f"ind.cora.{part}").write_bytes(pickled(content))
    (raw / "ind.cora.test.index").write_text("".join(f"{node}\n" for node in stored))
    torch.testing.assert_close(read_graph(raw, "Cora").x, torch.from_numpy(features))
    return tmp_path


def test_a_graph_is_read(cora: Path):
    graph = read_graph(cora / "Cora" / "raw", "Cora")
    assert graph.y.tolist() == [i % 3 for i in range(520)]
    assert graph.edge_index.shape == (2, 1040)  # both directions of the ring, without self loops
    masks = [mask.nonzero()[:, 0].tolist() for mask in (graph.train_mask, graph.val_mask, graph.test_mask)]
    assert masks == [list(range(6)), list(range(6, 506)), list(range(516, 520))]


def test_a_citation_graph_is_split_by_its_masks(cora: Path):
    task = open_task("cora", cora)
    parts = zip((task.train, task.selection, task.test), (range(6), range(6, 506), range(516, 520)), strict=True)
    for (graph,), rows in parts:
        assert graph.y.tolist() == [i % 3 if i in rows else -100 for i in range(520)]
        totals = graph.x.to_dense().sum(1)
        torch.testing.assert_close(totals, (totals > 0).float())
    (cora / "Cora" / "raw" / "ind.cora.tx").unlink()
    with pytest.raises(ValueError, match=r"data.dir .*ind.cora.tx"):
        open_task("cora", cora)


class Hostile:
    def __init__(self, function, *arguments):
        self.call = function, arguments

    def __reduce__(self):
        return self.call


@pytest.mark.parametrize("part", PICKLES)
def test_a_hostile_file_runs_nothing(cora: Path, part: str):
    mark, path = cora / "pwned", cora / "Cora" / "raw" / f"ind.cora.{part}"
    for attack in (Hostile(os.mkdir, str(mark)), Hostile(eval, f"__import__('os').mkdir({str(mark)!r})")):
        path.write_bytes(pickle.dumps(attack, protocol=2))
        with pytest.raises(ValueError, match=rf"{path.name} cannot be read safely: it names .*it was not called"):
            citation_task(cora, "Cora")
        assert not mark.exists()


@pytest.mark.parametrize(
    ("part", "content", "said"),
    [
        ("graph", b"\x80\x02cnumpy\nndarray\nN}U\x0c__setstate__Ns\x86b.", "cannot be read safely"),
        ("graph", pickled(defaultdict(list, {0: [520]})), "does not hold Cora: .*larger indices"),
        ("graph", b"\x80\x02](e.", "does not hold Cora"),
        ("graph", b"\x80\x02", "cannot be read safely"),
        ("tx", pickled(np.zeros((4, 9), np.float32)), "does not hold Cora"),
        ("tx", pickled(np.zeros(4, np.float32)), "does not hold Cora"),
        (
            "allx",
            pickled(csr_matrix(np.eye(9))).replace(b"\x07\0\0\0\x08\0", b"\x07\0\0\0\xf8\0"),
            "allx cannot be read safely: indices must be < 9",
        ),
        ("test.index", b"0 1\n2", "test.index names nodes of the other parts"),
    ],
)
def test_damaged_files_end_in_one_line(cora: Path, part: str, content: bytes, said: str):
    (cora / "Cora" / "raw" / f"ind.cora.{part}").write_bytes(content)
    with pytest.raises(ValueError, match=said) as raised:
        citation_task(cora, "Cora")
    assert "\n" not in str(raised.value)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "nodes", "edges"), [("Cora", 2708, 10556), ("CiteSeer", 3327, 9104)])
def test_the_published_files(real_data: Path, name: str, nodes: int, edges: int):
    raw = real_data / "planetoid" / name / "raw"
    if not raw.is_dir():
        pytest.skip("planetoid is not in SOFTNCE_DATA")
    graph = read_graph(raw, name)
    assert (graph.num_nodes, graph.num_edges) == (nodes, edges)
