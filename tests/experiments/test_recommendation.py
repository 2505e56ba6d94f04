"""Catalogues: files, losses written out by hand against slow references, the plan, and numbers on made-up rows."""

import itertools
import math
from dataclasses import asdict

import pytest
import torch
from torch.nn import functional as F

from experiments import recommendation
from experiments.harness import Row
from experiments.harness.options import check
from experiments.harness.rows import run_id
from experiments.recommendation import catalogue, data, sequences

QUICK = recommendation.EXPERIMENT.presets["quick"]


def table(*lists, num_items=10):
    counts = torch.tensor([len(one) for one in lists])
    return data.histories(torch.tensor([item for one in lists for item in one]), counts, num_items)


@pytest.mark.parametrize(
    ("text", "line", "reason"),
    [
        ("0 1 2\n1 3\n2\n", 3, "user 2 has no items"),
        ("0 1 2\n\n", 2, "the line is empty"),
        ("0 1 2\n1 x 3\n", 2, "got '1 x 3', need a user and its items as whole numbers"),
        ("0 1 -2\n", 1, "got '0 1 -2'"),
        ("0 1 2\n1 10\n", 2, "item 10, need 0 to 9"),
        ("0 1\n1 2\n0 3\n", 3, "user 0 has a line already"),
    ],
)
def test_a_bad_line_is_named(tmp_path, text, line, reason):
    path = tmp_path / "train.txt"
    path.write_text(text)
    with pytest.raises(ValueError) as error:
        data.read_histories(path, 10)
    assert str(error.value).startswith(f"{path}:{line}: {reason}")
    assert "\n" not in str(error.value)


def test_files_are_read_by_user_and_first_item(tmp_path):
    path = tmp_path / "Beauty.txt"
    path.write_text("2 3 1\n1 5 5 4\n")
    found = data.read_histories(path, 5, first=1)
    assert found.items.tolist() == [4, 4, 3, 2, 0]
    assert found.starts.tolist() == [0, 3, 5]
    with pytest.raises(ValueError, match="user 3 is in one of training and test only"):
        data.read_histories(path, 5, 1, users=[1, 2, 3])
    with pytest.raises(ValueError, match=r"none\.txt is missing"):
        data.read_histories(tmp_path / "none.txt", 5)
    path.write_text("")
    with pytest.raises(ValueError, match="has no users"):
        data.read_histories(path, 5)


def test_items_of_users():
    histories = table([1, 2, 3], [4], [5, 6])
    row, items = histories.of(torch.tensor([2, 0]))
    assert row.tolist() == [0, 0, 1, 1, 1]
    assert items.tolist() == [5, 6, 1, 2, 3]
    dense = histories.targets(torch.tensor([2, 0])).dense()
    expected = torch.zeros(2, 10)
    expected[0, [5, 6]], expected[1, [1, 2, 3]] = 1 / 2, 1 / 3
    torch.testing.assert_close(dense, expected)


def test_held_out_items_are_a_tenth_and_at_least_one_of_every_user():
    whole, _ = data.generated_places()
    kept, away = data.held_out(whole)
    assert away.counts.tolist() == [1] * 300
    assert kept.counts.tolist() == [8] * 300
    for user in range(0, 300, 50):
        parts = [set(part.items[part.starts[user] : part.starts[user + 1]].tolist()) for part in (kept, away, whole)]
        assert parts[0] | parts[1] == parts[2]
        assert not parts[0] & parts[1]


@pytest.mark.parametrize("way", [catalogue.sampled_softmax, catalogue.corrected_log_q])
def test_sampled_losses_have_the_gradient_of_cross_entropy_if_every_class_is_drawn_once(way):
    logits, labels, drawn = torch.randn(5, 7, dtype=torch.double).requires_grad_(), torch.arange(5), torch.arange(7)
    own, eta = logits.gather(1, labels[:, None])[:, 0], torch.full((7,), 1 / 7)
    value = way(own, logits[:, drawn], drawn[None] == labels[:, None], eta.double(), labels, drawn)
    exact = F.cross_entropy(logits, labels)
    ours, theirs = (torch.autograd.grad(of, logits, retain_graph=True)[0] for of in (value, exact))
    torch.testing.assert_close(ours, theirs)


