"""The paper's claims, one entry each, and what the studies found about them.

The page opens with all of them: a claim whose study has no results yet says so, with the command that makes them. A
study answers for its claims with a function beside ``section``:

    def claims(rows: Sequence[Row]) -> dict[str, Finding]:
        return {"small-batch-drop": Finding("−3.9 ± 0.4 points", "CIFAR-100 features, 20 seeds", "reproduced")}

A key it leaves out stays "not yet run". What the rows cannot decide (a short preset, an interval that holds both
answers) is a ``Finding`` too, with the verdict "undecided".
"""

import difflib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, get_args

from softnce.lab.experiment.statistics import Estimate

MARGIN = 0.5
"""Points of top-1 within which two losses count as equivalent."""
Verdict = Literal["reproduced", "not reproduced", "explained", "beyond", "undecided"]
NOT_YET_RUN = "not yet run"
MEANING = {
    "reproduced": "we measured what the paper says",
    "not reproduced": "we measured something else",
    "explained": "we know why the paper saw it, and when it holds",
    "beyond": "the paper left it open or did not look",
    "undecided": "these runs are too few or too short to tell",
    NOT_YET_RUN: "no results in this folder",
}


@dataclass(frozen=True)
class Claim:
    """Something the paper says, or leaves open.

    Attributes:
        key: stable name.
        text: the claim in one sentence.
        where: the paper's figure or table with its LaTeX label, label of the equation, or title of the section.
        paper: the paper's figure.
        study: the study that tests it.
    """

    key: str
    text: str
    where: str
    paper: str
    study: str

    @property
    def command(self) -> str:
        return f"softnce study {self.study} --preset paper"


@dataclass(frozen=True)
class Finding:
    """What a study measured about a claim.

    Attributes:
        ours: the figure that stands beside the paper's, with its spread: "62.1 ± 0.3", "+0.4 [0.1, 0.7] points".
        on: data, model and number of seeds, in a few words.
        verdict: one of ``Verdict``.
        command: what does it again, where that is not the study's paper preset.
    """

    ours: str
    on: str
    verdict: Verdict
    command: str = ""

    def __post_init__(self) -> None:
        if self.verdict not in get_args(Verdict):
            raise ValueError(f"verdict: got {self.verdict!r}, need one of {', '.join(get_args(Verdict))}")


