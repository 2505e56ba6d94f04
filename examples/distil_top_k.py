"""Distillation from log-probabilities of the top k, as language-model servers return them.

The probability beyond the k tokens is kept as one group (`rest="group"`): cross-entropy is then exact in all that the
teacher said. Spreading it over all tokens, or renormalising the k, teaches something else. The student learns from
logits or, without them, from its features and its table of tokens. The teacher is generated.
"""

import torch
from torch import nn

from softnce import SoftTargetCrossEntropy, SoftTargets
from softnce.heads import LabelEmbeddingHead

TOKENS, DIM = 500, 16


def main(samples: int = 4000, steps: int = 300, k: int = 5) -> dict[str, float]:
    torch.manual_seed(0)
    x = torch.randn(samples, DIM)
    teacher = (x @ torch.randn(DIM, TOKENS)).mul(0.5).log_softmax(1)
    log_probs, index = teacher.topk(k)  # all that a server returns: k numbers and tokens per position
    print(f"the best {k} of {TOKENS} tokens hold {log_probs.exp().sum(1).mean():.0%} of the probability")

    criterion, divergence = SoftTargetCrossEntropy(), {}
    for rest in ("group", "spread", "renormalise"):
        targets = SoftTargets.from_topk_log_probs(index, log_probs, TOKENS, rest=rest)
        torch.manual_seed(1)
        body, head = nn.Linear(DIM, DIM), LabelEmbeddingHead(DIM, TOKENS, sparse=False)
        optimiser = torch.optim.Adam([*body.parameters(), *head.parameters()], lr=0.01)
        for _ in range(steps):
            rows = torch.randint(samples, (256,))
            optimiser.zero_grad()
            # The same as criterion(head(body(x[rows])), targets[rows]), without a matrix of rows × tokens.
            head.loss(body(x[rows]), targets[rows], criterion).backward()
            optimiser.step()
        with torch.no_grad():
            student = head(body(x)).log_softmax(1)
        divergence[rest] = nn.functional.kl_div(student, teacher, reduction="batchmean", log_target=True).item()
        print(f"{rest:12} divergence from the whole teacher {divergence[rest]:.3f} nats")
    return divergence


if __name__ == "__main__":
    main()
