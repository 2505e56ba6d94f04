import os
import shutil
from pathlib import Path

import h5py
import numpy as np
import pytest
import torch

from softnce import SoftTargets
from softnce.lab.data import celltypegraph, layout
from softnce.lab.data.celltypegraph import SpecimenError, find_specimens, load_specimen, read_specimen


def first(root: Path) -> Path:
    return find_specimens(root)[0].path


@pytest.fixture
def copy(tissue: Path, tmp_path: Path) -> Path:
    """A specimen of its own to damage, in the published layout below tmp_path."""
    source = first(tissue)
    target = tmp_path / layout.FOLDER / source.parent.name / source.name
    target.parent.mkdir(parents=True)
    return Path(shutil.copy(source, target))


def reference(path: Path) -> dict[str, np.ndarray]:
    """The published recipe in plain loops, written from its description alone."""
    with h5py.File(path) as f:
        raw = {k: {n: v[...].astype(float) for n, v in f[k].items()} for k in ("cell_features", "edges_features")}
        ids, edges, labels, labels2 = (f[k][...] for k in ("cell_ids", "edges_ids", "cell_labels", "cell_labels_set2"))

    def z(v):
        return (v - v.mean()) / v.std()

    cell, edge = raw["cell_features"], raw["edges_features"]
    columns = [z(cell["com_grs"])]
    for kind in ("lrs", "pca"):
        for k in (1, 2, 3):
            six = cell[f"{kind}_orientation_axis{k}_grs"]
            columns.append(np.array([row / abs(sum(row)) for row in six]))
    columns += [z(cell["degree_centrality"]), z(cell["rw_centrality"])]
    hops = np.zeros((len(ids), 5))
    for i, h in enumerate(cell["hops_to_bg"]):
        hops[i, min(int(h - cell["hops_to_bg"].min()), 4)] = 1
    columns += [hops, z(cell["volume_um"]), z(cell["surface_um"])]
    columns += [z(cell[f"length_axis{k}_grs"]) for k in (1, 2, 3)]
    columns += [abs(cell["lrs_axis12_dot_grs"]), abs(cell["lrs_axis2_angle_grs"])]
    columns += [abs(cell[f"{kind}_proj_axis{k}_grs"]) for kind in ("lrs", "pca") for k in (1, 2, 3)]
    columns += [z(cell["pca_explained_variance_grs"])]
    edge_columns = [z(edge["surface_um"]), z(edge["com_distance_um"]), z(edge["com_grs"])]
    edge_columns += [z(abs(edge[f"lrs_dot_axis{k}_grs"])) for k in (1, 2, 3)] + [z(abs(edge["lrs_proj_grs"]))]

    def table(parts):
        return np.concatenate([p.reshape(len(p), -1) for p in parts], axis=1)

    row = {c: i for i, c in enumerate(ids)}
    kept = [k for k, (a, b) in enumerate(edges) if a != 0 and b != 0]
    classes = {0: -100, 1: 0, 2: 1, 3: 2, 4: 3, 5: 4, 6: 5, 7: 6, 8: 7, 10: 8, 14: 3}
    votes = np.zeros((len(ids), 9), int)
    for expert in (labels, labels2):
        for i, raw_label in enumerate(expert):
            if raw_label != 0:
                votes[i, classes[raw_label]] += 1
    return {
        "x": table(columns),
        "edge_attr": table(edge_columns)[kept],
        "edge_index": np.array([[row[edges[k][0]], row[edges[k][1]]] for k in kept]).T,
        "y": np.array([classes[v] for v in labels]),
        "votes": votes,
    }


def test_graph_equals_a_slow_reading_of_the_file(tissue: Path):
    for specimen in find_specimens(tissue)[::4]:
        graph, expected = read_specimen(specimen.path), reference(specimen.path)
        for name in ("edge_index", "y", "votes"):
            np.testing.assert_array_equal(graph[name].numpy(), expected[name], err_msg=name)
        for name in ("x", "edge_attr"):  # both from the same fp32 numbers; rounding to fp32 at the end
            np.testing.assert_allclose(graph[name].numpy(), expected[name], rtol=1e-6, atol=1e-6, err_msg=name)
        assert graph.x.shape == (graph.num_nodes, 74)
        assert graph.edge_attr.shape == (graph.num_edges, 11)
        assert graph.validate()
        assert (graph.stage, graph.specimen) == (specimen.stage, f"{specimen.stage}_{specimen.path.stem}")


def test_both_experts_become_soft_targets(graphs):
    graph = graphs[-1]
    labelled = graph.y >= 0
    dense = SoftTargets.from_votes(graph.votes[labelled], graph.votes.shape[1]).dense()
    assert dense.shape == (int(labelled.sum()), 9)
    torch.testing.assert_close(dense.sum(1), torch.ones(len(dense)))
    own = dense.gather(1, graph.y[labelled, None])
    assert set(own.flatten().tolist()) == {0.5, 1.0}, "agreement and disagreement both occur"


