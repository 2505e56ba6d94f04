"""The paper's augmentations of CellTypeGraph's training graphs (its supplement; every strength is 0.1).

Random numbers come from the global generators. Labels, votes and node order never change.
"""

import copy

import torch
from scipy.stats import special_ortho_group
from torch import Tensor
from torch.nn import functional as F
from torch_geometric.data import Data
from torch_geometric.utils import dropout_edge, negative_sampling, to_undirected

from experiments.data.celltypegraph import EDGE_COLUMNS, NODE_COLUMNS

ORIENTATIONS = [name for name in NODE_COLUMNS if "_orientation_" in name]
ENTRIES = (0, 1, 2, 0, 1, 2), (0, 1, 2, 1, 2, 0)
"""Rows and columns of the six entries xx, yy, zz, xy, yz, zx of a symmetric matrix."""


def augmented(graph: Data, strength: float = 0.1) -> Data:
    """A graph in a random basis, with noise, features and edges dropped, and edges added."""
    graph = copy.copy(graph)
    rotate(graph, random_rotation())
    for name in ("x", "edge_attr"):
        graph[name] = graph[name] + strength * torch.randn_like(graph[name])
    graph.x = F.dropout(graph.x, strength)
    graph.x = graph.x * (torch.rand(graph.x.shape[1]) >= strength)
    drop_edges(graph, strength)
    add_edges(graph, strength)
    return graph


def drop_edges(graph: Data, p: float) -> None:
    """Adjacency dropout: removes each edge, with its features, with probability ``p``."""
    graph.edge_index, kept = dropout_edge(graph.edge_index, p)
    graph.edge_attr = graph.edge_attr[kept]


def add_edges(graph: Data, ratio: float) -> None:
    """Joins ``ratio``·E random pairs of nodes that no edge joins yet; in a graph too dense for that, fewer.

    Nobody measured a surface there, so new edges get features 0: the mean.
    """
    wanted = round(ratio * graph.num_edges)
    new = negative_sampling(to_undirected(graph.edge_index), graph.num_nodes, 2 * wanted, force_undirected=True)
    new = new[:, new[0] < new[1]]  # it gives both directions
    graph.edge_index = torch.cat([graph.edge_index, new], dim=1)
    graph.edge_attr = torch.cat([graph.edge_attr, graph.edge_attr.new_zeros(new.shape[1], graph.edge_attr.shape[1])])


def rotate(graph: Data, rotation: Tensor) -> None:
    """Shows a specimen in another right-handed basis: as ``read_specimen`` would read the rotated specimen.

    Positions and orientations turn, and their normalisations follow. Projections on the reference axes stay, because
    the layout keeps their absolute values only.
    """
    rotation = rotation.to(graph.x)
    graph.x, graph.edge_attr = graph.x.clone(), graph.edge_attr.clone()
    for values, columns, moments in ((graph.x, NODE_COLUMNS, "node_com"), (graph.edge_attr, EDGE_COLUMNS, "edge_com")):
        place = columns["com_grs"]
        values[:, place], graph[moments] = _rotate_positions(values[:, place], graph[moments], rotation)
    for name in ORIENTATIONS:
        graph.x[:, NODE_COLUMNS[name]] = _rotate_orientations(graph.x[:, NODE_COLUMNS[name]], rotation)


def random_rotation() -> Tensor:
    """Uniform over SO(3)."""
    return torch.from_numpy(special_ortho_group.rvs(3))


def _rotate_positions(normalised: Tensor, moments: Tensor, rotation: Tensor) -> tuple[Tensor, Tensor]:
    """Rotates positions about the origin of the reference system, under the layout's z-score.

    Its mean m and deviation s are of all coordinates. Rotation keeps E|v|², hence s² + m², and turns the mean position,
    of whose coordinates m is the mean: the new m and s need no look at the positions.
    """
    centre, s = moments[0, :3], moments[0, 3]
    turned_centre = rotation @ centre
    m, new_m = centre.mean(), turned_centre.mean()
    new_s = (s**2 + m**2 - new_m**2).clamp(min=0).sqrt()
    turned = ((s * normalised + m) @ rotation.T - new_m) / new_s
    return turned, torch.cat([turned_centre, new_s[None]])[None]


def _rotate_orientations(six: Tensor, rotation: Tensor) -> Tensor:
    """Rotates v vᵀ, given up to scale by its ENTRIES, and scales to |sum| 1 again."""
    outer = six.new_empty(len(six), 3, 3)
    outer[:, *ENTRIES] = outer[:, *ENTRIES[::-1]] = six
    six = (rotation @ outer @ rotation.T)[:, *ENTRIES]
    return six / (six.sum(dim=1, keepdim=True).abs() + 1e-16)
