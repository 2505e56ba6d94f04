"""Human votes: several annotators per sample, who disagree.

Majority labels throw the disagreement away. Here it is the target: a share per class. The data are generated, so the
true probabilities are known and the models can be compared with them.
"""

import torch
from torch import nn

from softnce import NLL, ExpectedInfoNCE, SoftTargets

CLASSES, DIM, ANNOTATORS = 5, 8, 6


def main(samples: int = 4000, steps: int = 400) -> dict[str, float]:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(samples, DIM, generator=generator)
    truth = (x @ torch.randn(DIM, CLASSES, generator=generator)).softmax(1)

    # As crowd data come: one line per annotation, (sample, annotator, label).
    votes = torch.multinomial(truth, ANNOTATORS, replacement=True, generator=generator)
    sample = torch.arange(samples).repeat_interleave(ANNOTATORS)
    annotator = torch.arange(ANNOTATORS).repeat(samples)
    targets = SoftTargets.from_annotations(sample, annotator, votes.flatten(), num_classes=CLASSES).targets
    # If you have a table of counts instead: SoftTargets.from_votes(counts, num_classes=CLASSES).

    train, test = torch.arange(samples * 3 // 4), torch.arange(samples * 3 // 4, samples)
    divergence = {}
    for name, criterion, given in (
        ("majority label", NLL(), targets.argmax()),
        ("votes", ExpectedInfoNCE(), targets),
    ):
        torch.manual_seed(0)
        model = nn.Linear(DIM, CLASSES)
        optimiser = torch.optim.Adam(model.parameters(), lr=0.02)
        for _ in range(steps):
            rows = train[torch.randint(len(train), (256,))]
            optimiser.zero_grad()
            criterion(model(x[rows]), given[rows]).backward()
            optimiser.step()
        with torch.no_grad():
            log_probs = criterion.probabilities(model(x[test])).log()
        divergence[name] = nn.functional.kl_div(log_probs, truth[test], reduction="batchmean").item()
        print(f"{name:15}  divergence from the true probabilities {divergence[name]:.4f} nats")
    return divergence


if __name__ == "__main__":
    main()
