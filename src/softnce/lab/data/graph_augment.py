"""Training-time augmentations of cell graphs, as PyG transforms.

Each returns a new graph and does not change its input. Random numbers come from torch's global generator. Labels,
votes and node order never change.
"""

import torch
from torch import Tensor
from torch.nn import functional as F
from torch_geometric.data import Data
from torch_geometric.transforms import BaseTransform, Compose

from softnce.lab.data.layout import EDGE_COLUMNS, NODE_COLUMNS, NUM_EDGE_FEATURES, NUM_NODE_FEATURES

ORIENTATIONS = [name for name in NODE_COLUMNS if "_orientation_" in name]


class DropEdges(BaseTransform):
    """Adjacency dropout: remove each edge, with its features, with probability ``p``."""

    def __init__(self, p: float = 0.1) -> None:
        self.p = _probability("p", p)

    def forward(self, data: Data) -> Data:
        kept = torch.rand(data.num_edges, device=data.edge_index.device) >= self.p
        data.edge_index = data.edge_index[:, kept]
        if data.edge_attr is not None:
            data.edge_attr = data.edge_attr[kept]
        return data


class AddEdges(BaseTransform):
    """Join ``ratio``·E random pairs of nodes that no edge joins yet; existing edges stay first, in order.

    Nobody measured a surface there, so new edges get features 0: the mean where features are normalised. In a graph
    too dense to hold that many, fewer are added.
    """

    def __init__(self, ratio: float = 0.1) -> None:
        if not ratio >= 0:
            raise ValueError(f"ratio: got {ratio}, need a number ≥ 0")
        self.ratio = ratio

    def forward(self, data: Data) -> Data:
        _single(data, self)
        n, wanted = data.num_nodes, round(self.ratio * data.num_edges)
        if wanted == 0 or n < 2:
            return data
        existing = _pair_number(data.edge_index, n)
        # Distinct nodes, either direction; drawing twice as many as wanted leaves enough after collisions in any
        # sparse graph.
        source = torch.randint(n, (2 * wanted + 8,), device=existing.device)
        target = (source + torch.randint(1, n, source.shape, device=existing.device)) % n
        new = torch.stack([source, target])
        number = _pair_number(new, n)
        free = ~torch.isin(number, existing)
        first = torch.zeros_like(free)
        first[_first_occurrences(number)] = True
        new = new[:, free & first][:, :wanted]
        data.edge_index = torch.cat([data.edge_index, new], dim=1)
        if data.edge_attr is not None:
            blank = data.edge_attr.new_zeros(new.shape[1], *data.edge_attr.shape[1:])
            data.edge_attr = torch.cat([data.edge_attr, blank])
        return data


class DropFeatures(BaseTransform):
    """Set each entry of the node features to 0 with probability ``p`` and scale the others by 1/(1 − p)."""

    def __init__(self, p: float = 0.1) -> None:
        self.p = _probability("p", p)

    def forward(self, data: Data) -> Data:
        data.x = F.dropout(data.x, self.p)
        return data


class MaskFeatures(BaseTransform):
    """Hide each node feature, for all nodes of the graph at once, with probability ``p``."""

    def __init__(self, p: float = 0.1) -> None:
        self.p = _probability("p", p)

    def forward(self, data: Data) -> Data:
        data.x = data.x * (torch.rand(data.x.shape[1], device=data.x.device) >= self.p)
        return data


class AddNoise(BaseTransform):
    """Add independent normal noise of deviation ``sigma`` to node and edge features."""

    def __init__(self, sigma: float = 0.1) -> None:
        if not sigma >= 0:
            raise ValueError(f"sigma: got {sigma}, need a number ≥ 0")
        self.sigma = sigma

    def forward(self, data: Data) -> Data:
        data.x = data.x + self.sigma * torch.randn_like(data.x)
        if data.edge_attr is not None:
            data.edge_attr = data.edge_attr + self.sigma * torch.randn_like(data.edge_attr)
        return data


