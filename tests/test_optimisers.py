"""Row-wise Adagrad: its update, its state, and what it refuses."""

import pytest
import torch
from torch.testing import assert_close

from softnce import SoftTargetInfoNCE
from softnce.heads import LabelEmbeddingHead
from softnce.optimisers import RowAdagrad


def touch(table: torch.nn.Parameter, rows: list[int], gradient: torch.Tensor) -> None:
    index = torch.tensor([rows])
    table.grad = torch.sparse_coo_tensor(index, gradient.to(table.dtype), table.shape, check_invariants=True)


@pytest.mark.parametrize("decay", [0.0, 0.1])
def test_row_adagrad_is_adagrad_with_one_number_per_row(decay: float):
    """Weight decay touches the rows of the gradient only."""
    table, row, total = torch.nn.Parameter(torch.full((4, 2), 2.0)), torch.full((2,), 2.0), 0.0
    optimiser = RowAdagrad([table], lr=0.5, weight_decay=decay)
    for gradient in (torch.tensor([3.0, 4.0]), torch.tensor([0.0, 1.0])):
        touch(table, [2], gradient[None])
        optimiser.step()
        decayed = gradient + decay * row
        total += decayed.square().mean()
        row = row - 0.5 * decayed / total.sqrt()
        assert_close(table.detach()[2], row)
    assert_close(table.detach()[[0, 1, 3]], torch.full((3, 2), 2.0))
    assert optimiser.state[table]["sum"].shape == (4,)


@pytest.mark.parametrize("options", [{"lr": 0.0}, {"lr": -1.0}, {"lr": float("nan")}, {"lr": 1.0, "eps": 0.0}])
def test_rates_must_be_positive(options):
    with pytest.raises(ValueError, match="must be a positive number"):
        RowAdagrad([torch.nn.Parameter(torch.ones(2, 2))], **options)


def test_a_head_with_a_bias_trains_as_a_table_and_adagrad():
    torch.manual_seed(0)
    head, z = LabelEmbeddingHead(4, 50, bias=True).double(), torch.randn(8, 4, dtype=torch.float64)
    start = {name: p.detach().clone() for name, p in head.named_parameters()}
    bias = torch.nn.Parameter(start["bias"].clone())
    optimiser, reference = RowAdagrad(head.parameters(), lr=0.3), torch.optim.Adagrad([bias], lr=0.3)
    for shift in range(3):
        optimiser.zero_grad()
        head.loss(z, torch.arange(8) + shift, SoftTargetInfoNCE("uniform")).backward()
        bias.grad = head.bias.grad.clone()
        optimiser.step()
        reference.step()
    assert_close(head.bias.detach(), bias.detach(), rtol=0, atol=1e-12)
    assert (head.bias.detach() != start["bias"]).any()
    assert (head.weight.detach() != start["table.weight"]).any(1).nonzero()[:, 0].tolist() == list(range(10))


def test_a_table_keeps_one_number_per_row_when_its_gradient_becomes_dense():
    """Train by contrast, finish with the exact cross-entropy, whose gradient is of all rows."""
    sparse, dense = (torch.nn.Parameter(torch.ones(4, 2, dtype=torch.float64)) for _ in range(2))
    optimiser = RowAdagrad([sparse, dense], lr=0.5)
    gradient = torch.randn(4, 2, dtype=torch.float64)
    for table in (sparse, dense):
        touch(table, [0, 1, 2, 3], gradient)
    optimiser.step()
    touch(sparse, [0, 1, 2, 3], 2 * gradient)
    dense.grad = 2 * gradient
    optimiser.step()
    assert_close(sparse, dense, rtol=0, atol=1e-15)
    assert optimiser.state[dense]["sum"].shape == (4,)


