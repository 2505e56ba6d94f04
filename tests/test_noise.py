"""Class frequencies η: from counts or labels, and the default noise, estimated from targets at a cost without K."""

import copy

import pytest
import torch
from batches import seeded
from torch.utils.data import DataLoader, TensorDataset

import softnce
from softnce import ExpectedInfoNCE, InfoNCE, NoiseCandidates, SampledCandidates, SoftTargets, noise
from softnce.heads import LabelEmbeddingHead
from softnce.noise import FixedNoise, RunningNoise

LABELS = torch.tensor([0, 1, 1, 2, 2, 2, 2, 2])


def test_from_labels_and_counts() -> None:
    expected = torch.tensor([1, 2, 5]) / 8
    torch.testing.assert_close(noise.from_labels(LABELS, 3), expected)
    torch.testing.assert_close(noise.from_counts(torch.tensor([1, 2, 5])), expected)
    torch.testing.assert_close(noise.from_counts(torch.tensor([3, 0, 1]), floor=1), torch.tensor([0.6, 0.2, 0.2]))
    torch.testing.assert_close(noise.uniform(4), torch.full((4,), 0.25))
    assert noise.from_counts(torch.tensor([16.0, 1.0]), exponent=0.5).tolist() == pytest.approx([0.8, 0.2])
    assert noise.from_counts(torch.tensor([16.0, 1.0]), exponent=0.0).tolist() == [0.5, 0.5]
    ignored = torch.cat([LABELS, torch.tensor([-100])])
    torch.testing.assert_close(noise.from_labels(ignored, 3), expected)