class RandomBasis(BaseTransform):
    """See a CellTypeGraph specimen in a random right-handed basis: rotate all its vector-valued features alike.

    Positions of cells and surfaces (``com_grs``) and the orientations of the cells' axes turn; the result is what
    :func:`~softnce.lab.data.celltypegraph.read_specimen` would have made of the rotated specimen, its normalisations
    included. Features without direction stay, and so do projections on the reference axes, of which the layout
    keeps absolute values only. Goes before augmentations that blur the features.

    Args:
        rotation: a rotation matrix (3, 3) to use; a new one, uniform over SO(3), for every graph where None.
    """

    def __init__(self, rotation: Tensor | None = None) -> None:
        self.rotation = rotation

    def forward(self, data: Data) -> Data:
        _single(data, self)
        if data.get("node_com") is None or data.x.shape[1] != NUM_NODE_FEATURES:
            raise ValueError(f"RandomBasis needs a graph of the CellTypeGraph layout, got {data}")
        rotation = random_rotation() if self.rotation is None else self.rotation
        rotation = rotation.to(data.x)
        x = data.x.clone()
        position = NODE_COLUMNS["com_grs"]
        x[:, position], data.node_com = _rotate_positions(x[:, position], data.node_com, rotation)
        for name in ORIENTATIONS:
            x[:, NODE_COLUMNS[name]] = _rotate_orientations(x[:, NODE_COLUMNS[name]], rotation)
        data.x = x
        if data.edge_attr is not None and data.edge_attr.shape[1] == NUM_EDGE_FEATURES:
            edge = data.edge_attr.clone()
            position = EDGE_COLUMNS["com_grs"]
            edge[:, position], data.edge_com = _rotate_positions(edge[:, position], data.edge_com, rotation)
            data.edge_attr = edge
        if data.pos is not None:
            data.pos = data.pos @ rotation.T
        return data


def paper_augmentations() -> Compose:
    """All of the above with the strengths of the soft target InfoNCE paper's supplement (0.1 everywhere)."""
    return Compose([RandomBasis(), AddNoise(0.1), DropFeatures(0.1), MaskFeatures(0.1), DropEdges(0.1), AddEdges(0.1)])


def random_rotation() -> Tensor:
    """Uniform over SO(3): the orthogonal factor of a normal matrix, its signs fixed, its determinant made +1."""
    q, r = torch.linalg.qr(torch.randn(3, 3, dtype=torch.float64))
    q = q * torch.diagonal(r).sign()
    return q * torch.linalg.det(q).sign()


def _rotate_positions(normalised: Tensor, moments: Tensor, rotation: Tensor) -> tuple[Tensor, Tensor]:
    """Rotate positions about the origin of the reference system, under the layout's z-score.

    The z-score of (…, 3) positions v has one mean m and deviation s for all coordinates. Rotation keeps E|v|², hence
    s² + m², and turns the mean position, of whose coordinates m is the mean: the new m and s need no look at v.
    """
    centre, s = moments[0, :3], moments[0, 3]
    m = centre.mean()
    turned_centre = rotation @ centre
    new_m = turned_centre.mean()
    new_s = (s**2 + m**2 - new_m**2).clamp(min=0).sqrt()
    turned = ((s * normalised + m) @ rotation.T - new_m) / new_s
    return turned, torch.cat([turned_centre, new_s[None]])[None]


def _rotate_orientations(six: Tensor, rotation: Tensor) -> Tensor:
    """Rotate v vᵀ, given up to scale by its entries (xx, yy, zz, xy, yz, zx), and scale to |sum| 1 again."""
    xx, yy, zz, xy, yz, zx = six.unbind(1)
    outer = torch.stack([xx, xy, zx, xy, yy, yz, zx, yz, zz], dim=1).view(-1, 3, 3)
    turned = rotation @ outer @ rotation.T
    six = torch.stack([turned[:, i, j] for i, j in ((0, 0), (1, 1), (2, 2), (0, 1), (1, 2), (2, 0))], dim=1)
    return six / (six.sum(dim=1, keepdim=True).abs() + 1e-16)


def _pair_number(edge_index: Tensor, n: int) -> Tensor:
    """The same number for both directions of a pair."""
    low, high = edge_index.min(dim=0).values, edge_index.max(dim=0).values
    return low * n + high


def _first_occurrences(values: Tensor) -> Tensor:
    order = torch.argsort(values, stable=True)
    ordered = values[order]
    new = torch.ones_like(ordered, dtype=torch.bool)
    new[1:] = ordered[1:] != ordered[:-1]
    return order[new]


def _probability(name: str, value: float) -> float:
    if not 0 <= value < 1:
        raise ValueError(f"{name}: got {value}, need a probability below 1")
    return value


def _single(data: Data, transform: BaseTransform) -> None:
    if data.get("batch") is not None:
        raise ValueError(f"{type(transform).__name__} works on one graph at a time, got a batch of {data.num_graphs}")
