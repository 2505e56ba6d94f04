"""Values in files of ``torch.save``: read without running code, refused if a bit of them has changed."""

import argparse
import pickle
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

PLAIN_OBJECTS = (argparse.Namespace,)
"""Classes whose instances only hold values; published checkpoints keep their options in them."""

FOREIGN = "it is truncated, damaged or no file of torch.save"


class Unreadable(ValueError):
    """A file that cannot be loaded; the message says why, not which file."""


def load(path: Path) -> Any:
    """The tensors and plain values in a file, on the CPU.

    ``torch.save`` stores a CRC-32 of every record, which ``torch.load`` does not compare; this does. It costs one more
    reading of the file.
    """
    try:
        if zipfile.is_zipfile(path):
            with zipfile.ZipFile(path) as archive:
                if changed := archive.testzip():
                    raise Unreadable(f"the checksum of {Path(changed).name} is wrong")
        with torch.serialization.safe_globals(list(PLAIN_OBJECTS)):
            return torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:  # torch's own words would suggest to load it unsafely
        raise Unreadable(_refused(path) if _is_torch(path) else FOREIGN) from error
    except OSError as error:
        raise Unreadable(error.strerror or "it cannot be read") from error
    except Unreadable:
        raise
    except Exception as error:  # what is raised for bytes that torch did not write depends on the bytes
        raise Unreadable(FOREIGN) from error


def _is_torch(path: Path) -> bool:
    """Whether a file starts as those of ``torch.save`` do: a zip archive, or formerly a pickle."""
    with path.open("rb") as file:
        return zipfile.is_zipfile(path) or file.read(1) == pickle.PROTO


def _refused(path: Path) -> str:
    names: Sequence[str] = ()
    if zipfile.is_zipfile(path):
        known = {f"{kind.__module__}.{kind.__qualname__}" for kind in PLAIN_OBJECTS}
        names = sorted(set(torch.serialization.get_unsafe_globals_in_checkpoint(path)) - known)
    held = ", ".join(names) or "objects other than tensors and plain values"
    return f"it holds {held}, which could run code and is not loaded"
