"""Files as Python 2 wrote them, by hand: opcodes of pickle protocol 2."""

import os
import pickle
import struct
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.sparse import csr_matrix

from experiments.data.graphs import citation_task, open_task
from experiments.data.planetoid import PICKLES, read_graph


def text(word: bytes) -> bytes:
    return b"U" + bytes([len(word)]) + word


def array(values: np.ndarray) -> bytes:
    kind = (
        b"cnumpy\ndtype\n("
        + text(values.dtype.str[1:].encode())
        + b"I0\nI1\ntR(I3\n"
        + text(b"<")
        + b"NNNI-1\nI-1\nI0\ntb"
    )
    shape = b"".join(b"I%d\n" % n for n in values.shape)
    content = values.tobytes()
    return (
        b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\n(I0\nt" + text(b"b") + b"tR(I1\n(" + shape + b"t"
        + kind + b"I00\nT" + struct.pack("<i", len(content)) + content + b"tb"
    )  # fmt: skip


def sparse(values: np.ndarray) -> bytes:
    matrix = csr_matrix(values)
    parts = b"".join(
        text(name.encode()) + array(getattr(matrix, name).astype(code))
        for name, code in (("data", "<f4"), ("indices", "<i4"), ("indptr", "<i4"))
    )
    shape = b"(I%d\nI%d\nt" % values.shape
    return b"cscipy.sparse.csr\ncsr_matrix\n)\x81}(" + parts + text(b"_shape") + shape + b"ub"


def neighbours(lists: dict[int, list[int]]) -> bytes:
    items = b"".join(b"I%d\n](%se" % (node, b"".join(b"I%d\n" % n for n in others)) for node, others in lists.items())
    return b"ccollections\ndefaultdict\n(c__builtin__\nlist\ntR(" + items + b"u"


@pytest.fixture
def cora(tmp_path: Path) -> Path:
    """520 nodes of 3 classes: 6 to train on, 500 to choose the epoch on, the last 4 to test on."""
    random = np.random.default_rng(0)
    features = (random.random((520, 7)) < 0.3).astype(np.float32)
    classes = np.eye(3, dtype=np.int32)[np.arange(520) % 3]
    stored = [518, 516, 519, 517]  # the order of tx, ty and test.index
    ring = {node: [(node + 1) % 520, (node - 1) % 520, node] for node in range(520)}
    contents = {
        "x": sparse(features[:6]),
        "tx": sparse(features[stored]),
        "allx": sparse(features[:516]),
        "y": array(classes[:6]),
        "ty": array(classes[stored]),
        "ally": array(classes[:516]),
        "graph": neighbours(ring),
    }
    raw = tmp_path / "Cora" / "raw"
    raw.mkdir(parents=True)
    for part, content in contents.items():
        (raw / f"ind.cora.{part}").write_bytes(b"\x80\x02" + content + b".")
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
        ("graph", b"\x80\x02cnumpy\nndarray\nN}" + text(b"__setstate__") + b"Ns\x86b.", "cannot be read safely"),
        ("graph", b"\x80\x02" + neighbours({0: [520]}) + b".", "does not hold Cora: .*larger indices"),
        ("graph", b"\x80\x02](e.", "does not hold Cora"),
        ("graph", b"\x80\x02", "cannot be read safely"),
        ("tx", b"\x80\x02" + array(np.zeros((4, 9), np.float32)) + b".", "does not hold Cora"),
        ("tx", b"\x80\x02" + array(np.zeros(4, np.float32)) + b".", "does not hold Cora"),
        (
            "allx",
            b"\x80\x02" + sparse(np.eye(9)).replace(b"\x08\0\0\0", b"\xf8\0\0\0") + b".",
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
@pytest.mark.parametrize("name", ["Cora", "CiteSeer", "PubMed"])
def test_the_published_files_are_read_as_pyg_reads_them(real_data: Path, name: str):
    from torch_geometric.io import read_planetoid_data

    raw = real_data / "planetoid" / name / "raw"
    if not raw.is_dir():
        pytest.skip("planetoid is not in SOFTNCE_DATA")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # numpy's, about the old names in the files
        theirs = read_planetoid_data(str(raw), name)
    ours = read_graph(raw, name)
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[key], theirs[key]) for key in theirs.keys())  # noqa: SIM118 (of a graph)