def test_scores_are_those_of_a_search_by_hand():
    train, test = data.generated_places()
    tables = catalogue.Tables(300, 400, 8, sparse=True)
    users = torch.tensor([7, 3, 250])
    with torch.no_grad():
        logits = tables.features(users) @ tables.columns(None).t()
    recalls, gains = [], []
    for i, user in enumerate(users.tolist()):
        seen = set(train.items[train.starts[user] : train.starts[user + 1]].tolist())
        right = set(test.items[test.starts[user] : test.starts[user + 1]].tolist())
        best = [item for item in logits[i].argsort(descending=True).tolist() if item not in seen][:20]
        recalls.append(len(right & set(best)) / len(right))
        ideal = sum(1 / math.log2(place + 2) for place in range(len(right)))
        gains.append(sum(1 / math.log2(place + 2) for place, item in enumerate(best) if item in right) / ideal)
    found = catalogue.scores(tables, users, train, test)
    assert found["recall"] == pytest.approx(sum(recalls) / 3)
    assert found["ndcg"] == pytest.approx(sum(gains) / 3)


def test_histories_are_cut_and_padded():
    whole = table([1, 2, 3, 4, 5], [6, 7, 8])
    assert sequences.padded(whole, torch.tensor([0, 1]), 2, 50).tolist() == [[1, 2, 3], [6, -1, -1]]
    assert sequences.padded(whole, torch.tensor([0]), 0, 2).tolist() == [[4, 5]]


def test_a_position_does_not_see_later_items():
    network = sequences.Sequential(20, 8, 0.0, sparse=False).eval()
    a, b = torch.tensor([[1, 2, 3, 4]]), torch.tensor([[1, 2, 9, -1]])
    torch.testing.assert_close(network(a)[:, :2], network(b)[:, :2])
    assert not torch.allclose(network(a)[:, 2], network(b)[:, 2])


def test_the_next_items_are_labels_and_soft_targets():
    whole = table([1, 2, 3, 4, 5, 6, 7], [8, 9, 1, 0], num_items=10)
    network = sequences.Sequential(10, 8, 0.0, sparse=True)
    rows = sequences.rows_of(network, whole, torch.tensor([0, 1]))
    assert rows.following.tolist() == [[2, 3, 4], [3, 4, 5], [4, 5, -1], [5, -1, -1], [9, -1, -1]]
    assert rows.user.tolist() == [0, 0, 0, 0, 1]
    dense = sequences.several(rows.following, 10).dense()
    torch.testing.assert_close(dense[0, [2, 3, 4]], torch.tensor([4.0, 2.0, 1.0]) / 7)
    torch.testing.assert_close(dense[2, [4, 5]], torch.tensor([4.0, 2.0]) / 6)
    assert dense[3, 5] == 1


def test_items_of_the_user_are_no_negatives():
    whole = table([1, 2, 3, 4, 0, 0], [2, 5, 1, 0, 0], [7, 6, 0, 0])
    network = sequences.Sequential(10, 8, 0.0, sparse=True).eval()
    rows = sequences.rows_of(network, whole, torch.arange(3))
    eta, labels = torch.rand(10), rows.following[:, 0]
    eta = eta / eta.sum()
    run = recommendation.basket_run(QUICK, "walks", "info-nce-user-out", 0.01, 0.2, 0, True)
    scores = rows.features @ network.items.weight.t() - eta.log()
    slow = []
    for i, label in enumerate(labels.tolist()):
        theirs = {label, *rows.inputs[rows.user[i]].tolist()}
        rest = sum(scores[i, other].exp() for other in labels.tolist() if other not in theirs)
        slow.append((1 + rest / scores[i, label].exp()).log())
    torch.testing.assert_close(sequences.loss_of(run, network, rows, eta), torch.stack(slow).mean())


@pytest.mark.parametrize("loss", catalogue.LOSSES)
def test_every_loss_learns_the_catalogue(loss):
    run = recommendation.catalogue_run(QUICK, loss, 1.0, 0.1, 0, True)
    result = recommendation.perform(run)
    assert result["test"]["recall"] > 0.06  # 20 of 391 by chance: 0.05
    assert result["course"][-1]["epoch"] == QUICK.epochs


@pytest.mark.parametrize("loss", sequences.LOSSES)
def test_every_loss_learns_the_next_item(loss):
    run = recommendation.basket_run(QUICK, "walks", loss, 0.01, 0.2, 0, True)
    result = recommendation.perform(run)
    assert result["test"]["hits"] > 0.07  # 10 of 190 by chance: 0.05
    assert result == {**recommendation.perform(run), "course": result["course"], "held_out": result["held_out"],
                      "cpu_seconds": result["cpu_seconds"]}  # fmt: skip