def test_from_a_loader_of_labels_probabilities_or_soft_targets() -> None:
    images = torch.zeros(8, 1)
    for targets in (LABELS, torch.nn.functional.one_hot(LABELS, 3).float()):
        loader = DataLoader(TensorDataset(images, targets), batch_size=3)
        torch.testing.assert_close(noise.from_loader(loader, 3), noise.from_labels(LABELS, 3))
    soft = [(images, SoftTargets.from_labels(LABELS, 3, smoothing=0.3))]
    torch.testing.assert_close(noise.from_loader(soft, 3), 0.7 * noise.from_labels(LABELS, 3) + 0.1)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: noise.from_labels(LABELS, 4), r"1 of 4 classes have no count \(3\).*pass floor=1"),
        (lambda: noise.from_labels(LABELS, 2), "label 2"),
        (lambda: noise.from_counts(torch.tensor([-1.0, 2.0])), "not negative"),
        (lambda: noise.from_counts(torch.ones(2, 2)), r"counts must be floating point \(K,\)"),
        (lambda: noise.from_counts(torch.ones(2), floor=0.0), "floor must be a positive number"),
        (lambda: noise.from_counts(torch.ones(2), exponent=-1.0), "exponent must be a finite number of at least 0"),
        (
            lambda: InfoNCE(RunningNoise(4))(torch.randn(2, 5), LABELS[:2]),
            "the running noise has 4 classes, but there are 5 classes",
        ),
        (lambda: noise.uniform(0), "num_classes must be a whole number of at least 1"),
        (lambda: RunningNoise(3, decay=0.0), "decay must be a positive number"),
        (lambda: RunningNoise(3, prior=0.0), "prior must be a positive number"),
        (lambda: noise.from_loader([(torch.zeros(2), "cat")], 3), "must end in targets of 3 classes"),
        (lambda: noise.from_loader([], 3, floor=1), "loader gave no targets"),
    ],
)
def test_misuse(make, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()


def test_noise_by_its_name() -> None:
    assert InfoNCE("uniform").noise is None is InfoNCE(None).noise
    assert isinstance(InfoNCE().noise, RunningNoise)


# ---------------------------------------------------------------------------------------- the running noise


def zipf(classes: int) -> torch.Tensor:
    share = 1 / torch.arange(1, classes + 1).double()
    return share / share.sum()


def test_estimate_is_that_of_the_counts() -> None:
    running, counts = RunningNoise(50, prior=0.5), torch.full((50,), 0.5).double()
    for seed in range(4):
        labels = torch.multinomial(zipf(50), 200, True, generator=seeded(seed))
        soft = SoftTargets.from_labels(labels, 50, smoothing=0.1)
        running.update(soft.mix(soft.flip(0), 0.3) if seed % 2 else soft)
        counts += soft.class_mass(torch.float64)
        running.sample(3, seeded())  # from the second batch on the tree follows the counts
    torch.testing.assert_close(running.probs(), counts / counts.sum(), rtol=0, atol=1e-7)
    torch.testing.assert_close(running.log_probs(torch.tensor([3, 7])), running.probs()[[3, 7]].log())


def test_decay_forgets() -> None:
    running, mass = RunningNoise(4, decay=0.5, prior=1.0), torch.zeros(4).double()
    for label in range(400):
        soft = SoftTargets.from_labels(torch.tensor([label % 3]), 4)
        running.update(soft)
        mass = mass * 0.5 + soft.class_mass(torch.float64)
    torch.testing.assert_close(running.probs(), (mass + 1) / (mass.sum() + 4))


@pytest.mark.parametrize("kind", ["fixed", "running"])
def test_draws_follow_the_noise(kind: str) -> None:
    """A chi-square test with one false alarm in a million."""
    eta, n = FixedNoise(zipf(30).float()) if kind == "fixed" else RunningNoise(30), 100_000
    if kind == "running":
        eta.update(SoftTargets.from_labels(torch.multinomial(zipf(30).float(), 5000, True, generator=seeded(1)), 30))
    found = torch.bincount(eta.sample(n, seeded()), minlength=30).double()
    expected = n * eta.log_probs().double().exp()
    statistic = ((found - expected).square() / expected).sum()
    assert float(statistic) < 88  # the quantile 1 − 10⁻⁶ of 29 degrees of freedom is 87.8


def test_a_given_noise_that_is_loaded_is_drawn_from() -> None:
    """Cumulative sums of the η before must not survive it."""
    eta, other = FixedNoise(torch.tensor([0.99, 0.01])), FixedNoise(torch.tensor([0.01, 0.99]))
    eta.sample(1, seeded())
    eta.load_state_dict(other.state_dict())
    assert torch.equal(eta.sample(100, seeded()), other.sample(100, seeded()))


def test_counts_do_not_saturate() -> None:
    """float32 stops counting at 2²⁴ rows of a class."""
    running = RunningNoise(2, prior=1e-6)
    running.add_counts(torch.tensor([2.0**24, 1.0], dtype=torch.float64))
    for _ in range(9):
        running.update(SoftTargets.from_labels(torch.tensor([0]), 2))
    assert float(running.counts[0]) == 2**24 + 9
    logits = torch.zeros(2, 2, dtype=torch.float64)
    many = SoftTargets.from_labels(torch.tensor([0, 1]), 2)
    value = softnce.functional.expected_info_nce(logits, many, candidates=NoiseCandidates(2.0**25), negatives="mean")
    assert float(value) == pytest.approx(float(torch.tensor(2.0**25 + 1).double().log1p()), rel=1e-9)


@pytest.mark.parametrize(("decay", "bound"), [(1.0, 0.0), (0.5, 1e-12)])
def test_state_continues(decay: float, bound: float) -> None:
    loss, restored = (InfoNCE(RunningNoise(decay=decay)) for _ in range(2))
    logits, labels = torch.randn(8, 5), torch.randint(5, (8,), generator=seeded())
    for _ in range(3):
        loss(logits, labels)
    restored.load_state_dict(loss.state_dict())
    torch.testing.assert_close(restored.noise.probs(), loss.noise.probs(), rtol=0, atol=bound)
    for further in (loss, restored):
        further(logits, labels)
        further.noise.update(SoftTargets.from_labels(labels, 5, smoothing=0.2))
    torch.testing.assert_close(restored.noise.probs(), loss.noise.probs(), rtol=0, atol=bound)


def test_loading_replaces_whatever_was_seen() -> None:
    """As Lightning's search for a rate does: train a little, then back to the state before the first batch."""
    loss, labels = InfoNCE(), torch.tensor([0, 0, 1])
    fresh = copy.deepcopy(loss.state_dict())
    loss(torch.randn(3, 5), labels)
    seen = copy.deepcopy(loss.state_dict())
    loss.load_state_dict(fresh)
    assert loss.noise.num_classes is None
    loss(torch.randn(3, 9), labels)
    loss.load_state_dict(seen)
    assert loss.noise.probs().tolist() == pytest.approx([2.1 / 3.5, 1.1 / 3.5, *[0.1 / 3.5] * 3])
    with pytest.raises(ValueError, match="the saved noise has 5 classes, this one is for 4 classes"):
        InfoNCE(RunningNoise(4)).load_state_dict(seen)


def test_the_state_holds_tensors_alone() -> None:
    """safetensors, and with it Hugging Face's save_pretrained, takes nothing else."""
    loss = InfoNCE()
    for _ in range(2):
        assert all(type(value) is torch.Tensor for value in loss.state_dict().values())
        loss(torch.randn(2, 5), torch.tensor([0, 1]))


def test_models_that_hold_a_loss_are_averaged() -> None:
    """AveragedModel pairs buffers by their order; Lightning's WeightAveraging does so by default."""
    model = torch.nn.ModuleDict({"loss": InfoNCE(), "norm": torch.nn.BatchNorm1d(5)})
    averaged = torch.optim.swa_utils.AveragedModel(model, use_buffers=True)
    model["loss"](model["norm"](torch.randn(3, 5)), torch.tensor([0, 1, 1]))
    averaged.update_parameters(model)
    assert torch.equal(averaged.module["norm"].running_mean, model["norm"].running_mean)


@pytest.mark.parametrize("num_classes", [None, 5])
def test_made_on_meta_used_elsewhere(num_classes: int | None) -> None:
    with torch.device("meta"):
        loss = InfoNCE(RunningNoise(num_classes))
    loss.to_empty(device="cpu")
    loss(torch.randn(3, 5), torch.tensor([0, 0, 1]))
    assert loss.noise.probs().tolist() == pytest.approx([2.1 / 3.5, 1.1 / 3.5, *[0.1 / 3.5] * 3])


def test_first_used_in_inference_mode() -> None:
    loss, labels = InfoNCE(candidates=softnce.BatchCandidates() + SampledCandidates(3)), torch.tensor([0, 0, 1])
    with torch.inference_mode():
        loss(torch.randn(3, 5), labels)
    for _ in range(2):
        loss(torch.randn(3, 5, requires_grad=True), labels).backward()
    assert float(loss.noise.probs()[0]) == pytest.approx(4.1 / 6.5)


def test_functional_transforms_need_a_noise_that_stays() -> None:
    loss, logits, labels = ExpectedInfoNCE(), torch.randn(4, 5), torch.arange(4)
    loss(logits, labels)
    each = torch.func.vmap(torch.func.grad(lambda x, y: loss(x[None], y[None])))
    with pytest.raises(RuntimeError, match=r"inside of torch.func: pass noise_probs, or call the loss in eval mode"):
        each(logits, labels)
    loss.eval()
    alone = logits[1:2].clone().requires_grad_()
    torch.testing.assert_close(each(logits, labels)[1:2], torch.autograd.grad(loss(alone, labels[1:2]), alone)[0])


def test_evaluation_and_no_grad_leave_the_estimate() -> None:
    loss, labels = InfoNCE(), torch.tensor([0, 0, 1])
    loss(torch.randn(3, 5), labels)
    before = loss.noise.probs()
    with torch.no_grad():
        loss(torch.randn(3, 5), labels)
    loss.eval()(torch.randn(3, 5), labels)
    assert torch.equal(loss.noise.probs(), before)


def test_parts_of_a_batch_share_one_estimate() -> None:
    """Accumulation is exact: the estimate changes once per batch, by ``remember``."""
    targets = SoftTargets.from_labels(torch.tensor([0, 0, 1, 2]), 4)
    logits = torch.randn(4, 4, dtype=torch.float64)
    whole, parts = InfoNCE(), InfoNCE()
    for _ in range(3):
        value = whole(logits.requires_grad_(), targets)
        sum_of_parts = sum(parts(logits[own], targets[own], batch=targets, own=own) for own in torch.arange(4).split(2))
        parts.remember(targets)
        torch.testing.assert_close(sum_of_parts, value, rtol=0, atol=1e-13)
    assert torch.equal(parts.noise.probs(), whole.noise.probs())


def test_a_forgotten_remember_is_noticed() -> None:
    """The warning names the user's file, through torch's modules and our heads."""
    loss, head, x, z = InfoNCE(), LabelEmbeddingHead(2, 4), torch.randn(1, 4).requires_grad_(), torch.randn(1, 2)
    first, second = (SoftTargets.from_labels(torch.tensor([0, 1]), 4) for _ in range(2))
    part = {"own": torch.tensor([0])}
    loss(x, first[:1], batch=first, **part)
    calls = (
        lambda: loss(x, second[:1], batch=second, **part),
        lambda: head.loss(z, first[:1], loss, batch=first, **part),
        lambda: head(z, second[:1], loss, batch=second, **part),
    )
    for call in calls:
        with pytest.warns(UserWarning, match="loss.remember") as found:
            call()
        assert [warning.filename for warning in found] == [__file__]


def test_sampled_candidates_follow_the_noise_of_the_loss() -> None:
    """Drawn uniformly and corrected by η the loss would be another one, without a word."""
    eta = torch.tensor([0.97, 0.01, 0.01, 0.01])
    loss = InfoNCE(eta, candidates=SampledCandidates(4000), reduction="none")
    value = loss(torch.zeros(1, 4), torch.tensor([1]), generator=seeded())
    expected = (1 + 4000 * 0.01 * (eta / eta).sum()).log()  # Σ_c e^{−log η_c + log η_1} over draws from η
    assert float(value) == pytest.approx(float(expected), abs=0.1)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["labels", "votes", "teacher"])
