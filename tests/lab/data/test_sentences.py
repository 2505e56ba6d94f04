"""Readers of Banking77, CLINC150 and the generated requests."""

import json
from pathlib import Path

import pytest

from softnce.lab.data.sentences import open_sentences
from softnce.lab.recipes.recipe import TextData

TRAIN = (
    'text,category\n"Where, please, is my card?",card_arrival\nWhy was I charged?,fee\nIs my card lost?,card_arrival\n'
)
TEST = "text,category\nA fee again?,fee\n"
CLINC = {
    "train": [["how far is it", "distance"], ["say hello in french", "translate"]],
    "val": [["how long is the way", "distance"]],
    "test": [["what is yes in greek", "translate"]],
    "oos_train": [["who are you", "oos"]],
}


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "banking77_train.csv").write_text(TRAIN)
    (tmp_path / "banking77_test.csv").write_text(TEST)
    (tmp_path / "clinc150_full.json").write_text(json.dumps(CLINC))
    return tmp_path


def test_banking77(folder):
    data = TextData("banking77", folder)
    train, validation, test = (open_sentences(data, split) for split in ("train", "validation", "test"))
    assert train.texts[0] == "Where, please, is my card?"
    assert train.labels.tolist() == [0, 1, 0]
    assert train.classes == test.classes == ["card_arrival", "fee"]
    assert test.labels.tolist() == [1]
    assert validation.texts == test.texts  # it has no other split
    assert not data.keeps_test_apart


def test_clinc150_has_a_validation_split_and_no_out_of_scope(folder):
    data = TextData("clinc150", folder)
    train, validation, test = (open_sentences(data, split) for split in ("train", "validation", "test"))
    assert train.classes == ["distance", "translate"]
    assert (train.labels.tolist(), validation.labels.tolist(), test.labels.tolist()) == ([0, 1], [0], [1])
    assert data.keeps_test_apart


def test_requests_and_what_is_held_out(tmp_path):
    whole = open_sentences(TextData("requests", tmp_path / "nowhere"), "train")
    data = TextData("requests", tmp_path / "nowhere", holdout=0.2)
    train, held, test = (open_sentences(data, split) for split in ("train", "validation", "test"))
    assert (len(whole.texts), len(test.texts), len(whole.classes)) == (216, 72, 8)
    assert sorted(train.texts + held.texts) == sorted(whole.texts)
    assert not set(test.texts) & set(whole.texts)
    assert held.labels.bincount().tolist() == [5] * 8


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("banking77_train.csv", None, "has no banking77_train.csv or train.csv"),
        (
            "banking77_train.csv",
            "question,intent\na,b\n",
            "must be text,category, got 'question,intent'",
        ),
        ("banking77_train.csv", "", "the first line must be text,category, got ''"),
        ("banking77_train.csv", "text,category\na,b,c\n", "line 2 has 3 columns, need text and category"),
        ("banking77_train.csv", "text,category\na,b\n  ,b\n", r"_train\.csv: line 3 has no sentence, got '  '"),
        ("banking77_test.csv", "text,category\n,fee\n", r"_test\.csv: line 2 has no sentence, got ''"),
        ("banking77_train.csv", 'text,category\n"a,b\n', "is not a CSV file in UTF-8"),
        ("banking77_train.csv", b"text,category\n\xff,b\n", "is not a CSV file in UTF-8"),
        ("banking77_test.csv", "text,category\na,other\n", "has classes that training has not: other"),
        ("banking77_test.csv", "text,category\n", "holds no sentences"),
        ("clinc150_full.json", None, "has no clinc150_full.json or data_full.json"),
        ("clinc150_full.json", "{", "is not a JSON file"),
        ("clinc150_full.json", "[]", "train must be a list of"),
        ("clinc150_full.json", json.dumps({**CLINC, "val": [["a"]]}), "val must be a list of"),
        ("clinc150_full.json", json.dumps({**CLINC, "val": [[" ", "distance"]]}), r"val\[0\] has no sentence, got ' '"),
        ("clinc150_full.json", json.dumps({**CLINC, "test": [["a", "oos"]]}), "training has not: oos"),
    ],
)
def test_what_is_wrong_with_the_files_is_said(folder, name, content, message):
    if content is None:
        (folder / name).unlink()
    elif isinstance(content, bytes):
        (folder / name).write_bytes(content)
    else:
        (folder / name).write_text(content)
    with pytest.raises(ValueError, match=message) as error:
        open_sentences(TextData(name.partition("_")[0], folder), "test")
    assert str(folder) in str(error.value)
    assert "\n" not in str(error.value)


def test_a_missing_folder_is_named():
    with pytest.raises(ValueError, match=r"data\.dir nowhere is not a folder; it should hold banking77"):
        open_sentences(TextData("banking77", Path("nowhere")), "train")


def test_the_published_files(real_data):
    sizes = {
        kind: [len(open_sentences(TextData(kind, real_data / "intents"), s).texts) for s in ("train", "test")]
        for kind in ("banking77", "clinc150")
    }
    assert sizes == {"banking77": [10003, 3080], "clinc150": [15000, 4500]}
