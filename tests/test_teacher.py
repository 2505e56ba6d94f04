"""The file of a teacher's outputs: what is written is read, and what does not belong is refused."""

import hashlib
import io
import pickle
import re
import struct
from pathlib import Path

import pytest
import torch

from softnce import SoftTargets
from softnce.teacher import HEADER, TeacherOutputs, _read, fingerprint

LOGITS = torch.randn(20, 12, generator=torch.Generator().manual_seed(0))
LABELS = torch.arange(20) % 12


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "teacher.pt"
    TeacherOutputs.from_logits(LOGITS, 5, temperature=2.0).save(path, LABELS)
    return path


@pytest.mark.parametrize("remainder", ["spread", "renormalise", "group"])
@pytest.mark.parametrize("k", [1, 2, 5])
def test_what_is_read_is_the_top_k_of_the_logits(file, k, remainder):
    outputs = TeacherOutputs.load(file, LABELS, 12)
    wanted = SoftTargets.from_topk(LOGITS, k, 2.0, remainder)
    found = outputs.targets(remainder, k)
    if remainder == "group":
        assert found.rest == pytest.approx(wanted.rest, abs=1e-6)
        assert torch.equal(found.classes, wanted.classes)
    else:
        assert found.dense() == pytest.approx(wanted.dense(), abs=1e-6)
    assert outputs.temperature == 2.0


def test_all_classes_are_the_softmax():
    for remainder in ("spread", "renormalise"):
        soft = TeacherOutputs.from_logits(LOGITS, 12).targets(remainder)
        assert soft.index is None  # dense where k is not small
        assert soft.dense() == pytest.approx(LOGITS.softmax(1), abs=1e-6)


def test_batches_are_put_together_in_order():
    whole = TeacherOutputs.from_logits(LOGITS, 3)
    parts = TeacherOutputs.cat([TeacherOutputs.from_logits(LOGITS[i : i + 7], 3) for i in (0, 7, 14)])
    assert torch.equal(parts.index, whole.index)
    assert torch.equal(parts.probability, whole.probability)


@pytest.mark.parametrize(("classes", "dtype"), [(12, torch.uint8), (300, torch.int16), (40_000, torch.int32)])
def test_classes_are_stored_small(tmp_path, classes, dtype):
    path = tmp_path / "t.pt"
    logits = torch.zeros(3, classes)
    logits[:, -1] = 9.0
    TeacherOutputs.from_logits(logits, 1).save(path)
    assert _read(path)["index"].dtype == dtype
    assert (TeacherOutputs.load(path, None, classes).index == classes - 1).all()


def test_files_that_do_not_match_the_data_are_refused(file):
    for labels, classes, words in (
        (LABELS.flip(0), 12, "other samples, or to these in another order"),
        (LABELS[:7], 12, "outputs of 20 samples, but the data has 7"),
        (LABELS, 10, "has 12 classes, but the data has 10"),
    ):
        with pytest.raises(ValueError, match=rf"^{re.escape(str(file))}: .*{words}[^\n]*$"):
            TeacherOutputs.load(file, labels, classes)


class Evil:
    def __reduce__(self):
        return print, ("code was run",)


def test_files_of_something_else_are_refused(file, tmp_path, capsys):
    whole, content = file.read_bytes(), _read(file)
    broken = {
        "No such file": None,
        "text": b"hello",
        "half": whole[: len(whole) // 2],
        "code": signed(pickle.dumps(Evil())),
        "another thing": {"weights": torch.zeros(2)},
        "no index": {name: value for name, value in content.items() if name != "index"},
        "shapes": content | {"probability": content["probability"][:, :2]},
        "a class too many": content | {"index": content["index"] + 12},
        "not probabilities": content | {"probability": content["probability"] * 9},
        "nan": content | {"probability": content["probability"] * float("nan")},
    }
    for name, value in broken.items():
        path = tmp_path / name
        if isinstance(value, dict):
            buffer = io.BytesIO()
            torch.save(value, buffer)
            value = signed(buffer.getvalue())
        if value is not None:
            path.write_bytes(value)
        with pytest.raises(ValueError, match=name) as error:
            TeacherOutputs.load(path, LABELS, 12)
        assert "\n" not in str(error.value), name
    assert "code was run" not in capsys.readouterr().out


def signed(content: bytes) -> bytes:
    return HEADER + hashlib.sha256(content).digest() + content


def test_every_flipped_bit_is_refused(file):
    whole = bytearray(file.read_bytes())
    for bit in range(0, 8 * len(whole), 7):
        whole[bit // 8] ^= 1 << bit % 8
        file.write_bytes(whole)
        with pytest.raises(ValueError, match=r"teacher\.pt: (damaged|not a file)"):
            TeacherOutputs.load(file, LABELS, 12)
        whole[bit // 8] ^= 1 << bit % 8


def test_a_write_that_fails_leaves_the_old_file(file, monkeypatch):
    before = file.read_bytes()

    def fail(path, content):
        with path.open("wb") as half:
            half.write(content[:50])
        raise OSError("disk full")

    monkeypatch.setattr(Path, "write_bytes", fail)
    with pytest.raises(OSError, match="disk full"):
        TeacherOutputs.from_logits(LOGITS, 2).save(file, LABELS)
    assert file.read_bytes() == before
    assert [path.name for path in file.parent.iterdir()] == [file.name]


def test_wrong_arguments_are_named(file):
    outputs, fewer = TeacherOutputs.from_logits(LOGITS, 5), TeacherOutputs.from_logits(LOGITS, 4)
    calls = [
        (TeacherOutputs.from_logits, {"logits": LOGITS, "k": 2}, {"logits": ["text", None, LABELS], "k": ["2", 0, 13]}),
        (TeacherOutputs.from_logits, {"logits": LOGITS, "k": 2}, {"temperature": ["1", None, 0.0, float("inf")]}),
        (outputs.targets, {}, {"k": ["2", 2.5, True, 0, 6], "remainder": ["forget", None, 1]}),
        (TeacherOutputs.cat, {"parts": [outputs]}, {"parts": [[], [outputs, fewer], [LOGITS], None, outputs]}),
        (outputs.save, {"path": file}, {"labels": [LABELS[:3]]}),
    ]
    for call, good, wrong in calls:
        call(**good)
        for argument, values in wrong.items():
            for value in values:
                with pytest.raises((ValueError, TypeError), match=rf"\b{argument}\b"):
                    call(**{**good, argument: value})


def test_labels_are_remembered_by_the_bytes_of_their_numbers():
    labels = torch.tensor([3, 0, 70_000, 2**40])
    expected = hashlib.sha256(struct.pack("<4q", 3, 0, 70_000, 2**40)).hexdigest()
    assert fingerprint(labels) == fingerprint(labels.to(torch.int64)) == expected
    assert fingerprint(None) == ""
