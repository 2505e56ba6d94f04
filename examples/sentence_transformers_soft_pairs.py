"""sentence-transformers: a loss with graded, many-positive pairs for its Trainer.

MultipleNegativesRankingLoss knows one positive per anchor. This loss takes a share per passage of the batch, for
example from a cross-encoder's scores or from clicks. Any model of sentence-transformers will do; the one here is a
table of word vectors, which needs no download. The texts are generated.
"""

import tempfile
from collections.abc import Iterable

import torch
from datasets import Dataset
from sentence_transformers import SentenceTransformer, SentenceTransformerTrainer, SentenceTransformerTrainingArguments
from sentence_transformers.models import StaticEmbedding
from tokenizers import Tokenizer, models, pre_tokenizers
from torch import Tensor, nn
from torch.nn import functional as F

from softnce import SoftTargetCrossEntropy, SoftTargets

TOPICS = 12


class SoftPairsLoss(nn.Module):
    """Column 1: anchors; column 2: passages; `label`: the topic of each pair. Passages of a topic share the target."""

    def __init__(self, model: SentenceTransformer) -> None:
        super().__init__()
        self.model = model
        self.criterion = SoftTargetCrossEntropy(temperature=0.05)

    def forward(self, sentence_features: Iterable[dict[str, Tensor]], labels: Tensor) -> Tensor:
        anchors, passages = (
            F.normalize(self.model(features)["sentence_embedding"], dim=1) for features in sentence_features
        )
        # A target per anchor over the passages of the batch; rows that sum to 1, whatever your grades are.
        grades = (labels[:, None] == labels).float()
        targets = SoftTargets.from_dense(grades / grades.sum(1, keepdim=True))
        return self.criterion(anchors @ passages.T, targets)


def main(pairs: int = 600, epochs: float = 3) -> float:
    generator = torch.Generator().manual_seed(0)
    words = [f"{kind}{topic}x{i}" for kind in ("ask", "say") for topic in range(TOPICS) for i in range(6)]
    tokenizer = Tokenizer(models.WordLevel({word: i for i, word in enumerate(["[UNK]", *words])}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    torch.manual_seed(0)
    model = SentenceTransformer(modules=[StaticEmbedding(tokenizer, embedding_dim=32)], device="cpu")

    # Questions and answers on a topic share no word, so only training can bring them together.
    topics = torch.randint(TOPICS, (pairs,), generator=generator).tolist()

    def text(kind: str, topic: int) -> str:
        return " ".join(f"{kind}{topic}x{int(i)}" for i in torch.randint(6, (4,), generator=generator))

    data = Dataset.from_dict(
        {"anchor": [text("ask", t) for t in topics], "passage": [text("say", t) for t in topics], "label": topics}
    )
    with tempfile.TemporaryDirectory() as folder:
        arguments = SentenceTransformerTrainingArguments(
            folder, num_train_epochs=epochs, per_device_train_batch_size=64, learning_rate=0.05, use_cpu=True,
            report_to=[], save_strategy="no", logging_strategy="no", disable_tqdm=True,
        )  # fmt: skip
        trainer = SentenceTransformerTrainer(model, arguments, data, loss=SoftPairsLoss(model))
        trainer.train()

    asked, said = (
        model.encode([text(kind, t) for t in range(TOPICS)], convert_to_tensor=True) for kind in ("ask", "say")
    )
    nearest = (F.normalize(asked, dim=1) @ F.normalize(said, dim=1).T).argmax(1).cpu()
    accuracy = (nearest == torch.arange(TOPICS)).float().mean().item()
    print(f"{accuracy:.0%} of new questions find the answer on their topic")
    return accuracy


if __name__ == "__main__":
    main()
