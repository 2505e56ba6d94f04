"""Shared by all tests: a browser, and a quiet, reproducible hypothesis."""

import shutil
from collections.abc import Iterator

import pytest
import torch
from browser import Browser
from hypothesis import HealthCheck, settings

settings.register_profile("softnce", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("softnce")
torch.manual_seed(0)


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    command = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if command is None:
        pytest.skip("no chromium or google-chrome on the path")
    browser = Browser(command, tmp_path_factory.mktemp("profile"))
    yield browser
    browser.close()
