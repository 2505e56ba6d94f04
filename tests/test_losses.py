"""The modules: drop-in where nn.CrossEntropyLoss stood, and everything they take besides."""

from collections.abc import Callable
from functools import partial

import pytest
import torch
from batches import make_targets
from torch import nn
from torch.nn import functional as F

import softnce
from softnce import (
    NLL,
    BatchCandidates,
    ClassCandidates,
    ExpectedInfoNCE,
    InfoNCE,
    NoiseCandidates,
    QueueCandidates,
    SampledCandidates,
    SoftDistributionInfoNCE,
    SoftTargetCrossEntropy,
    SoftTargetInfoNCE,
    SoftTargets,
    functional,
    noise,
)

N, K = 12, 5
GENERATOR = torch.Generator().manual_seed(0)
LOGITS = torch.randn(N, K, dtype=torch.float64, generator=GENERATOR)
LABELS = torch.randint(K, (N,), generator=GENERATOR)
PROBS = torch.randn(N, K, dtype=torch.float64, generator=GENERATOR).softmax(1)
WEIGHT = torch.rand(N, dtype=torch.float64, generator=GENERATOR)
CLASS_WEIGHT = torch.rand(K, dtype=torch.float64, generator=GENERATOR) + 0.1
ALL = [SoftTargetInfoNCE, InfoNCE, SoftDistributionInfoNCE, ExpectedInfoNCE, SoftTargetCrossEntropy, NLL]
EXACT = {"rtol": 0.0, "atol": 1e-13}
ZEROS, THREE = torch.zeros(3, dtype=torch.long), SoftTargets.from_labels([0, 1, 2], 4)


@pytest.mark.parametrize("kind", ["labels", "ignored", "probs", "one-hot", "spatial"])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("smoothing", [0.0, 0.2])
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_cross_entropy_is_torchs(reduction: str, smoothing: float, weighted: bool, kind: str) -> None:
    class_weight = CLASS_WEIGHT if weighted else None
    logits, targets = {
        "labels": (LOGITS, LABELS),
        "ignored": (LOGITS, torch.where(LABELS.eq(LABELS[0]), 255, LABELS)),
        "probs": (LOGITS, PROBS),
        "one-hot": (LOGITS, F.one_hot(LABELS, K).double()),
        "spatial": (LOGITS.reshape(2, 2, 3, K).movedim(-1, 1), LABELS.reshape(2, 2, 3)),
    }[kind]
    ignored = -100 if targets.is_floating_point() else 255  # torch takes no other with probabilities
    options = {"reduction": reduction, "label_smoothing": smoothing, "ignore_index": ignored}
    ours = SoftTargetCrossEntropy(class_weight=class_weight, **options)
    theirs = F.cross_entropy(logits, targets, class_weight, **options)
    torch.testing.assert_close(ours(logits, targets), theirs, **EXACT)
    if smoothing == 0 and not targets.is_floating_point():
        hard = NLL(reduction=reduction, class_weight=class_weight, ignore_index=255)
        torch.testing.assert_close(hard(logits, targets), theirs, **EXACT)


def test_class_weights_divide_the_mean_of_labels_alone() -> None:
    """As in torch: a mean over labels divides by the sum of their weights, one over probabilities by their number."""
    soft = SoftTargets.from_labels(LABELS, K)
    each = CLASS_WEIGHT[LABELS] * F.cross_entropy(LOGITS, LABELS, reduction="none")
    by_weight, by_number = each.sum() / CLASS_WEIGHT[LABELS].sum(), each.mean()
    cross_entropy, nll = SoftTargetCrossEntropy(class_weight=CLASS_WEIGHT), NLL(class_weight=CLASS_WEIGHT)
    torch.testing.assert_close(cross_entropy(LOGITS, LABELS), by_weight, **EXACT)
    torch.testing.assert_close(cross_entropy(LOGITS, soft), by_number, **EXACT)
    for targets in (LABELS, soft):  # NLL takes nothing but labels
        torch.testing.assert_close(nll(LOGITS, targets), by_weight, **EXACT)
    parts = [{"batch": soft, "own": own} for own in torch.arange(N).split(5)]
    for loss, targets, expected in (
        (cross_entropy, LABELS, by_weight),
        (cross_entropy, soft, by_number),
        (nll, LABELS, by_weight),
        (nll, soft, by_weight),
    ):
        total = sum(loss(LOGITS[part["own"]], targets[part["own"]], **part) for part in parts)
        torch.testing.assert_close(total, expected, **EXACT)