def test_one_expert_alone_gives_hard_targets(copy: Path):
    with h5py.File(copy, "a") as file:
        del file["cell_labels_set2"]
    graph = read_specimen(copy)
    np.testing.assert_array_equal(graph.votes.sum(1).numpy(), 1)
    np.testing.assert_array_equal(graph.votes.argmax(1).numpy(), graph.y.numpy())


def test_unlabelled_cells_have_ignore_index_and_labels_14_and_4_are_one_class(copy: Path):
    with h5py.File(copy, "a") as file:
        file["cell_labels"][:4] = [0, 14, 4, 10]
        file["cell_labels_set2"][:4] = [0, 9, 4, 10]  # 9 is outside the mapping: no second vote
    graph = read_specimen(copy)
    assert graph.y[:4].tolist() == [-100, 3, 3, 8]
    assert graph.votes[:4].sum(1).tolist() == [0, 1, 2, 2]


def test_order_of_cell_ids_does_not_matter(copy: Path):
    before = read_specimen(copy)
    order = np.random.default_rng(0).permutation(before.num_nodes)
    with h5py.File(copy, "a") as file:
        names = ["cell_ids", "cell_labels", "cell_labels_set2", *(f"cell_features/{n}" for n in file["cell_features"])]
        for name in names:
            file[name][...] = file[name][...][order]
    after = read_specimen(copy)
    torch.testing.assert_close(after.x, before.x[order])
    new_row = torch.from_numpy(np.argsort(order))
    torch.testing.assert_close(after.edge_index, new_row[before.edge_index])


# --- damaged and incomplete files ---------------------------------------------------------------------------------


def delete(*names):
    def damage(file):
        for name in names:
            del file[name]

    return damage


def replace(name, change):
    def damage(file):
        values = change(file[name][...])
        del file[name]
        file[name] = values

    return damage


def with_nan(values):
    values[3] = np.nan
    return values


DAMAGE = {
    "one feature missing": (delete("cell_features/volume_um"), r"missing cell_features/volume_um$"),
    "several missing": (
        delete("edges_ids", "cell_features/com_grs", "edges_features/lrs_proj_grs"),
        r"missing edges_ids, cell_features/com_grs, edges_features/lrs_proj_grs$",
    ),
    "a group missing": (
        delete("edges_features"),
        r"missing edges_features/surface_um, .*, edges_features/lrs_proj_grs$",
    ),
    "too few rows": (
        replace("cell_features/surface_um", lambda v: v[:-1]),
        r"cell_features/surface_um has shape \(\d+,\), need \(\d+, 1\)",
    ),
    "labels of another length": (replace("cell_labels", lambda v: v[2:]), r"cell_labels has shape"),
    "second labels of another length": (replace("cell_labels_set2", lambda v: v[2:]), r"cell_labels_set2 has shape"),
    "flat edges": (replace("edges_ids", lambda v: v.ravel()), r"edges_ids has shape \(\d+,\), need \(surfaces, 2\)"),
    "no cells": (replace("cell_ids", lambda v: v[:0]), r"cell_ids has shape \(0,\), need \(cells,\), at least one"),
    "vectors without components": (
        replace("edges_features/com_grs", lambda v: v[:, 0]),
        r"edges_features/com_grs has shape \(\d+,\), need \(\d+, 3\)",
    ),
    "not a number": (
        replace("cell_features/rw_centrality", with_nan),
        r"cell_features/rw_centrality holds values that are not finite",
    ),
    "text": (
        replace("cell_features/volume_um", lambda v: np.array([b"many"] * len(v))),
        r"cannot read cell_features/volume_um as numbers",
    ),
    "unknown label": (
        replace("cell_labels", lambda v: np.where(v == 1, 11, v)),
        r"cell_labels holds \[11.0\], the known labels are \[0, 1, 2,",
    ),
    "unknown cell in an edge": (
        replace("edges_ids", lambda v: np.where(v == v.max(), 999999, v)),
        r"edges_ids names cell 999999",
    ),
    "id twice": (
        replace("cell_ids", lambda v: np.where(v == v[1], v[0], v)),
        r"cell_ids holds the same id more than once",
    ),
}


@pytest.mark.parametrize("case", DAMAGE)
def test_incomplete_file_gives_one_error_with_its_name_and_what_is_missing(copy: Path, case: str):
    damage, message = DAMAGE[case]
    with h5py.File(copy, "a") as file:
        damage(file)
    with pytest.raises(SpecimenError, match=message) as error:
        read_specimen(copy)
    assert str(error.value).startswith(f"{copy}: ")
    assert "\n" not in str(error.value)