CLAIMS = (
    Claim(
        "density-gap",
        "The more classes overlap, the worse NLL estimates parameters beside InfoNCE.",
        "Figure 1 (fig:density_estimation)",
        "a gap in KL that opens with alignment (no numbers printed)",
        "density",
    ),
    Claim(
        "density-trend",
        "The error of both losses grows with alignment.",
        "Figure 1 (fig:density_estimation)",
        "both curves rise (no numbers printed)",
        "density",
    ),
    Claim(
        "density-orthogonal",
        "With orthogonal modes, 0 % alignment, both losses estimate equally well.",
        "Figure 1 (fig:density_estimation)",
        "comparable (no numbers printed)",
        "density",
    ),
    Claim(
        "density-soft-target",
        "Soft target InfoNCE estimates the conditional density, up to a factor.",
        "eq:theo-soft-target-infonce, eq:soft-target-infonce",
        "argued for the exact loss, not measured for the one used",
        "density",
    ),
    Claim(
        "bound",
        "log N − ℓ of soft distribution InfoNCE never exceeds the information of the smoothed labels.",
        "eq:softMIbound",
        "a derivation, not measured",
        "information",
    ),
    Claim(
        "bound-epsilon",
        "ε regulates how much information the representation takes in.",
        "eq:softMIbound",
        "a derivation, not measured",
        "information",
    ),
    Claim(
        "exact-sampling",
        "The exact loss cannot be used in practice: its draws are inefficient at many classes.",
        "eq:theo-soft-target-infonce",
        "“especially with many classes (e.g., K = 1000)”",
        "exact-loss",
    ),
    Claim(
        "exact-substitute",
        "The soft targets themselves can stand in for exact draws.",
        "eq:soft-target-infonce",
        "“demonstrated good empirical performance”, not compared",
        "exact-loss",
    ),
    Claim(
        "exact-alternative",
        "Another distribution than the continuous categorical can be drawn from efficiently.",
        "Conclusions and limitations",
        "left to future work",
        "exact-loss",
    ),
    Claim(
        "accuracy-soft-ce",
        "Soft target InfoNCE is on par with soft target cross-entropy on images.",
        "Table 1 (tab:soft_target_results)",
        "top-1 −0.31 ImageNet, +0.19 Tiny ImageNet, +0.06 CIFAR-100",
        "accuracy",
    ),
    Claim(
        "accuracy-nll",
        "Soft target InfoNCE outperforms NLL on images.",
        "Table 1 (tab:soft_target_results)",
        "top-1 +1.19 ImageNet, +1.23 Tiny ImageNet, −0.04 CIFAR-100",
        "accuracy",
    ),
    Claim(
        "accuracy-info-nce",
        "Soft target InfoNCE outperforms InfoNCE on images.",
        "Table 1 (tab:soft_target_results)",
        "top-1 +1.02 ImageNet, +1.14 Tiny ImageNet, +0.05 CIFAR-100",
        "accuracy",
    ),
    Claim(
        "accuracy-soft-distribution",
        "Soft targets in the loss beat labels drawn from them.",
        "Table 1 (tab:soft_target_results)",
        "top-1 +0.58 ImageNet, +1.09 Tiny ImageNet, +0.98 CIFAR-100",
        "accuracy",
    ),
    Claim(
        "accuracy-worst",
        "Labels drawn from soft targets train the worst of the five models on CIFAR-100.",
        "Table 1 (tab:soft_target_results)",
        "top-1 89.82, the next 90.74",
        "accuracy",
    ),
    Claim(
        "accuracy-top-5",
        "Top-5: labels drawn from soft targets are first on Tiny ImageNet and CIFAR-100.",
        "Table 2 (tab:top_5)",
        "98.78 on CIFAR-100, soft target InfoNCE 98.51, NLL 98.37",
        "accuracy",
    ),
    Claim(
        "accuracy-rates",
        "Both soft losses do best in the same range of learning rates.",
        "Classification accuracy",
        "base rates 2e-4 to 6e-4 for both",
        "accuracy",
    ),
    Claim(
        "nodes-soft-ce",
        "On graphs, soft target cross-entropy is slightly ahead of soft target InfoNCE.",
        "Table 1 (tab:soft_target_results)",
        "CellTypeGraph 87.67 against 87.12, class average 81.41 against 81.27",
        "nodes",
    ),
    Claim(
        "nodes-hard",
        "On graphs, soft target InfoNCE is on par with NLL and InfoNCE.",
        "Table 1 (tab:soft_target_results)",
        "CellTypeGraph 87.12 against 86.92 and 86.80",
        "nodes",
    ),
    Claim(
        "nodes-soft-distribution",
        "On graphs, labels drawn from soft targets train the worst model.",
        "Table 1 (tab:soft_target_results)",
        "CellTypeGraph 86.62, the next 86.80",
        "nodes",
    ),
    Claim(
        "head-gain",
        "An MLP head in place of a linear one gains soft target InfoNCE more than soft target cross-entropy.",
        "Comparison to soft target cross-entropy",
        "+1.72 against +0.60 Tiny ImageNet, +0.70 against +0.36 CIFAR-100",
        "head",
    ),
    Claim(
        "head-linear",
        "With a linear head soft target InfoNCE is slightly behind soft target cross-entropy.",
        "Conclusions and limitations",
        "by the gains above −0.93 Tiny ImageNet, −0.28 CIFAR-100",
        "head",
    ),
    Claim(
        "small-batch-drop",
        "At small batches soft target InfoNCE falls behind soft target cross-entropy.",
        "Figure 3, left (fig:bsz_noise_ablation)",
        "−4.21 points at the smallest batch, Tiny ImageNet",
        "noise-samples",
    ),
    Claim(
        "large-batch-par",
        "At large batches it is on par, and slightly ahead.",
        "Figure 3, left (fig:bsz_noise_ablation)",
        "+0.19 points, Tiny ImageNet",
        "noise-samples",
    ),
    Claim(
        "small-batch-mended",
        "Separately sampled noise targets can make up for small batches.",
        "Conclusions and limitations",
        "left to future work",
        "noise-samples",
    ),
    Claim(
        "smoothing-sensitivity",
        "Accuracy depends less on ε with soft target InfoNCE than with soft target cross-entropy.",
        "Figure 3, right (fig:bsz_noise_ablation)",
        "largest deviation 0.37 against 0.96, standard deviation 0.12 against 0.34, Tiny ImageNet",
        "smoothing",
    ),
    Claim(
        "smoothing-temperature",
        "To soft target InfoNCE, smoothing by ε is the temperature τ/(1−ε) with noise η^(1−ε), and nothing else.",
        "eq:soft-target-infonce",
        "not noticed",
        "smoothing",
    ),
    Claim(
        "calibration-smoothing",
        "With smoothing only, soft target InfoNCE is better calibrated than soft target cross-entropy.",
        "Figure 4, left (fig:calibration)",
        "ECE 3.9 % against 7 %, Tiny ImageNet",
        "calibration",
    ),
    Claim(
        "calibration-mixing",
        "With smoothing, MixUp and CutMix it is far better calibrated on CIFAR-100.",
        "Figure 4, right (fig:calibration)",
        "ECE 2.9 % against 15.8 %, CIFAR-100",
        "calibration",
    ),
    Claim(
        "calibration-reversed",
        "With the same three it is slightly worse calibrated on Tiny ImageNet.",
        "Figure 6 (fig:reliability_best_model_tiny_imagenet)",
        "ECE 7.7 % against 6.3 %, Tiny ImageNet",
        "calibration",
    ),
    Claim(
        "noise-correction",
        "The correction −log η, used in training and left out after it, might introduce additional bias.",
        "eq:energyXent",
        "not tested: on balanced classes it cancels",
        "long-tail",
    ),
    Claim(
        "human-labels",
        "Soft targets serve data whose labels people disagree about.",
        "Introduction",
        "the motivation, not tested",
        "human-labels",
    ),
    Claim(
        "distillation",
        "Soft target InfoNCE is of use in knowledge distillation.",
        "Conclusions and limitations",
        "left to future work",
        "distillation",
    ),
    Claim(
        "many-classes",
        "Negative sampling pays when label spaces are large.",
        "Introduction",
        "cited from language models, not tested with soft targets",
        "classes",
    ),
)

