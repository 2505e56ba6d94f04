"""People disagree: which losses learn from their votes, and how many votes are needed?

CIFAR-10H holds about 51 people's votes on each of CIFAR-10's test images. A head on fixed features is trained on half
of the images with 1, 3, 10 or all votes of each, and tested on unseen images against the distribution of all votes.
NLL sees the majority label, the soft losses the shares of the votes; averaged draws are means of n labels drawn from
them. η are the targets' own frequencies. The quick preset simulates votes on digits.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from experiments.data import votes
from experiments.data.votes import Source
from experiments.features import ALONE, CE, DRAWN, EXPECTED, NAMES, OURS, TOP1, Compared, spread
from experiments.harness import SERIES, Experiment, Figure, Row, Table, curve, label, later, option
from experiments.harness.claims import MARGIN, Finding, verdict
from experiments.harness.search import at_best_rate, trials, tuned
from experiments.harness.statistics import largest, nats
from experiments.losses import TITLES, loss_with_noise
from experiments.models.heads import Head, build_head
from experiments.training import fit
from softnce import SoftTargets, calibration, noise

KL = nats("kl")
KL_MARGIN = 0.003
"""Nats of KL to the votes within which two losses count as equivalent."""
PLAIN = ("nll", CE, DRAWN, OURS)
VOTERS = 51
"""Votes per image, on average, where all are used."""


@dataclass(frozen=True)
class Options:
    seeds: int = option(5, "number of seeds", least=1)
    data: Source = option("cifar10h", "cifar10h, or simulated votes on digits")
    votes: tuple[int, ...] = option((1, 3, 10, 0), "votes per image; 0 for all", least=0, fewest=1)
    epochs: int = option(15, "passes over the training part", least=1)
    batch: int = option(256, "rows in a batch, which are also the candidates", least=2)
    rates: tuple[float, ...] = option((3e-4, 1e-3, 3e-3), "rates tried for each setting", above=0, fewest=1)


@dataclass(frozen=True)
class Run:
    """One training; ``averaged`` is soft target InfoNCE with means of ``n`` drawn labels, ``votes`` 0 is all."""

    data: Source
    method: str
    n: int
    votes: int
    hidden: int
    batch: int
    epochs: int
    lr: float = 1e-3
    seed: int = 0
    noise_count: float | None = later(None, "m of expected InfoNCE; None: as many as classes")


def settings(options: Options) -> list[Run]:
    run = Run(options.data, CE, 0, 0, 128, options.batch, options.epochs)
    methods = [*(replace(run, method=name) for name in PLAIN), *(replace(run, method="averaged", n=n) for n in (2, 4)),
               replace(run, method=EXPECTED), replace(run, method=EXPECTED, noise_count=0.0)]  # fmt: skip
    return [replace(method, votes=number) for number in options.votes for method in methods]


def likelihood(row: Row) -> float:
    """Score that chooses the rate: of held-out votes; a run that diverged comes last."""
    value = row.result["held_out"]["cross_entropy"]
    return float("-inf") if value is None else -value


def perform(run: Run) -> dict[str, Any]:
    """Trains on drawn votes; scores of the last epoch. Held-out images have as many votes, test images all."""
    parts, generator = votes.load(run.data), torch.Generator().manual_seed(run.seed)
    asked, known = (votes.draw(part.votes, run.votes, generator) if run.votes else part.votes
                    for part in (parts.train, parts.held_out))  # fmt: skip
    soft = SoftTargets.from_votes(asked, asked.shape[1])
    loss = loss_with_noise(run.method, noise.from_counts(soft.class_mass(), floor=1), run.n, run.noise_count)
    if run.method == "nll":
        soft = SoftTargets.from_labels(votes.majority(asked, generator), soft.num_classes)
    head = build_head(Head(hidden=run.hidden), parts.train.x.shape[1], soft.num_classes, run.seed)
    fit(head, loss, parts.train.x, soft, batch=run.batch, lr=run.lr, epochs=run.epochs, seed=run.seed)
    with torch.no_grad():
        held, test = head(parts.held_out.x), head(parts.test.x)
    temperature = calibration.fit_temperature(held, shares(known))
    return {
        "held_out": agreement(held, parts.held_out.y, known),
        "test": agreement(test, parts.test.y, parts.test.votes),
        "scaled": agreement(test / temperature, parts.test.y, parts.test.votes),
    }


def agreement(logits: Tensor, labels: Tensor, counts: Tensor) -> dict[str, float]:
    """Agreement of softmax(logits) (N, K) with labels (N,) and with the shares p of votes (N, K), means over images.

    ``cross_entropy`` is −Σ p log q and ``kl`` that minus the entropy of p, in nats; ``kl_disputed`` is over the tenth
    of the images people disagree most about.
    """
    p = shares(counts)
    entropy = -torch.special.xlogy(p, p).sum(1)
    divergence = -(p * logits.double().log_softmax(1)).sum(1) - entropy
    disputed = entropy.topk(max(1, len(entropy) // 10)).indices
    return {
        "top1": (logits.argmax(1) == labels).double().mean().item(),
        "cross_entropy": (divergence + entropy).mean().item(),
        "kl": divergence.mean().item(),
        "kl_disputed": divergence[disputed].mean().item(),
    }


def shares(counts: Tensor) -> Tensor:
    return counts.double() / counts.sum(1, keepdim=True)


def method_of(config: dict[str, Any]) -> str:
    """The method, with n of averaged draws and m where it is not the default."""
    if config["method"] == "averaged":
        return f"mean of {config['n']} draws"
    return ALONE if config.get("noise_count") == 0 else str(config["method"])


def find(rows: Sequence[Row]) -> Compared:
    """The largest group of runs by method and votes, few votes first."""
    group = largest(rows, "data", "batch", "epochs")
    found = {(method_of(s.config), s.config["votes"]): s for s in at_best_rate(group, (), likelihood).values()}
    order = [*PLAIN, EXPECTED, ALONE, *sorted({method for method, _ in found})]
    keys = sorted(found, key=lambda key: (key[1] or VOTERS, order.index(key[0])))
    return Compared(group[0].config["data"], "CIFAR-10H, all votes", group, {key: found[key] for key in keys})


def findings(rows: Sequence[Row]) -> dict[str, Finding]:
    found = find(rows)
    gains = [gain for method in PLAIN[1:] if (gain := found.gap((method, 0), ("nll", 0), KL))]
    kl, top1 = (found.gap((EXPECTED, 0), (CE, 0), value) for value in (KL, TOP1))
    if found.name != "cifar10h" or len(gains) < len(PLAIN) - 1 or not kl:
        return {}
    nll = found.settings["nll", 0]
    on = f"{found.data}, {nll.config['epochs']} epochs, batch {nll.config['batch']}, {len(nll)} seeds"
    within = verdict(kl * (1 / KL_MARGIN), top1 * (1 / MARGIN), above=-1, below=1, new=True)
    return {
        "human-labels": Finding(f"KL {'; '.join(gain.signed(3) for gain in gains)} nats", on,
                                verdict(*gains, below=0, new=True)),
        "expected-votes": Finding(f"KL {kl.signed(4)} nats, top-1 {top1.signed()} points", on, within),
    }  # fmt: skip


def tables(rows: Sequence[Row]) -> list[Table]:
    found = find(rows)
    methods, numbers = (list(dict.fromkeys(part)) for part in zip(*found.settings, strict=True))
    body = [[NAMES.get(m, m), *(spread(found.gap((m, number), (CE, number), KL), 4) for number in numbers)]
            for m in methods if m != CE]  # fmt: skip
    header = ("KL minus soft target cross-entropy's (nats)", *(f"{number or 'all'} votes" for number in numbers))
    return [Table("human-labels-gaps", header, body)]


def figures(rows: Sequence[Row]) -> list[Figure]:
    found = find(rows).settings
    panels = {"KL to the votes (nats)": KL, "KL after temperature scaling (nats)": nats("kl", "scaled"),
              "KL, most disputed tenth (nats)": nats("kl_disputed"), "top-1 (%)": TOP1}  # fmt: skip

    def draw(axes) -> None:
        methods = [method for method in dict.fromkeys(method for method, _ in found) if method != ALONE]
        for ax, (unit, value) in zip(axes, panels.items(), strict=True):
            for place, method in enumerate(methods):
                points = {number or VOTERS: s.mean(value) for (other, number), s in found.items() if other == method}
                look = {"loss": method} if method in TITLES else {"name": method, "colour": SERIES[place % len(SERIES)]}
                curve(ax, points, **look)
            label(ax, "votes per image in training", unit, log="x")

    return [Figure("human-labels", draw, panels=4, columns=2)]


EXPERIMENT = Experiment(
    name="human-labels", question="Which losses learn from people's votes?", minutes=11,
    presets={"quick": Options(3, "simulated", (1, 3, 0), epochs=8, batch=64, rates=(3e-3,)), "paper": Options()},
    runs=lambda options: trials(settings(options), options.rates),
    follow_up=lambda options, rows: tuned(settings(options), rows, options.rates, options.seeds, likelihood),
    prepare=lambda todo: [votes.load(source) for source in {run.data for run in todo}], perform=perform,
    findings=findings, tables=tables, figures=figures,
)  # fmt: skip
