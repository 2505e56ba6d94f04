"""Readers of Banking77, CLINC150, generated requests and CSV files of one's own."""

import json

import pytest
import torch

from experiments.data.sentences import open_sentences

TRAIN = 'text,category\n"Where, please, is my card?",arrival\nWhy was I charged?,fee\nIs my card lost?,arrival\n'
CLINC = {
    "train": [["how far is it", "distance"], ["say hello in french", "translate"]],
    "val": [["how long is the way", "distance"]],
    "test": [["what is yes in greek", "translate"]],
    "oos_train": [["who are you", "oos"]],
}


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "banking77_train.csv").write_text(TRAIN)
    (tmp_path / "banking77_test.csv").write_text("text,category\nA fee again?,fee\n")
    (tmp_path / "clinc150_full.json").write_text(json.dumps(CLINC))
    return tmp_path


def parts(kind, folder):
    return [open_sentences(kind, folder, split) for split in ("train", "validation", "test")]


def test_banking77(folder):
    train, validation, test = parts("banking77", folder)
    assert train.inputs[0] == "Where, please, is my card?"
    assert (train.labels.tolist(), test.labels.tolist()) == ([0, 1, 0], [1])
    assert train.classes == test.classes == ["arrival", "fee"]
    assert validation.inputs.tolist() == test.inputs.tolist()  # it has no other split


def test_clinc150_has_a_validation_split_and_no_out_of_scope(folder):
    train, validation, test = parts("clinc150", folder)
    assert train.classes == ["distance", "translate"]
    assert (train.labels.tolist(), validation.labels.tolist(), test.labels.tolist()) == ([0, 1], [0], [1])


def test_requests_need_no_folder(tmp_path):
    train, validation, test = parts("requests", tmp_path / "nowhere")
    assert (len(train), len(test), len(train.classes)) == (216, 72, 8)
    assert not set(test.inputs) & set(train.inputs)
    assert validation.inputs.tolist() == test.inputs.tolist()


@pytest.mark.parametrize("header", ["text,label", "text,category", "\ufefftext,label"])
def test_a_csv_of_ones_own(folder, header):
    """With a byte order mark, and further columns in any order."""
    (folder / "train.csv").write_text(f"{header}\ngood,yes\nbad,no\n")
    (folder / "test.csv").write_text("id,label,text\n7,no,awful\n")
    train, _, test = parts("csv", folder)
    assert (train.inputs.tolist(), train.labels.tolist(), train.classes) == (["good", "bad"], [1, 0], ["no", "yes"])
    assert (test.inputs.tolist(), test.labels.tolist()) == (["awful"], [0])
    assert torch.equal(train.targets, train.labels)


def test_a_csv_of_votes(folder):
    """One row per person; the rows of a text are its votes."""
    (folder / "train.csv").write_text("text,annotator,label\nfine,ann,yes\nbad,ann,no\nfine,bob,no\nfine,cem,yes\n")
    (folder / "test.csv").write_text("text,label\nfine,yes\n")
    train, _, test = parts("csv", folder)
    assert train.inputs.tolist() == ["fine", "bad"]
    assert train.targets.tolist() == [[1, 2], [1, 0]]
    assert train.labels.tolist() == [1, 0]
    assert test.targets.tolist() == [1]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("banking77_train.csv", None, "has no banking77_train.csv or train.csv"),
        ("banking77_train.csv", "question,intent\na,b\n", "must name text and label .* got 'question,intent'"),
        ("banking77_train.csv", "", "must name text and label .* got ''"),
        ("banking77_train.csv", "text,category\na,b,c\n", "line 2 has more or fewer columns than the first, 2"),
        ("banking77_train.csv", "text,category\na,b\n  ,b\n", r"_train\.csv: line 3 has no sentence"),
        ("banking77_train.csv", "text,category\na,\n", r"_train\.csv: line 2 has no label"),
        ("banking77_train.csv", 'text,category\n"a,b\n', "is not a CSV file in UTF-8"),
        ("banking77_train.csv", b"text,category\n\xff,b\n", "is not a CSV file in UTF-8"),
        ("banking77_test.csv", "text,category\na,other\n", "has classes that training has not: other"),
        ("banking77_test.csv", "text,category\n", "holds no sentences"),
        ("clinc150_full.json", "{", "is not a JSON file"),
        ("clinc150_full.json", "[" * 100_000, "is not a JSON file"),
        ("clinc150_full.json", "[]", "train must be a list of"),
        ("clinc150_full.json", json.dumps({**CLINC, "test": [[" ", "distance"]]}), "test must be a list of"),
        ("clinc150_full.json", json.dumps({**CLINC, "test": [["a", "oos"]]}), "training has not: oos"),
    ],
)
def test_faults_of_the_files_are_named(folder, name, content, message):
    if content is None:
        (folder / name).unlink()
    else:
        (folder / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(ValueError, match=message) as error:
        open_sentences(name.partition("_")[0], folder, "test")
    assert str(folder) in str(error.value)
    assert "\n" not in str(error.value)


def test_one_class_is_refused(folder):
    (folder / "banking77_train.csv").write_text("text,label\na,b\nc,b\n")
    with pytest.raises(ValueError, match="all training sentences are of class 'b'"):
        open_sentences("banking77", folder, "train")


def test_the_published_files(real_data):
    sizes = {kind: [len(part) for part in parts(kind, real_data / "intents")] for kind in ("banking77", "clinc150")}
    assert sizes == {"banking77": [10003, 3080, 3080], "clinc150": [15000, 3000, 4500]}
