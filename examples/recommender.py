"""A recommender: a user's next item out of a large catalogue, in steps whose cost does not depend on its size.

One table of items is input and output. Every position of a sequence predicts the next item: features (N, L, d), targets
(N, L), padding ignored. The other items of a sequence are no wrong answers, so `exclude` takes them out of the
negatives. The catalogue is generated: an item is followed by one of three, and some items are far more popular.
"""

import torch
from torch import Tensor, nn

from softnce import BatchCandidates, InfoNCE, SampledCandidates, ranking
from softnce.heads import LabelEmbeddingHead
from softnce.optimisers import RowAdagrad

DIM, LENGTH, PADDING = 32, 10, -100


def generate(items: int, users: int) -> Tensor:
    """Sequences of items (users, LENGTH + 2); shorter ones begin with padding."""
    generator = torch.Generator().manual_seed(0)
    popularity = 1 / torch.arange(1, items + 1)
    following = torch.multinomial(popularity.expand(items, -1), 3, generator=generator)
    sequences = [torch.multinomial(popularity, users, True, generator=generator)]
    for _ in range(LENGTH + 1):
        sequences.append(following[sequences[-1], torch.randint(3, (users,), generator=generator)])
    start = torch.randint(LENGTH - 2, (users, 1), generator=generator)
    return torch.stack(sequences, 1).where(torch.arange(LENGTH + 2) >= start, PADDING)


class Model(nn.Module):
    def __init__(self, items: int) -> None:
        super().__init__()
        self.items = nn.Embedding(items, DIM, sparse=True)
        nn.init.normal_(self.items.weight, std=DIM**-0.5)
        self.head = LabelEmbeddingHead.from_embedding(self.items)  # the same table: gradients of both uses add up
        self.encoder = nn.GRU(DIM, DIM, batch_first=True)

    def forward(self, seen: Tensor) -> Tensor:
        """Features (N, L, d) of sequences (N, L)."""
        return self.encoder(self.items(seen.clamp(min=0)))[0]


def main(items: int = 2000, users: int = 4000, epochs: int = 6) -> dict[str, float]:
    sequences = generate(items, users)
    train, test = sequences[:, :-1], sequences  # the last item of every sequence is held out
    torch.manual_seed(0)
    model = Model(items)
    # η is estimated from the targets; the further negatives are drawn from it, popular items more often.
    criterion = InfoNCE(candidates=BatchCandidates() + SampledCandidates(256), ignore_index=PADDING)
    optimisers = [
        RowAdagrad(model.items.parameters(), lr=1.0),  # touches the rows of the step alone
        torch.optim.Adam(model.encoder.parameters(), lr=5e-3),
    ]
    for epoch in range(epochs):
        for rows in torch.randperm(users).split(128):
            seen, following = train[rows, :-1], train[rows, 1:].clone()
            following[seen == PADDING] = PADDING  # nothing to predict from
            own = train[rows].clamp(min=-1)  # −1 pads
            own = own[:, None].expand(-1, LENGTH, -1).flatten(0, 1)
            loss = model.head.loss(model(seen), following, criterion, exclude=own)
            model.zero_grad()
            loss.backward()
            for optimiser in optimisers:
                optimiser.step()
        print(f"epoch {epoch}  loss {loss.item():.3f}")

    with torch.no_grad():
        features = model(test[:, 1:-1])[:, -1]
        found = ranking.linear_ranks(features, model.items.weight, test[:, -1])
        metrics = {"recall@10": float(found.recall(10).nanmean()), "ndcg@10": float(found.ndcg(10).nanmean())}
        seen = test[:, :-1].clamp(min=-1)
        _, best = model.head.topk(features[:3], 5, exclude=seen[:3])  # serving: what is new to the user
    print(", ".join(f"{name} {value:.3f}" for name, value in metrics.items()), "| new to three users:", best.tolist())
    return metrics


if __name__ == "__main__":
    main()