def test_a_closure_is_called_once_with_gradients_enabled():
    head, z = LabelEmbeddingHead(4, 50, bias=True), torch.randn(3, 4)
    optimiser = RowAdagrad(head.parameters(), lr=1.0)
    calls = []

    def closure() -> torch.Tensor:
        optimiser.zero_grad()
        value = head.loss(z, torch.tensor([1, 7, 7]), SoftTargetInfoNCE("uniform"))
        value.backward()
        calls.append(value)
        return value

    before = head.weight.detach().clone()
    assert optimiser.step(closure) is calls[0]
    assert len(calls) == 1
    moved = (head.weight.detach() != before).any(1).nonzero()[:, 0]
    assert moved.tolist() == [1, 7]  # rows that no target touches stay


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_tables_follow_the_float32_table(dtype: torch.dtype):
    """In half precision gradients of 1e-4 square to 0 and a sum of ones stops at 256 or 2,048."""
    half, full = tables = [torch.nn.Parameter(torch.zeros(3, 2, dtype=d)) for d in (dtype, torch.float32)]
    optimiser = RowAdagrad(tables, lr=0.1)
    for size in [1e-4] + [1.0] * 3000:
        for table in tables:
            table.data.zero_()
            touch(table, [1], torch.tensor([[size, -size]]))
        optimiser.step()
    sums = [optimiser.state[table]["sum"][1] for table in tables]
    assert_close(*sums)
    assert sums[0] > 2999
    for table in tables:
        table.data.zero_()
        touch(table, [1, 1], torch.tensor([[1.0, 1.0], [2**-9, 2**-9]]))  # the sum of both is no bfloat16
    optimiser.step()
    assert_close(half.detach(), full.detach().to(dtype), rtol=0, atol=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_run_that_resumes_ends_as_one_that_did_not_stop(tmp_path, dtype: torch.dtype):
    def start() -> tuple[LabelEmbeddingHead, RowAdagrad, torch.optim.lr_scheduler.LRScheduler]:
        torch.manual_seed(0)
        head = LabelEmbeddingHead(4, 50, bias=True).to(dtype)
        optimiser = RowAdagrad(head.parameters(), lr=1.0, weight_decay=0.01)
        return head, optimiser, torch.optim.lr_scheduler.StepLR(optimiser, 2, 0.5)

    def train(head, optimiser, schedule, steps: range) -> None:
        for step in steps:
            z = torch.randn(8, 4, generator=torch.Generator().manual_seed(step)).to(dtype)
            optimiser.zero_grad()
            head.loss(z, torch.arange(8) + step, SoftTargetInfoNCE("uniform")).backward()
            optimiser.step()
            schedule.step()

    whole = start()
    train(*whole, range(8))
    half = start()
    train(*half, range(5))
    torch.save([part.state_dict() for part in half], tmp_path / "state")
    again = start()
    for part, state in zip(again, torch.load(tmp_path / "state"), strict=True):
        part.load_state_dict(state)
    train(*half, range(5, 8))  # must not change what was loaded
    train(*again, range(5, 8))
    assert again[1].param_groups[0]["lr"] == whole[1].param_groups[0]["lr"] == 1 / 16
    for p, q in zip(whole[0].parameters(), again[0].parameters(), strict=True):
        assert torch.equal(p, q)
        assert torch.equal(whole[1].state[p]["sum"], again[1].state[q]["sum"])


@pytest.mark.filterwarnings("ignore")  # of Lightning about itself
def test_it_trains_in_a_lightning_module(tmp_path):
    from experiments.models import torchvision_operators  # noqa: F401  (before Lightning)

    lightning = pytest.importorskip("lightning")

    class Model(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.head = LabelEmbeddingHead(4, 50, bias=True)

        def training_step(self, batch, _):
            return self.head.loss(*batch, SoftTargetInfoNCE("uniform"))

        def configure_optimizers(self):
            return RowAdagrad(self.parameters(), lr=1.0)

    rows = torch.randn(32, 4, generator=torch.Generator().manual_seed(0))
    data = torch.utils.data.TensorDataset(rows, torch.arange(32))

    def fit(model: Model, epochs: int, resume: str | None = None):
        trainer = lightning.Trainer(
            max_epochs=epochs, accelerator="cpu", logger=False, enable_progress_bar=False, enable_model_summary=False,
            enable_checkpointing=False, default_root_dir=tmp_path,
        )  # fmt: skip
        trainer.fit(model, torch.utils.data.DataLoader(data, batch_size=8), ckpt_path=resume)
        return trainer

    models = []
    for _ in range(3):
        torch.manual_seed(0)
        models.append(Model())
    fit(models[0], 4)
    fit(models[1], 2).save_checkpoint(tmp_path / "two.ckpt")
    fit(models[2], 4, str(tmp_path / "two.ckpt"))
    for p, q in zip(models[0].parameters(), models[2].parameters(), strict=True):
        assert torch.equal(p, q)
    assert not torch.equal(models[0].head.weight, models[1].head.weight)
