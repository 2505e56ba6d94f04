"""Reading a knowledge graph: what a folder means, and one clear line for every way it can be wrong."""

import pytest
import torch

from experiments.data.links import generated, named, read

GOOD = {
    "train": "a\tlikes\tb\na\tlikes\tc\nb\tknows\tc\n",
    "valid": "b\tlikes\tc\n",
    "test": "c\tknows\ta\na\tknows\td\n",
}


def write(folder, **changed):
    for split, text in {**GOOD, **changed}.items():
        if text is not None:
            (folder / f"{split}.txt").write_bytes(text if isinstance(text, bytes) else text.encode())
    return folder


def test_names_become_numbers_in_the_order_of_the_training_split(tmp_path):
    graph = read(write(tmp_path, valid="b\tlikes\tc\r\nb\tlikes\tc\r\nb\tlikes\ta"))  # lines of Windows
    assert (graph.entities, graph.relations) == (4, 2)
    assert graph.train.tolist() == [[0, 0, 1], [0, 0, 2], [1, 1, 2]]
    assert graph.valid.tolist() == [[1, 0, 2], [1, 0, 0]]  # once each
    assert graph.test.tolist() == [[2, 1, 0], [0, 1, 3]]
    assert graph.unseen(graph.test).tolist() == [False, True]  # d has no training triple


def test_questions_have_all_their_right_answers(tmp_path):
    graph = read(write(tmp_path))
    asked = {}
    for entity, relation, answer in graph.both_ways(graph.train).tolist():
        asked.setdefault((entity, relation), set()).add(answer)
    questions = graph.questions()
    assert questions.counts.sum() == 6
    for q in range(len(questions)):
        row, answers = questions.answers_of(torch.tensor([q]))
        key = questions.entity[q].item(), questions.relation[q].item()
        assert set(answers.tolist()) == asked.pop(key)
        assert row.tolist() == [0] * len(answers)
    assert not asked
    row, answers = questions.answers_of(torch.tensor([1, 0]))
    assert row.tolist() == sorted(row.tolist())
    assert len(answers) == questions.counts[:2].sum()


def test_a_question_with_many_answers_is_asked_several_times():
    graph = generated(entities=30, relations=2, dim=3, answers=5)
    whole, parts = graph.questions(), graph.questions(most=2)
    assert parts.counts.max() == 2
    assert parts.counts.min() == 1
    assert parts.answers.equal(whole.answers)
    same = torch.stack([parts.entity, parts.relation], 1).unique_consecutive(dim=0, return_inverse=True)[1]
    assert same.bincount(parts.counts).tolist() == whole.counts.tolist()


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"train": "a\tlikes\tb\na likes c\n"}, r"train.txt:2: got 'a likes c', need head, relation and tail"),
        ({"valid": "a\tlikes\tb\td\n"}, r"valid.txt:1: got 'a\\tlikes\\tb\\td', need head, relation and tail"),
        ({"test": "\n\na\t\tb\n"}, r"test.txt:3: got 'a\\t\\tb', need head, relation and tail"),
        ({"test": ""}, r"test.txt: is empty, need at least one triple"),
        ({"train": "\n \n"}, r"train.txt: is empty, need at least one triple"),
        ({"valid": None}, r"valid.txt: cannot be read .*No such file"),
        ({"valid": b"\xff\xfe\t\x00"}, r"valid.txt: cannot be read as UTF-8 text"),
    ],
)
def test_a_bad_file_is_told_in_one_line_that_names_it(tmp_path, changed, message):
    with pytest.raises(ValueError, match=message) as error:
        read(write(tmp_path, **changed))
    assert "\n" not in str(error.value)


def test_without_a_data_folder_the_error_says_what_is_needed(monkeypatch):
    monkeypatch.delenv("SOFTNCE_DATA", raising=False)
    with pytest.raises(ValueError, match=r"links/Nowhere is read from .* SOFTNCE_DATA, which is not set"):
        named("Nowhere")


def test_the_generated_graph_has_different_triples_in_its_splits():
    graph = generated()
    every = torch.cat([graph.train, graph.valid, graph.test])
    assert len(every.unique(dim=0)) == len(every) == 400 * 6 * 5
    assert int(every[:, [0, 2]].max()) < graph.entities


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "sizes", "unseen"),
    [("FB15k-237", (14_541, 237, 272_115, 17_535, 20_466), 28), ("WN18RR", (40_943, 11, 86_835, 3_034, 3_134), 210)],
)
def test_published_graphs_have_their_published_sizes(real_data, name, sizes, unseen):
    graph = named(name)
    splits = graph.train, graph.valid, graph.test
    assert (graph.entities, graph.relations, *map(len, splits)) == sizes
    assert int(graph.unseen(graph.test).sum()) == unseen
