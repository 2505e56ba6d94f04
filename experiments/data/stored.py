"""Values in files of ``torch.save``: read without running code, refused if a bit of them has changed."""

import argparse
import pickle
import zipfile
from pathlib import Path
from typing import Any

import torch


class Unreadable(ValueError):
    """A file that cannot be loaded; the message says why, not which file."""


def load(path: Path) -> Any:
    """The tensors and plain values in a file, on the CPU.

    ``torch.save`` stores a CRC-32 of every record, which ``torch.load`` does not compare; this does.
    """
    try:
        if zipfile.is_zipfile(path):
            with zipfile.ZipFile(path) as archive:
                if changed := archive.testzip():
                    raise Unreadable(f"the checksum of {Path(changed).name} is wrong")
        with torch.serialization.safe_globals([argparse.Namespace]):  # published checkpoints keep their options in one
            return torch.load(path, map_location="cpu", weights_only=True)
    except Unreadable:
        raise
    except pickle.UnpicklingError as error:  # torch's own words would suggest to load it unsafely
        raise Unreadable("it is damaged, or holds objects that could run code and are not loaded") from error
    except OSError as error:
        raise Unreadable(error.strerror or "it cannot be read") from error
    except Exception as error:  # depends on the bytes that torch did not write
        raise Unreadable("it is truncated, damaged or no file of torch.save") from error
