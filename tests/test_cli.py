"""The command line before any work: help without torch, the nearest name for a typo, one exit code for refusals."""

import errno
import resource
import subprocess
import sys

import pytest

from softnce.cli import COMMANDS, main

TORCH_AT_THE_END = """
import sys
from softnce.cli import main
try:
    main(sys.argv[1:])
finally:
    assert "torch" not in sys.modules
"""


def exit_code(words: list[str]) -> int:
    try:
        main(words)
    except SystemExit as stop:
        return stop.code
    return 0


def test_help_takes_a_fifth_of_a_second_of_processor_time():
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    shown = subprocess.run([sys.executable, "-m", "softnce", "--help"], capture_output=True, text=True, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert all(name in shown.stdout for name in COMMANDS)
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime <= 0.2


def test_help_of_a_command_waits_for_no_framework():
    script = f"""
import sys
from softnce.cli import main
for command in {list(COMMANDS)}:
    try:
        main([command, "--help"])
    except SystemExit as stop:
        assert stop.code == 0
assert not {{"lightning", "matplotlib", "timm", "torchvision", "transformers"}} & sys.modules.keys()
"""
    subprocess.run([sys.executable, "-c", script], stdout=subprocess.DEVNULL, check=True)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["stdy"], "softnce: unknown command 'stdy'; did you mean 'study'?"),
        (["foo"], "softnce: unknown command 'foo'; `softnce --help` lists the commands"),
        (["recipes", "foo"], "softnce recipes: no recipe 'foo'; `softnce recipes` lists them"),
        (["predict", "x", "y", "--zzz", "3"], "softnce predict: unknown option --zzz\n"),
        (["Train"], "softnce: unknown command 'Train'; did you mean 'train'?"),
        (["study", "densty"], "softnce study: unknown study 'densty'; did you mean 'density'?"),
        (["study", "lst"], "softnce study: unknown study 'lst'; did you mean 'list'?"),
        (["recipes", "laptop/tissu"], "softnce recipes: no recipe 'laptop/tissu'; did you mean 'laptop/tissue'?"),
        (["train", "laptop/digit"], "softnce train: no recipe 'laptop/digit'; did you mean 'laptop/digits'?"),
        (
            ["train", "laptop/digits", "--optimiser.bacth", "3"],
            "softnce train: unknown option --optimiser.bacth; did you mean --optimiser.batch?",
        ),
        (["evaluate", "x", "--splt", "test"], "softnce evaluate: unknown option --splt; did you mean --split?"),
        (["predict", "x", "y", "--topp", "3"], "softnce predict: unknown option --topp; did you mean --top?"),
    ],
)
def test_a_typo_is_answered_before_torch_is_imported(words, message):
    ended = subprocess.run([sys.executable, "-c", TORCH_AT_THE_END, *words], capture_output=True, text=True)
    assert ended.stderr.startswith(message)
    assert ended.stderr.count("\n") == 1
    assert ended.returncode == 2


@pytest.mark.parametrize(
    "words",
    [
        *([name] for name in COMMANDS),
        ["train", "laptop/digits", "--optimiser.batch", "3"],
        ["evaluate", "somewhere"],
        ["evaluate", "somewhere", "--batch", "3"],
        ["predict", "somewhere", "image.png"],
        ["report", "somewhere"],
        ["recipes", "laptop/digits"],
        ["study", "density", "--seeds", "2"],
        ["study", "all", "--seeds", "2"],
        ["bench", "laptop/digits"],
    ],
)
def test_help_anywhere(words, capsys):
    assert exit_code([*words, "--help"]) == 0
    assert f"usage: softnce {words[0]}" in capsys.readouterr().out


@pytest.mark.parametrize(
    "words",
    [
        ["train", "laptop/digits", "--optimiser.batch", "3000"],
        ["train", "--resume", "/nowhere"],
        ["evaluate", "/nowhere"],
        ["predict", "/nowhere"],
        ["predict", "/nowhere", "image.png"],
        ["report", "/nowhere"],
        ["recipes", "one", "two"],
        ["study", "digits", "--seeds", "0"],
        ["bench", "nothing"],
        ["bench", "--rounds", "0"],
    ],
)
def test_refused_input_has_one_exit_code(words, capsys):
    assert exit_code(words) == 2
    assert capsys.readouterr().err.startswith("softnce ")


def test_names_are_imported_when_they_are_used():
    code = """
import sys, softnce
assert "torch" not in sys.modules
assert set(softnce.__all__) <= set(dir(softnce))
assert softnce.losses.NLL is softnce.NLL
from softnce import *
assert SoftTargets is softnce.targets.SoftTargets
try:
    softnce.SoftTarget
except AttributeError as error:
    print(error)
"""
    ended = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=True)
    assert ended.stdout == "module 'softnce' has no attribute 'SoftTarget'\n"


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (
            OSError(errno.ENOSPC, "No space left on device", "a/b\x1b[31m"),
            r"softnce study: a/b\x1b[31m: the disk is full",
        ),
        (PermissionError(errno.EACCES, "Permission denied", "a/b"), "softnce study: a/b: Permission denied"),
    ],
)
def test_a_failed_write_is_one_line(error, said, monkeypatch):
    def fails(argv):
        raise error

    monkeypatch.setattr("softnce.lab.commands.study.main", fails)
    with pytest.raises(SystemExit) as stopped:
        main(["study", "digits"])
    assert stopped.value.code == said  # which Python prints, with exit code 1
