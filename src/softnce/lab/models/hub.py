"""Weights from the Hugging Face hub, or at once a line that says what to do without a connection."""

import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager

SECONDS = 5.0
"""How long to wait for an answer of the hub."""


@contextmanager
def downloading(weights: str, source: str) -> Iterator[None]:
    """Within the block the hub is asked for ``source``; without a connection, only its local cache.

    Raises a ValueError that names the option for a file. Left alone, the hub's client would try again for a minute.
    """
    from huggingface_hub import constants

    before = constants.HF_HUB_OFFLINE
    offline = before or not _answers(constants.ENDPOINT)
    constants.HF_HUB_OFFLINE = offline
    try:
        yield
    except Exception as error:  # of the client, of its transport, or of timm
        reason = f"no connection to {constants.ENDPOINT}" if offline else " ".join(str(error).split())
        raise ValueError(
            f"model.weights {weights}: cannot download {source} ({reason}); if you have the file: --model.weights FILE"
        ) from error
    finally:
        constants.HF_HUB_OFFLINE = before


def _answers(address: str) -> bool:
    try:
        urllib.request.urlopen(urllib.request.Request(address, method="HEAD"), timeout=SECONDS).close()
    except urllib.error.HTTPError:
        return True  # whatever it says, it is there
    except (OSError, ValueError):
        return False
    return True
