"""Shared by all tests: a browser, a quiet, reproducible hypothesis, processes that import the heavy packages once."""

import multiprocessing
import shutil
from collections.abc import Iterator

import pytest
import torch
from browser import Browser
from hypothesis import HealthCheck, settings

from softnce.lab.experiment import parallel

settings.register_profile("softnce", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("softnce")
torch.manual_seed(0)
parallel.PRELOADED += ["softnce.lab.train.run", "torch.distributed.fsdp"]  # in a suite many processes use them
multiprocessing.set_forkserver_preload(parallel.PRELOADED)


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    command = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if command is None:
        pytest.skip("no chromium or google-chrome on the path")
    browser = Browser(command, tmp_path_factory.mktemp("profile"))
    yield browser
    browser.close()