def test_unbalanced_data_end_where_cross_entropy_ends(kind: str) -> None:
    """README's lines without η: within half a point of soft target cross-entropy; a balanced model is far behind."""
    generator = seeded(7)
    classes, n = 10, 6000
    prior = zipf(classes) ** 1.5
    centres = 1.2 * torch.randn(classes, 8, generator=generator)
    labels = torch.multinomial(prior, 2 * n, True, generator=generator)
    features = centres[labels] + torch.randn(2 * n, 8, generator=generator)
    targets = SoftTargets.from_labels(labels, classes)
    posterior = ((features @ centres.T) - centres.square().sum(1) / 2 + prior.log()).softmax(1).float()
    if kind == "teacher":
        targets = SoftTargets.from_topk(posterior.log(), 5)
    if kind == "votes":
        votes = torch.stack([torch.multinomial(posterior, 1, generator=generator)[:, 0] for _ in range(5)], 1)
        targets = SoftTargets.from_votes(torch.nn.functional.one_hot(votes, classes).sum(1), classes)

    def accuracy(loss: torch.nn.Module) -> float:
        torch.manual_seed(0)
        model = torch.nn.Linear(8, classes)
        optimiser = torch.optim.Adam(model.parameters(), lr=0.02)
        for _ in range(12):
            for rows in torch.randperm(n, generator=generator).split(128):
                optimiser.zero_grad()
                loss(model(features[rows]), targets[rows]).backward()
                optimiser.step()
        return float((model(features[n:]).argmax(1) == labels[n:]).double().mean())

    wanted = accuracy(softnce.SoftTargetCrossEntropy())
    assert accuracy(ExpectedInfoNCE()) > wanted - 0.005
    assert accuracy(ExpectedInfoNCE("uniform")) < wanted - 0.02
