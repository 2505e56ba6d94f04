"""Image–text pairs with soft, many-positive targets: the batch's captions are the classes, their embeddings the table.

CLIP's loss takes every other caption of a batch for wrong. In a batch two images often share a caption, or a caption
fits a second image a little. Here the targets say so: row i may have several positives with weights. The same code
serves sentence pairs. The data are generated: concepts with images and captions of three grades.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from softnce import SoftTargetCrossEntropy, SoftTargets

CONCEPTS, GROUPS, DIM = 200, 20, 16


def positives(concepts: Tensor) -> SoftTargets:
    """Over the batch's captions: those of the same concept share 0.8, those of the same group 0.2."""
    same = (concepts[:, None] == concepts).float()
    near = (concepts[:, None] % GROUPS == concepts % GROUPS).float()
    rows = 0.8 * same / same.sum(1, keepdim=True) + 0.2 * near / near.sum(1, keepdim=True)
    return SoftTargets.from_dense(rows)


def main(steps: int = 300, batch: int = 256) -> dict[str, float]:
    torch.manual_seed(0)
    groups = torch.randn(GROUPS, DIM)
    concepts = groups[torch.arange(CONCEPTS) % GROUPS] + 0.7 * torch.randn(CONCEPTS, DIM)

    def views(which: Tensor) -> tuple[Tensor, Tensor]:
        return (
            concepts[which] + 0.5 * torch.randn(len(which), DIM),
            concepts[which] + 0.5 * torch.randn(len(which), DIM),
        )

    found = {}
    for name in ("one positive", "soft positives"):
        torch.manual_seed(1)
        image_encoder, text_encoder = nn.Linear(DIM, 32), nn.Linear(DIM, 32)
        temperature = nn.Parameter(torch.tensor(0.07))
        # A contrast of the batch's captions as classes: soft target cross-entropy over them.
        criterion = SoftTargetCrossEntropy(temperature=temperature)
        parameters = [*image_encoder.parameters(), *text_encoder.parameters(), temperature]
        optimiser = torch.optim.Adam(parameters, lr=3e-3)
        for _ in range(steps):
            which = torch.randint(CONCEPTS, (batch,))
            image, text = views(which)
            z, y = F.normalize(image_encoder(image), dim=1), F.normalize(text_encoder(text), dim=1)
            targets = positives(which) if name == "soft positives" else torch.arange(batch)
            # Both directions; the targets of captions over images are the same, because they are symmetric in concepts.
            loss = (criterion(z @ y.T, targets) + criterion(y @ z.T, targets)) / 2
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            with torch.no_grad():
                temperature.clamp_(min=0.01)
        # How well do similarities rank captions: the right concept first, then its group.
        with torch.no_grad():
            which = torch.arange(CONCEPTS)
            image, text = views(which)
            scores = F.normalize(image_encoder(image), dim=1) @ F.normalize(text_encoder(text), dim=1).T
            best = scores.topk(CONCEPTS // GROUPS, dim=1).indices
            found[name] = (best % GROUPS == which[:, None] % GROUPS).float().mean().item()
        print(f"{name:15} {found[name]:.1%} of the best {CONCEPTS // GROUPS} captions are of the image's group")
    return found


if __name__ == "__main__":
    main()
