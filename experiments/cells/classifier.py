"""The one LightningModule: a model, a loss, smoothing and mixing of targets, the optimiser, and the scores."""

import math
from typing import Any

import lightning as L
import torch
import torch.distributed as dist
from torch import Tensor, nn

from experiments.cells.batches import Batch
from experiments.cells.recipes import Optimiser, Recipe
from experiments.data.seeds import derived_seed
from experiments.data.targets import draw_batch, soft_targets
from experiments.harness.runs import Diverged
from experiments.losses import ClassifierLoss
from experiments.training import Scores, decay_groups
from softnce import SoftTargets
from softnce.losses import ContrastiveLoss


class Classifier(L.LightningModule):
    """Trains ``model`` (inputs → class scores) with ``loss``, one of :mod:`softnce.losses`, and evaluates it.

    Targets, optimiser, schedule and seed are the recipe's; everything random in a step follows from the seed and the
    number of the step. ``about`` are plain values kept in every checkpoint, from which the model can be built again.
    Classes are ranked by exp(z·y/τ), and a softmax makes that probabilities; both are independent of the noise.
    """

    def __init__(
        self,
        model: nn.Module,
        loss: ClassifierLoss,
        num_classes: int,
        recipe: Recipe | None = None,
        *,
        steps_per_epoch: int = 1,
        scores: Scores | None = None,
        about: dict[str, Any] | None = None,
    ) -> None:
        super().__init__()
        self.model, self.loss, self.num_classes, self.recipe = model, loss, num_classes, recipe or Recipe()
        self.steps_per_epoch, self.scores, self.about = steps_per_epoch, scores or Scores(num_classes), about or {}
        # of the update under way: the losses of its micro-batches; targets and step of its whole batch
        self._pending: list[Tensor] = []
        self._whole: Any = None

    def forward(self, inputs: Any) -> Tensor:
        return self.model(inputs)

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        value, soft = self.step_loss(batch, batch_idx, self.global_rank)
        self._pending.append(value.detach())
        self._whole = soft, batch.step
        # The shares' losses add up to the mean over the whole batch, but Lightning divides by the number of accumulated
        # micro-batches and DDP by that of the ranks.
        return value * (self.trainer.accumulate_grad_batches * self.trainer.world_size)

    def step_loss(self, batch: Batch, batch_idx: int = 0, rank: int = 0) -> tuple[Tensor, SoftTargets]:
        """The share of a batch in the loss of the whole batch, and the targets it was contrasted with; no trainer."""
        targets, seed = self.recipe.targets, self.recipe.seed
        torch.manual_seed(derived_seed(seed, batch.step, batch_idx, rank))  # dropout and stochastic depth
        soft = soft_targets(batch.whole, self.num_classes, targets.smoothing)
        inputs, mix = batch.inputs, None
        if targets.mixes:
            mix = draw_batch(targets, len(batch.whole), inputs.shape, seed, batch.step)
            soft = mix.targets(soft)
        if mix is None:
            scores = self(inputs)
        elif inputs.is_floating_point():
            scores = self(mix.inputs(inputs, batch.own))
        else:  # tokens cannot be averaged, the head's input can
            network: Any = self.model
            scores = network.head(mix.inputs(network.embed(inputs), batch.own))
        generator = self._shared_generator(batch.step, batch.labels.device)
        # Nothing to ask other ranks for: the whole batch is here. Before the return, or this rank would gather alone.
        self.loss.distributed = False
        if len(batch.own) == 0:
            return 0.0 * scores.sum(), soft
        return self.loss(scores, soft[batch.own], batch=soft, own=batch.own, generator=generator), soft

    def _shared_generator(self, step: int, device: torch.device) -> torch.Generator:
        """The generator of all shares of a batch, so that they draw the same."""
        return torch.Generator(device).manual_seed(derived_seed(self.recipe.seed, step))

    def remember(self, whole: SoftTargets, step: int) -> None:
        """Updates the queue of the loss, if it has one, by the targets of a whole batch; once per update."""
        if isinstance(self.loss, ContrastiveLoss):
            self.loss.remember(whole, generator=self._shared_generator(step, whole.device))

    def on_before_optimizer_step(self, optimizer: torch.optim.Optimizer) -> None:
        """Once per update: log the loss of the whole batch, and stop if it is NaN or infinite."""
        total = torch.stack(self._pending).sum()
        self._pending.clear()
        self.remember(*self._whole)
        if dist.is_available() and dist.is_initialized():
            dist.all_reduce(total)
        value, rate = total.item(), max(group["lr"] for group in optimizer.param_groups)
        if not math.isfinite(value):
            raise Diverged(
                f"the loss is {value} at step {self.global_step} (epoch {self.current_epoch}, learning rate {rate:.3g})"
            )
        self.log("train/loss", value, prog_bar=True)
        self.log("train/lr", rate)

    def configure_optimizers(self) -> Any:
        o = self.recipe.optimiser
        update = build_optimiser(o, parameter_groups(self.model, o))
        rate = torch.optim.lr_scheduler.LambdaLR(update, lambda step: self.rate(step) / o.rate)
        return {"optimizer": update, "lr_scheduler": {"scheduler": rate, "interval": "step"}}

    def rate(self, step: int) -> float:
        """The learning rate of update ``step``, counted from 0: a line from 0, then a cosine down to ``min_lr``."""
        o, s = self.recipe.optimiser, self.recipe.schedule
        epoch = step / self.steps_per_epoch
        if epoch < s.warmup_epochs:
            return o.rate * epoch / s.warmup_epochs
        share = min(1.0, (epoch - s.warmup_epochs) / max(s.epochs - s.warmup_epochs, 1e-9))
        return s.min_lr + (o.rate - s.min_lr) * 0.5 * (1 + math.cos(math.pi * share))

    def validation_step(self, batch: Batch, batch_idx: int) -> None:
        logits = self(batch.inputs).float() / self.loss.temperature
        if logits.isnan().any():
            raise Diverged(f"the class scores are NaN after step {self.global_step} (epoch {self.current_epoch})")
        self.scores.update(logits, batch.labels, batch.inputs)

    def on_validation_epoch_end(self) -> None:
        self.scores.gather()
        results = self.scores.compute()
        self.scores.reset()
        for name, value in results.items():  # the same on every rank; sync_dist only says so to Lightning
            self.log(f"val/{name}", value, prog_bar=name in ("top1", "ece"), sync_dist=True)

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        checkpoint["about"] = self.about


