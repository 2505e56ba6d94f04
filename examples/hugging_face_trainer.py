"""Hugging Face Trainer: a text classifier with exact gradient accumulation, on one process or several.

    python examples/hugging_face_trainer.py
    torchrun --nproc_per_node 2 examples/hugging_face_trainer.py     # the same steps

Trainer reads all batches of an update before the first forward pass, so the targets of the update are known in time.
It multiplies the loss of a compute_loss_func by the number of processes and does not divide it by the number of parts:
hence distributed="sum". The texts are generated, the network is a small BERT that has learned nothing yet.
"""

import tempfile
from typing import Any

import torch
from torch import Tensor
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments

from softnce import ContrastiveLoss, SoftTargetInfoNCE, SoftTargets

CLASSES, WORDS, LENGTH = 10, 200, 12


class SoftTargetTrainer(Trainer):
    """A Trainer whose losses are contrasted with the targets of the whole update."""

    def __init__(self, *args: Any, criterion: ContrastiveLoss, num_classes: int, **kwargs: Any) -> None:
        super().__init__(*args, compute_loss_func=self._soft_loss, **kwargs)
        self.criterion, self.num_classes = criterion, num_classes
        self._update: SoftTargets | None = None

    def get_batch_samples(self, *args: Any) -> Any:
        if self._update is not None:
            self.criterion.remember(self._update.to(self.args.device))  # the estimate of η takes in an update once
        samples, count = super().get_batch_samples(*args)
        labels = [sample["labels"] for sample in samples]
        self._update = SoftTargets.from_labels(torch.cat(labels), self.num_classes)
        self._parts = iter(torch.arange(len(self._update)).split([len(part) for part in labels]))
        return samples, count

    def _soft_loss(self, outputs: Any, labels: Tensor, num_items_in_batch: Any = None) -> Tensor:
        if not torch.is_grad_enabled():  # an evaluation
            return self.criterion.against_classes(outputs["logits"], labels)
        batch = self._update.to(labels.device)
        return self.criterion(outputs["logits"], labels, batch=batch, own=next(self._parts).to(labels.device))


def texts(count: int, seed: int) -> list[dict[str, Tensor]]:
    """Every class has words of its own; half of a text's words are of its class."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(CLASSES, (count,), generator=generator)
    words = torch.randint(WORDS, (count, LENGTH), generator=generator)
    typical = labels[:, None] + CLASSES * torch.randint(WORDS // CLASSES, words.shape, generator=generator)
    words = torch.where(torch.rand(words.shape, generator=generator) < 1 / 2, typical, words)
    return [{"input_ids": ids, "labels": label} for ids, label in zip(words, labels, strict=True)]


def main(samples: int = 2000, epochs: float = 5) -> float:
    config = BertConfig(
        vocab_size=WORDS, hidden_size=32, num_hidden_layers=1, num_attention_heads=2, intermediate_size=64,
        max_position_embeddings=LENGTH, num_labels=CLASSES, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
    )  # fmt: skip
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as folder:
        trainer = SoftTargetTrainer(
            BertForSequenceClassification(config),
            TrainingArguments(
                folder, per_device_train_batch_size=32, gradient_accumulation_steps=2, num_train_epochs=epochs,
                learning_rate=1e-2, use_cpu=True, report_to=[], save_strategy="no", logging_strategy="no",
                disable_tqdm=True,
            ),
            train_dataset=texts(samples, seed=0),
            criterion=SoftTargetInfoNCE(distributed="sum"),
            num_classes=CLASSES,
        )  # fmt: skip
        trainer.train()
        found = trainer.predict(texts(500, seed=1))
    accuracy = float((found.predictions.argmax(1) == found.label_ids).mean())
    print(f"accuracy {accuracy:.1%}")
    return accuracy


if __name__ == "__main__":
    main()
