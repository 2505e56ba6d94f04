"""The ``softnce`` command: a table of subcommands, each imported only when it is called.

Input that a command refuses ends in one line on stderr and exit code 2; a run that fails, in exit code 1.
"""

import sys
from importlib import import_module
from typing import NoReturn

COMMANDS = {
    # name: (module with main(argv), one line of help)
    "study": ("softnce.lab.commands.study", "run an experiment: softnce study list"),
    "report": ("softnce.lab.commands.report", "build the HTML page from a directory of results"),
    "train": ("softnce.lab.commands.train", "train a classifier from a recipe"),
    "tune": ("softnce.lab.commands.tune", "search for good values of a recipe's options"),
    "evaluate": ("softnce.lab.commands.evaluate", "evaluate a checkpoint: accuracy, calibration, reliability diagram"),
    "predict": ("softnce.lab.commands.predict", "the most probable classes of images or sentences"),
    "export": ("softnce.lab.commands.export", "write a trained network for torch.export or ONNX, or its weights"),
    "recipes": ("softnce.lab.commands.recipes", "list the recipes, or show one with every value filled in"),
    "bench": ("softnce.lab.commands.bench", "time and memory of the losses compared with others"),
}


SIMILAR = 0.5
"""Likeness, from 0 to 1, from which on a name is taken for a mistyped one."""


class Refused(SystemExit):
    """Input that a command cannot take; exit code 2."""

    def __init__(self, line: str) -> None:
        super().__init__(line)
        self.code = 2


def refuse(line: str) -> NoReturn:
    """Print the line that says what is wrong with the input, and end the command."""
    line = printable(line)
    print(line, file=sys.stderr)
    raise Refused(line)


def fail(line: str) -> NoReturn:
    """Print the line that says why a run failed, and end the command; exit code 1."""
    sys.exit(printable(line))


def printable(text: str) -> str:
    """Text with its control characters written out: a name in a file must not steer the terminal."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def did_you_mean(name: str, known: list[str]) -> str:
    """A question after a mistyped name, " did you mean 'train'?"; nothing if no known name is like it."""
    import difflib

    near = difflib.get_close_matches(name.lower(), known, n=1, cutoff=SIMILAR)
    return f" did you mean {near[0]!r}?" if near else ""


def main(argv: list[str] | None = None) -> None:
    argv = sys.argv[1:] if argv is None else argv
    if not argv or argv[0] in ("-h", "--help"):
        print("usage: softnce COMMAND [...]\n\nSoft-label training by noise contrastive estimation.\n\ncommands:")
        print("\n".join(f"  {name:<10}{text}" for name, (_, text) in COMMANDS.items()))
        print("\nsoftnce COMMAND --help explains a command.")
        return
    if argv[0] in ("-V", "--version"):
        from softnce import __version__

        print(__version__)
        return
    if argv[0] not in COMMANDS:
        near = did_you_mean(argv[0], list(COMMANDS))
        refuse(f"softnce: unknown command {argv[0]!r};{near} `softnce --help` lists the commands")
    try:
        _run(*argv)
    except KeyboardInterrupt:  # before the command itself knows what to keep
        print(f"softnce {argv[0]}: interrupted", file=sys.stderr)
        sys.exit(130)
    except BrokenPipeError:  # nobody reads on, as after `| head`
        sys.stdout = None
    except OSError as error:
        place = f"{error.filename}: " if error.filename else ""
        fail(f"softnce {argv[0]}: {place}{import_module('softnce.lab.atomic').why(error)}")


def _run(name: str, *options: str) -> None:
    try:
        command = import_module(COMMANDS[name][0])
    except ModuleNotFoundError as missing:
        if missing.name is None or missing.name.split(".")[0] == "softnce":
            raise
        refuse(f"softnce {name} needs {missing.name}: pip install 'softnce[lab]'")
    command.main(list(options))