def row(run, ndcg):
    config = asdict(run)
    scores = {"ndcg": ndcg, "recall": ndcg, "hits": ndcg}
    result = {"course": [{"epoch": 1, "cpu_seconds": 2.0, **scores}], "cpu_seconds": 2.0}
    return Row(run_id("recommendation", 1, config), config, result | {"test" if run.final else "held_out": scores})


def test_a_loss_is_tuned_in_two_searches_then_run_for_its_seeds():
    options = recommendation.Options(baskets=())
    first = recommendation.wanted(options)
    assert {(run.loss, run.lr, run.temperature) for run in first} == {
        (loss, lr, 0.1) for loss in catalogue.LOSSES for lr in (0.1, 0.3, 1.0)
    }
    rows = [row(run, 0.1 + (run.lr == 0.3)) for run in first]
    second = recommendation.wanted(options, rows)
    assert {(run.lr, run.temperature) for run in second} == {(0.3, 0.05), (0.3, 0.2)}
    rows += [row(run, 0.2) for run in second]
    final = recommendation.wanted(options, rows)
    assert all(run.final and (run.lr, run.temperature) == (0.3, 0.1) for run in final)
    compared = {"soft-ce", *recommendation.PARTIAL}
    assert compared == set(catalogue.LOSSES) - set(recommendation.ONCE)
    assert {loss for gap in recommendation.COMPARED.values() for loss in (gap.ours, gap.theirs)} <= compared
    assert [run.loss for run in final if run.seed == 0] == list(catalogue.LOSSES)
    for seed in (1, 2):
        assert {run.loss for run in final if run.seed == seed} == compared
    assert len(final) == len(catalogue.LOSSES) + 2 * len(compared)


def test_findings_tables_and_figure():
    o = recommendation.Options()
    at = {"expected-own-out": 0.12, "soft-ce": 0.121, "info-nce": 0.13}
    rows = [row(recommendation.catalogue_run(o, loss, 0.3, 0.1, 8, False), at[loss]) for loss in at]
    for loss, seed in itertools.product(at, range(3)):
        ndcg = at[loss] + 0.0001 * seed * (1 + (loss == "soft-ce"))
        rows.append(row(recommendation.catalogue_run(o, loss, 0.3, 0.1, seed, True), ndcg))
    found = recommendation.findings(rows)
    assert found["recommendation-exact"].verdict == "beyond"
    assert "InfoNCE, one answer" in found["recommendation-exact"].on
    assert found["recommendation-sets"].verdict == "not reproduced"
    assert "recommendation-own" not in found
    shown, searched = recommendation.tables(rows)
    assert [cells[0] for cells in shown.rows] == [name for loss, name in recommendation.NAMES.items() if loss in at]
    assert [cells[-2:] for cells in searched.rows] == [["1", "121.0"], ["1", "120.0"], ["1", "130.0"]]
    assert len(recommendation.figures(rows)) == 1


def test_the_best_loss_of_a_part_of_the_items_is_compared_with_full_cross_entropy_on_baskets():
    o = recommendation.Options(baskets=("beauty",))
    at = {"softmax": 0.040, "info-nce": 0.036, "info-nce-user-out": 0.041}
    made = [(loss, seed, final) for loss in at for seed, final in [(8, False), (0, True), (1, True), (2, True)]]
    rows = [row(recommendation.basket_run(o, "beauty", loss, 0.001, 0.2, seed, final), at[loss] + 1e-5 * seed)
            for loss, seed, final in made]  # fmt: skip
    found = recommendation.findings(rows)["recommendation-baskets"]
    assert (found.verdict, found.ours) == ("beyond", "+2.5 [+2.5, +2.5] % of nDCG@10")


def test_the_time_to_a_quality_is_interpolated():
    course = [{"cpu_seconds": 10.0, "ndcg": 0.1}, {"cpu_seconds": 20.0, "ndcg": 0.2}]
    rows = [Row("", {}, {"course": course}), Row("", {}, {"course": course[:1]})]
    assert recommendation.reached(rows[:1], 0.15) == pytest.approx(15)
    assert recommendation.reached(rows[:1], 0.05) == pytest.approx(5)
    assert recommendation.reached(rows, 0.15) is None


def test_options_and_the_data_folder_are_checked(monkeypatch):
    monkeypatch.delenv("SOFTNCE_DATA", raising=False)
    with pytest.raises(ValueError, match="SOFTNCE_DATA"):
        data.places("gowalla")
    with pytest.raises(ValueError, match="rates"):
        check(recommendation.Options(rates=(0.5,)))
    with pytest.raises(ValueError, match="baskets: got 'books'"):
        check(recommendation.Options(baskets=("books",)))