NOTES = (
    """ImageNet, soft target cross-entropy against soft target InfoNCE: the text says Δ0.29; the table's 83.85 and
    83.54 differ by 0.31. The table counts here.""",
    """“Outperforms hard target NLL”, say abstract and conclusions. On CIFAR-100 NLL has the table's best top-1,
    90.84, and soft target InfoNCE 90.80; soft target cross-entropy, 90.74, is behind both hard losses (InfoNCE:
    90.75).""",
    """Calibration is “better in these two cases”: 3.9 % against 7 % (Tiny ImageNet, smoothing only) and 2.9 % against
    15.8 % (CIFAR-100, all augmentations). In the third, Tiny ImageNet with all augmentations, it is reversed: 7.7 %
    against 6.3 %. On one data set the order depends on the augmentations.""",
    """Labels drawn from soft targets are “only on-par with the hard target baselines”: by the table they are 0.44
    and 0.61 above the two on ImageNet, and 0.93 and 1.02 below them on CIFAR-100. In top-5 they are ahead of soft
    target InfoNCE on Tiny ImageNet (95.06 against 94.91) and CIFAR-100 (98.78 against 98.51).""",
    """No accuracy is printed with a spread, none on images with a number of runs, and the authors' code reports the
    best epoch on the evaluation split. The same margin has two names: 0.20 over NLL on CellTypeGraph is “on-par”,
    0.19 over soft target cross-entropy on Tiny ImageNet is “on-par” and “slightly outperform”.""",
    """The head is called a 3-layer MLP; in the authors' code BatchNorm without parameters follows its output, which
    fixes the scale of the scores. The optimiser of the density experiment is not named.""",
    """The supplement says the penalty term weighs less on the true class for ε < 1/2. By its (corrected) formula it
    weighs more: 0.082 against 0.0099 at ε = 0.1 and K = 10.""",
    """The steps to the bound on information replace a sum over negatives by its mean, which by Jensen's inequality
    goes the wrong way; the bound itself holds, if smoothing noise and negatives both have the labels' marginal.""",
)


def ahead(gap: Estimate) -> Verdict:
    """Of a claim that something is ahead by ``gap``: the whole interval is above 0, or below it."""
    if gap.count < 2:
        return "undecided"
    return "reproduced" if gap.low > 0 else "not reproduced" if gap.high < 0 else "undecided"


def on_par(gap: Estimate) -> Verdict:
    """Of a claim that two losses are on par: the whole interval of their gap lies within the margin, or beyond it."""
    if gap.count < 2:
        return "undecided"
    if gap.low > -MARGIN and gap.high < MARGIN:
        return "reproduced"
    return "not reproduced" if gap.low > MARGIN or gap.high < -MARGIN else "undecided"


def checked(study: str, findings: Mapping[str, Finding]) -> dict[str, Finding]:
    """The findings, if every key is a claim of that study; otherwise a ValueError that says which are."""
    keys = [claim.key for claim in CLAIMS if claim.study == study]
    for key in findings:
        if key not in keys:
            near = difflib.get_close_matches(key, keys, 1)
            hint = f"did you mean {near[0]!r}?" if near else f"its claims are {', '.join(keys) or 'none'}"
            raise ValueError(f"claims: {key!r} is not a claim of {study}; {hint}")
    return dict(findings)


def as_markdown(findings: Mapping[str, Finding]) -> str:
    """The table of claims for a text page, claims without a finding left out."""
    lines = ["| claim | the paper | ours | on | verdict | study |", "|---|---|---|---|---|---|"]
    for claim in CLAIMS:
        if claim.key in findings:
            found = findings[claim.key]
            cells = (claim.text, claim.paper, found.ours, found.on, f"**{found.verdict}**", f"`{claim.study}`")
            lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join(lines) + "\n"