@pytest.mark.parametrize(
    "loss",
    [SoftTargetInfoNCE("uniform"), InfoNCE("uniform"), ExpectedInfoNCE("uniform"), SoftTargetCrossEntropy(), NLL()],
)
def test_sample_weights_weigh_the_mean(loss: nn.Module) -> None:
    loss = loss.eval()  # a running noise stays as it is
    loss.reduction = "none"
    each = loss(LOGITS, LABELS) * WEIGHT
    for reduction, expected in (("none", each), ("mean", each.sum() / WEIGHT.sum()), ("sum", each.sum())):
        loss.reduction = reduction
        torch.testing.assert_close(loss(LOGITS, LABELS, sample_weight=WEIGHT), expected, **EXACT)


def test_class_weights_weigh_samples_by_their_targets() -> None:
    each = functional.soft_target_info_nce(LOGITS, PROBS, reduction="none")
    weights = PROBS @ CLASS_WEIGHT
    ours = SoftTargetInfoNCE("uniform", class_weight=CLASS_WEIGHT)(LOGITS, PROBS)
    torch.testing.assert_close(ours, (each * weights).sum() / weights.sum(), **EXACT)
    by_label = InfoNCE("uniform", class_weight=CLASS_WEIGHT)(LOGITS, LABELS)
    each = functional.info_nce(LOGITS, LABELS, reduction="none")
    weights = CLASS_WEIGHT[LABELS]
    torch.testing.assert_close(by_label, (each * weights).sum() / weights.sum(), **EXACT)


@pytest.mark.parametrize("loss", ALL)
def test_ignored_rows_are_as_if_they_were_not_there(loss: type[nn.Module]) -> None:
    labels = torch.where(LABELS.eq(LABELS[0]), -100, LABELS)
    kept = labels != -100
    assert 0 < int(kept.sum()) < N
    logits = LOGITS.clone().requires_grad_()
    value = loss()(logits, labels)
    value.backward()
    if loss is not SoftDistributionInfoNCE:  # hard labels leave nothing to draw, but the stream of draws moves on
        torch.testing.assert_close(value, loss()(LOGITS[kept], labels[kept]), **EXACT)
    assert (logits.grad[~kept] == 0).all()
    poisoned = torch.where(kept[:, None], LOGITS, torch.nan).requires_grad_()
    seeded = {"generator": torch.Generator().manual_seed(0)}
    again = loss()(poisoned, labels, **seeded)
    again.backward()
    assert again.isfinite()
    assert poisoned.grad.isfinite().all()
    nothing = loss()(logits, torch.full_like(labels, -100))
    assert nothing.item() == 0
    assert torch.autograd.grad(nothing, logits)[0].eq(0).all()


@pytest.mark.parametrize("loss", ALL)
def test_dense_prediction_is_the_flat_one(loss: type[nn.Module]) -> None:
    logits, labels = LOGITS.reshape(3, 4, K).movedim(-1, 1), LABELS.reshape(3, 4)
    flat = loss(reduction="none")(LOGITS, LABELS)
    torch.testing.assert_close(loss(reduction="none")(logits, labels), flat.reshape(3, 4), **EXACT)
    if loss in (SoftTargetInfoNCE, ExpectedInfoNCE, SoftTargetCrossEntropy):
        probs = PROBS.reshape(3, 4, K).movedim(-1, 1)
        torch.testing.assert_close(loss()(logits, probs), loss()(LOGITS, PROBS), **EXACT)