def test_truncated_empty_and_absent_files(copy: Path):
    whole = copy.read_bytes()
    for size in (0, 100, len(whole) // 2):
        copy.write_bytes(whole[:size])
        with pytest.raises(SpecimenError, match="not a readable HDF5 file") as error:
            read_specimen(copy)
        assert str(error.value).startswith(f"{copy}: ")
    copy.unlink()
    with pytest.raises(SpecimenError, match="no such file"):
        read_specimen(copy)


def test_a_root_without_data_says_what_is_needed(tmp_path: Path):
    with pytest.raises(FileNotFoundError, match=r"label_grs_surface/<stage>/<stack>\.h5"):
        find_specimens(tmp_path)
    (tmp_path / layout.FOLDER).mkdir(parents=True)
    with pytest.raises(FileNotFoundError, match="no specimens in"):
        find_specimens(tmp_path)


# --- cache --------------------------------------------------------------------------------------------------------


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Files that were read, not taken from the cache."""
    log: list[Path] = []
    original = celltypegraph.read_specimen
    monkeypatch.setattr(celltypegraph, "read_specimen", lambda path: log.append(path) or original(path))
    return log


def test_cache_returns_the_same_graph_without_reading_again(copy: Path, tmp_path: Path, reads: list[Path]):
    (specimen,) = find_specimens(tmp_path)
    once, again = load_specimen(specimen), load_specimen(specimen)
    assert reads == [copy]
    assert once.to_dict().keys() == again.to_dict().keys()
    for name, value in once.to_dict().items():
        if isinstance(value, torch.Tensor):
            assert torch.equal(again[name], value), name
        else:
            assert again[name] == value
    assert (tmp_path / "softnce-cache" / specimen.stage / f"{specimen.stack}.pt").exists()
    assert len(list((tmp_path / "softnce-cache").rglob("*"))) == 2, "no temporary files stay behind"


def test_cache_is_renewed_when_the_file_changes(copy: Path, tmp_path: Path, reads: list[Path]):
    (specimen,) = find_specimens(tmp_path)
    before = load_specimen(specimen)
    times = copy.stat().st_atime_ns, copy.stat().st_mtime_ns
    with h5py.File(copy, "a") as file:
        file["cell_labels"][0] = 10 if before.y[0] != 8 else 1
    os.utime(copy, ns=times)  # same size and modification time, as after restoring another version from an archive
    after = load_specimen(specimen)
    assert len(reads) == 2
    assert after.y[0] != before.y[0]


def test_cache_is_renewed_when_a_transform_changes(copy: Path, tmp_path: Path, reads: list[Path], monkeypatch):
    (specimen,) = find_specimens(tmp_path)
    load_specimen(specimen)
    changed = tuple(layout.Feature(f.name, f.width, layout.z_score, f.columns) for f in layout.EDGE_FEATURES)
    monkeypatch.setattr(layout, "EDGE_FEATURES", changed)
    load_specimen(specimen)
    assert len(reads) == 2


def test_damaged_cache_is_read_anew(copy: Path, tmp_path: Path, reads: list[Path]):
    (specimen,) = find_specimens(tmp_path)
    load_specimen(specimen)
    entry = next((tmp_path / "softnce-cache").rglob("*.pt"))
    entry.write_bytes(entry.read_bytes()[:100])
    load_specimen(specimen)
    load_specimen(specimen)
    assert len(reads) == 2


def test_unwritable_cache_costs_a_warning_only(copy: Path, tmp_path: Path):
    (specimen,) = find_specimens(tmp_path)
    (tmp_path / "taken").write_text("a file where the folder should be")
    with pytest.warns(UserWarning, match="cannot write the cache"):
        graph = load_specimen(specimen, cache=tmp_path / "taken")
    assert graph.num_nodes > 0


def test_failed_write_leaves_nothing_behind(copy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def full(content, file):
        file.write_bytes(b"half")
        raise OSError("no space left on device")

    monkeypatch.setattr(celltypegraph.torch, "save", full)
    (specimen,) = find_specimens(tmp_path)
    with pytest.warns(UserWarning, match="no space left"):
        load_specimen(specimen)
    assert [p for p in (tmp_path / "softnce-cache").rglob("*") if p.is_file()] == []


def test_damaged_file_is_an_error_through_the_cache_too(copy: Path, tmp_path: Path):
    (specimen,) = find_specimens(tmp_path)
    load_specimen(specimen)
    copy.write_bytes(copy.read_bytes()[:500])
    with pytest.raises(SpecimenError, match="not a readable HDF5 file"):
        load_specimen(specimen)