Group = dict[str, Any]
"""``params``, their ``weight_decay`` and, if it is not 1, their share ``lr_scale`` of the learning rate."""


def build_optimiser(config: Optimiser, groups: list[Group]) -> torch.optim.Optimizer:
    for group in groups:
        group["lr"] = config.rate * group.setdefault("lr_scale", 1.0)
    if config.name == "sgd":
        return torch.optim.SGD(groups, momentum=0.9)
    update = torch.optim.Adam if config.name == "adam" else torch.optim.AdamW
    # one pass over the parameters, a fifth of the time on a CPU
    is_fused = all(p.device.type == "cpu" for group in groups for p in group["params"])
    return update(groups, fused=is_fused or None)


def parameter_groups(network: nn.Module, config: Optimiser) -> list[Group]:
    """The groups of a network: by its layers, by the part that is decayed, or matrices and the rest.

    ``layer_decay`` is BEiT's and MAE's rule, by timm. Vectors, position embeddings and class tokens are not decayed.
    """
    parts: dict[str, Any] = dict(network.named_children())
    if config.decayed:
        if config.decayed not in parts:
            raise ValueError(f"optimiser.decayed: got {config.decayed!r}, but the network has {', '.join(parts)}")
        return [
            {"params": list(part.parameters()), "weight_decay": config.weight_decay * (name == config.decayed)}
            for name, part in parts.items()
        ]
    if "backbone" not in parts:
        if config.layer_decay != 1:
            raise ValueError(f"optimiser.layer_decay: got {config.layer_decay:g}, but this network needs 1")
        return decay_groups(network.parameters(), config.weight_decay)
    from timm.optim import param_groups_layer_decay

    groups, backbone = decay_groups(parts["head"].parameters(), config.weight_decay), parts["backbone"]
    if not any(p.requires_grad for p in backbone.parameters()):
        return groups
    exempt = backbone.no_weight_decay() if hasattr(backbone, "no_weight_decay") else ()
    layers = param_groups_layer_decay(
        backbone, config.weight_decay, no_weight_decay_list=exempt, layer_decay=config.layer_decay
    )
    return [*layers, *groups]