def test_soft_distribution_draws_and_is_reproducible() -> None:
    loss = SoftDistributionInfoNCE("uniform")
    soft = SoftTargets.from_dense(PROBS)

    def value(seed: int) -> torch.Tensor:
        return loss(LOGITS, PROBS, generator=torch.Generator().manual_seed(seed))

    assert value(1) == value(1)
    assert value(1) != value(2)
    drawn = soft.sample(torch.Generator().manual_seed(1))
    torch.testing.assert_close(value(1), functional.info_nce(LOGITS, drawn), **EXACT)
    function = functional.soft_distribution_info_nce(LOGITS, PROBS, generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(function, value(1), **EXACT)


def test_hard_losses_refuse_soft_targets() -> None:
    for loss in (InfoNCE("uniform"), NLL()):
        for soft in (PROBS, SoftTargets.from_labels(LABELS, K, smoothing=0.1)):
            with pytest.raises(ValueError, match="takes hard labels, got soft targets"):
                loss(LOGITS, soft)
        assert loss(LOGITS, SoftTargets.from_labels(LABELS, K)) == loss(LOGITS, LABELS)
        with pytest.raises(TypeError, match="label_smoothing"):
            type(loss)(label_smoothing=0.1)
    with pytest.raises(ValueError, match="takes hard labels, got soft targets"):
        InfoNCE("uniform").linear(torch.randn(N, 3), torch.randn(K, 3), PROBS)


@pytest.mark.parametrize("kind", [SoftTargetInfoNCE, ExpectedInfoNCE, SoftTargetCrossEntropy])
def test_learnable_temperature_gets_a_gradient(kind: type[nn.Module]) -> None:
    """Also one of shape (1,), which is the same number."""
    flat, long = (kind(temperature=nn.Parameter(torch.full(shape, 0.7).double())).eval() for shape in ((), (1,)))
    assert [name for name, _ in flat.named_parameters()] == ["temperature"]
    values = [loss(LOGITS, PROBS) for loss in (flat, long)]
    assert torch.equal(*values)
    for value in values:
        value.backward()
    assert torch.equal(flat.temperature.grad[None], long.temperature.grad)
    above, below = (kind(temperature=0.7 + d).eval()(LOGITS, PROBS) for d in (1e-6, -1e-6))
    assert flat.temperature.grad.item() == pytest.approx((above - below).item() / 2e-6, rel=1e-6)


def test_comparisons_with_all_classes_leave_batch_smoothing_and_noise_out() -> None:
    loss = SoftTargetInfoNCE("uniform", temperature=0.5).eval()
    halves = [loss.against_classes(LOGITS[rows], PROBS[rows]) for rows in (slice(0, N // 2), slice(N // 2, N))]
    torch.testing.assert_close(loss.against_classes(LOGITS, PROBS), torch.stack(halves).mean(), **EXACT)
    torch.testing.assert_close(loss.against_classes(LOGITS, PROBS), F.cross_entropy(LOGITS / 0.5, PROBS), **EXACT)
    smoothed = SoftTargetInfoNCE("uniform", label_smoothing=0.3)
    assert NLL().against_classes(LOGITS, LABELS) == smoothed.against_classes(LOGITS, LABELS)
    loss = SoftTargetInfoNCE(noise.from_counts(torch.arange(1, K + 1)), temperature=0.5)
    torch.testing.assert_close(loss.probabilities(LOGITS), (LOGITS / 0.5).softmax(1), **EXACT)


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("kind", [kind for kind in ALL if kind is not SoftDistributionInfoNCE])
def test_many_upstream_gradients_at_once(kind: type[nn.Module], reduction: str) -> None:
    logits, loss = LOGITS.clone().requires_grad_(), kind(reduction=reduction).eval()
    value = loss(logits, LABELS)
    upstream = torch.randn(3, *value.shape, dtype=torch.float64)
    (together,) = torch.autograd.grad(value, logits, upstream, is_grads_batched=True)
    for found, one in zip(together, upstream, strict=True):
        torch.testing.assert_close(found, torch.autograd.grad(loss(logits, LABELS), logits, one)[0])
    features = torch.randn(N, 3, requires_grad=True)
    value = NLL().linear(features, torch.randn(K, 3), LABELS)
    with pytest.raises(RuntimeError, match="is_grads_batched needs the logits form"):
        torch.autograd.grad(value, features, torch.ones(2), is_grads_batched=True)


def test_targets_carry_no_gradient_on_any_path() -> None:
    for candidates in (None, ClassCandidates(), SampledCandidates(4)):
        source = torch.randn(N, K, requires_grad=True)
        loss = SoftTargetInfoNCE("uniform", candidates=candidates)
        (loss(LOGITS.clone().requires_grad_(), source.softmax(1))).backward()
        assert source.grad is None


def test_half_precision_models_keep_their_losss_buffers() -> None:
    eta = noise.from_counts(torch.arange(1, K + 1))
    loss = SoftTargetInfoNCE(eta, candidates=SampledCandidates(8, noise.uniform(K)))
    before = loss.noise.log_eta.clone(), loss.candidates.edges.clone()
    loss.half()
    assert torch.equal(loss.noise.log_eta, before[0])
    assert torch.equal(loss.candidates.edges, before[1])
    running = noise.RunningNoise(K).bfloat16()
    assert running.counts.dtype == torch.float64


@pytest.mark.parametrize("kind", [ExpectedInfoNCE, SoftDistributionInfoNCE])
def test_running_noise_is_not_smoothed_again(kind: type[nn.Module]) -> None:
    """It takes in smoothed targets, so its estimate is the η of smoothed targets already."""
    labels = torch.tensor([0] * 9 + [1] * 3)
    loss = kind(noise.RunningNoise(K, prior=1e-9), label_smoothing=0.2)
    for seed in range(4):
        loss(LOGITS, labels, generator=torch.Generator().manual_seed(seed))
    estimate = loss.noise.probs().double()
    if kind is ExpectedInfoNCE:  # which draws nothing
        expected = 0.8 * noise.from_labels(labels, K, floor=1e-30).double() + 0.2 / K
        torch.testing.assert_close(estimate, expected, rtol=1e-6, atol=0)
    smoothed = SoftTargets.from_labels(labels, K, smoothing=0.2)
    ours = loss.eval()(LOGITS, labels, generator=torch.Generator().manual_seed(9))
    direct = kind(estimate)(LOGITS, smoothed, generator=torch.Generator().manual_seed(9))
    torch.testing.assert_close(ours, direct, rtol=0, atol=1e-6)


def test_mixup_of_timm_and_torchvision_pass_unchanged() -> None:
    from experiments.models import torchvision_operators  # noqa: F401

    timm_data = pytest.importorskip("timm.data")
    from torchvision.transforms import v2

    images, labels = torch.rand(8, 3, 16, 16), torch.randint(K, (8,))
    mixup = timm_data.Mixup(mixup_alpha=0.8, cutmix_alpha=1.0, label_smoothing=0.1, num_classes=K)
    _, by_timm = mixup(images.clone(), labels)
    _, by_torchvision = v2.MixUp(num_classes=K)(images, labels)
    logits = torch.randn(8, K)
    for targets in (by_timm, by_torchvision):
        assert SoftTargetInfoNCE("uniform")(logits, targets).isfinite()
        assert SoftDistributionInfoNCE("uniform")(logits, targets).isfinite()


@pytest.mark.parametrize("loss", ALL)
@pytest.mark.parametrize("names", [("class_weight",), ("sample_weight",), ("class_weight", "sample_weight")])
def test_single_precision_weights_of_double_precision_logits_add_up_exactly(
    loss: type[nn.Module], names: tuple[str, ...]
) -> None:
    single = {"class_weight": CLASS_WEIGHT.float(), "sample_weight": WEIGHT.float()}
    of_class, of_sample = ({name: single[name]} if name in names else {} for name in single)
    value, exact = (
        loss(**{k: v.to(dtype) for k, v in of_class.items()})(
            LOGITS, LABELS, **{k: v.to(dtype) for k, v in of_sample.items()}
        )
        for dtype in (torch.float32, torch.float64)
    )
    torch.testing.assert_close(value, exact, rtol=1e-15, atol=0)


# ------------------------------------------------------------------------------------------------- state and misuse


@pytest.mark.parametrize("loss", ALL)
def test_state_dict_round_trips(loss: type[nn.Module], tmp_path) -> None:
    module = loss(class_weight=CLASS_WEIGHT)
    torch.save(module.state_dict(), tmp_path / "state.pt")
    other = loss(class_weight=torch.ones(K, dtype=torch.float64))
    other.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=True))
    assert torch.equal(other.class_weight, CLASS_WEIGHT)


@pytest.mark.parametrize("loss", ALL)
@pytest.mark.parametrize(
    ("logits", "targets", "message"),
    [
        (torch.ones(3, 4).long(), ZEROS, "logits must be a floating point tensor"),
        ("text", ZEROS, "logits must be a floating point tensor, got str"),
        (torch.randn(3, 0), ZEROS, r"logits must have shape \(N, K\).*K ≥ 1"),
        (torch.randn(4), ZEROS[0], r"logits must have shape \(N, K\)"),
        (torch.randn(0, 4), ZEROS[:0], "the batch is empty"),
        (torch.randn(3, 4), ZEROS[:2], r"targets must be labels of shape \(3,\)"),
        (torch.randn(2, 3, 4), ZEROS.expand(2, 3), "classes are dimension 1, as for nn.CrossEntropyLoss"),
        (torch.randn(3, 4), torch.tensor([0, 1, 4]), r"targets holds the label 4; labels are in \[0, 4\)"),
        (torch.randn(3, 4), torch.tensor([0, 1, -1]), "targets holds the label -1"),
        (torch.randn(3, 4), ZEROS.float(), "targets must hold integer labels, got torch.float32|takes hard labels"),
        (torch.randn(3, 4), ZEROS > 0, "targets must hold integer labels, got torch.bool"),
        (torch.randn(3, 4), [0, 1, 2], "targets must be a tensor or SoftTargets, got list"),
        (torch.randn(3, 4), SoftTargets.from_labels([0, 1, 2], 5), "5 classes, 4 are needed"),
        (torch.randn(3, 4), SoftTargets.from_labels([0, 1], 4), "2 rows, but logits have 3"),
    ],
)
def test_misuse_gets_one_clear_error(loss: type[nn.Module], logits, targets, message: str) -> None:
    with pytest.raises((ValueError, TypeError), match=message):
        loss()(logits, targets)


SOFT = [SoftTargetInfoNCE, SoftDistributionInfoNCE, ExpectedInfoNCE, SoftTargetCrossEntropy]
PROBABILITIES = [
    (torch.full((3, 4), 0.3), "sum to 1 over the classes, got a sum of 1.2"),
    (torch.tensor([[1.5, -0.5, 0.0, 0.0]] * 3), "negative value -0.5"),
    (torch.full((3, 4), float("nan")), "NaN"),
    (torch.full((3, 5), 0.2), r"probabilities of shape \(3, 4\)"),
    (torch.ones(3, 4, dtype=torch.long), r"must be floating point probabilities, got torch.int64; .*from_votes"),
    (torch.ones(3, 4), "a sum of 4; for counts of votes: SoftTargets.from_votes"),
]
OPTIONS = [
    ({"noise_probs": torch.tensor([0.5, 0.4])}, "noise_probs must sum to 1"),
    ({"noise_probs": torch.tensor([1.0, 0.0])}, "zero for class 1.*floor"),
    ({"noise_probs": torch.ones(2, 2) / 2}, r"noise_probs must be floating point \(K,\)"),
    ({"noise_probs": [0.5, 0.5]}, "noise_probs must be a tensor"),
    ({"noise_probs": "zipf"}, 'noise_probs must be "running", "uniform" or a tensor'),
    ({"noise_probs": noise.uniform(5)}, "noise_probs has 5 entries, but there are 4 classes"),
    ({"candidates": SoftTargets.from_labels([0], 5)}, "candidates has 5 classes, but the scores have 4"),
    ({"candidates": THREE, "own": torch.tensor([1, 2, 3])}, "own must lie in 0 … 2, got 1 … 3"),
    ({"class_weight": torch.ones(5)}, r"class_weight must have shape \(4,\)"),
    ({"candidates": SampledCandidates(8, noise.uniform(5))}, "marginal has 5 classes, but the targets have 4"),
]
CASES = [(loss, {}, *case) for loss in SOFT for case in PROBABILITIES]
CASES += [(SoftTargetInfoNCE, options, torch.tensor([0, 1, 2]), message) for options, message in OPTIONS]


@pytest.mark.parametrize(("loss", "options", "targets", "message"), CASES)
def test_bad_probabilities_and_options_are_named(
    loss: type[nn.Module], options: dict, targets: torch.Tensor, message: str
) -> None:
    call = {"own": options["own"]} if "own" in options else {}
    with pytest.raises((ValueError, TypeError), match=message):
        loss(**{name: value for name, value in options.items() if name != "own"})(torch.randn(3, 4), targets, **call)


def test_value_checks_can_be_switched_off() -> None:
    broken = torch.full((3, 4), 0.3)
    with softnce.set_validation(False):
        assert SoftTargetInfoNCE("uniform")(torch.randn(3, 4), broken).isfinite()
    with pytest.raises(ValueError, match="sum to 1"):
        SoftTargetInfoNCE("uniform")(torch.randn(3, 4), broken)


@pytest.mark.parametrize(
    "loss",
    [
        partial(SoftTargetInfoNCE, candidates=BatchCandidates()),
        partial(SoftTargetInfoNCE, candidates=SampledCandidates(64, mix_alpha=0.8, smoothing=0.1)),
        partial(SoftTargetInfoNCE, candidates=QueueCandidates(32)),
        partial(SoftTargetInfoNCE, candidates=ClassCandidates()),
        partial(SoftTargetInfoNCE, candidates=ClassCandidates(smoothing=None)),
        partial(SoftTargetInfoNCE, candidates=BatchCandidates() + QueueCandidates(32) + ClassCandidates()),
    ]
    + [
        partial(ExpectedInfoNCE, candidates=candidates, negatives=negatives)
        for negatives in (None, "mean", "drawn")
        for candidates in (
            None,
            BatchCandidates(),
            BatchCandidates() + NoiseCandidates(7),
            NoiseCandidates(7),
            SampledCandidates(20),
            BatchCandidates() + QueueCandidates(30),
            ClassCandidates(),
            make_targets("votes", 8, 6, GENERATOR),
        )
    ],
)
def test_training_with_any_candidates_learns_a_separable_problem(loss: Callable[..., nn.Module]) -> None:
    torch.manual_seed(0)
    classes = 5 if loss.func is SoftTargetInfoNCE else 6
    centres, model = 3 * torch.randn(classes, 8), nn.Linear(8, classes)
    criterion, optimiser = loss("uniform", label_smoothing=0.1), torch.optim.Adam(model.parameters(), lr=0.05)
    for _ in range(60):
        labels = torch.randint(classes, (16,))
        optimiser.zero_grad()
        criterion(model(centres[labels] + torch.randn(16, 8)), labels).backward()
        optimiser.step()
    labels = torch.arange(classes).repeat(50)
    accuracy = (model(centres[labels] + torch.randn(len(labels), 8)).argmax(1) == labels).float().mean()
    assert accuracy > (0.97 if loss.func is SoftTargetInfoNCE else 0.95)
