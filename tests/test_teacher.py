"""The file of a teacher's outputs: what is written is read, and what does not belong is refused."""

import hashlib
import pickle
import struct

import pytest
import torch

from softnce import SoftTargets
from softnce.teacher import TeacherOutputs, fingerprint

LOGITS = torch.randn(20, 12, generator=torch.Generator().manual_seed(0))
LABELS = torch.arange(20) % 12


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "teacher.pt"
    TeacherOutputs.from_logits(LOGITS, 5, temperature=2.0).save(path, LABELS)
    return path


@pytest.mark.parametrize("remainder", ["spread", "renormalise"])
@pytest.mark.parametrize("k", [1, 2, 5])
def test_what_is_read_is_the_top_k_of_the_logits(file, k, remainder):
    outputs = TeacherOutputs.load(file, LABELS, 12)
    wanted = SoftTargets.from_topk(LOGITS, k, 2.0, remainder)
    assert outputs.targets(remainder, k).dense() == pytest.approx(wanted.dense(), abs=1e-6)
    assert outputs.temperature == 2.0


def test_all_classes_are_the_softmax():
    outputs = TeacherOutputs.from_logits(LOGITS, 12)
    for remainder in ("spread", "renormalise"):
        soft = outputs.targets(remainder)
        assert soft.index is None  # dense where k is not small
        assert soft.dense() == pytest.approx(LOGITS.softmax(1), abs=1e-6)


def test_batches_are_put_together_in_order():
    whole = TeacherOutputs.from_logits(LOGITS, 3)
    parts = TeacherOutputs.cat([TeacherOutputs.from_logits(LOGITS[i : i + 7], 3) for i in (0, 7, 14)])
    assert torch.equal(parts.index, whole.index)
    assert torch.equal(parts.probability, whole.probability)
    with pytest.raises(ValueError, match="parts differ"):
        TeacherOutputs.cat([whole, TeacherOutputs.from_logits(LOGITS, 4)])
    with pytest.raises(ValueError, match="parts is empty"):
        TeacherOutputs.cat([])


@pytest.mark.parametrize(("classes", "dtype"), [(12, torch.uint8), (300, torch.int16), (40_000, torch.int32)])
def test_classes_are_stored_small(tmp_path, classes, dtype):
    path = tmp_path / "t.pt"
    logits = torch.zeros(3, classes)
    logits[:, -1] = 9.0
    TeacherOutputs.from_logits(logits, 1).save(path)
    assert torch.load(path, weights_only=True)["index"].dtype == dtype
    assert (TeacherOutputs.load(path, None, classes).index == classes - 1).all()


def test_files_that_do_not_match_the_data_are_refused(file):
    for labels, classes, words in (
        (LABELS.flip(0), 12, "other samples, or to these in another order"),
        (LABELS[:7], 12, "outputs of 20 samples, but the data has 7"),
        (LABELS, 10, "has 12 classes, but the data has 10"),
    ):
        with pytest.raises(ValueError, match=words) as error:
            TeacherOutputs.load(file, labels, classes)
        assert str(file) in str(error.value)
        assert "\n" not in str(error.value)


class Evil:
    def __reduce__(self):
        return print, ("code was run",)


def test_files_of_something_else_are_refused(file, tmp_path, capsys):
    whole = file.read_bytes()
    content = torch.load(file, weights_only=True)
    broken = {
        "not a file": None,
        "text": b"hello",
        "half": whole[: len(whole) // 2],
        "code": pickle.dumps(Evil()),
        "another thing": {"weights": torch.zeros(2)},
        "another version": content | {"version": 2},
        "no index": {name: value for name, value in content.items() if name != "index"},
        "shapes": content | {"probability": content["probability"][:, :2]},
        "a class too many": content | {"index": content["index"] + 12},
        "not probabilities": content | {"probability": content["probability"] * 9},
        "nan": content | {"probability": content["probability"] * float("nan")},
    }
    for name, value in broken.items():
        path = tmp_path / name
        if isinstance(value, bytes):
            path.write_bytes(value)
        elif value is not None:
            torch.save(value, path)
        with pytest.raises(ValueError, match=name) as error:
            TeacherOutputs.load(path, LABELS, 12)
        assert "\n" not in str(error.value), name
    assert "code was run" not in capsys.readouterr().out


def test_a_write_that_fails_leaves_the_old_file(file, monkeypatch):
    before = file.read_bytes()

    def fail(content, path):
        path.write_bytes(b"half")
        raise OSError("disk full")

    monkeypatch.setattr(torch, "save", fail)
    with pytest.raises(OSError, match="disk full"):
        TeacherOutputs.from_logits(LOGITS, 2).save(file, LABELS)
    assert file.read_bytes() == before
    assert [path.name for path in file.parent.iterdir()] == [file.name]


def test_wrong_arguments_are_named(file):
    outputs = TeacherOutputs.load(file, None, 12)
    with pytest.raises(ValueError, match=r"k must be in \[1, 5\].*got 6"):
        outputs.targets(k=6)
    with pytest.raises(ValueError, match="remainder must be"):
        outputs.targets("forget")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="labels has 3 entries"):
        outputs.save(file, LABELS[:3])


def test_labels_are_remembered_by_the_bytes_of_their_numbers():
    """Files of earlier versions stay readable."""
    labels = torch.tensor([3, 0, 70_000, 2**40])
    expected = hashlib.sha256(struct.pack("<4q", 3, 0, 70_000, 2**40)).hexdigest()
    assert fingerprint(labels) == fingerprint(labels.to(torch.int64)) == expected
    assert fingerprint(None) == ""
