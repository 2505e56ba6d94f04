import subprocess
import sys
from importlib.util import find_spec

import pytest

pytestmark = pytest.mark.skipif(find_spec("timm") is None, reason="needs softnce[vision]")


def run(code):
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)


@pytest.mark.slow
def test_torchvision_imports_after_it():
    result = run("from softnce.lab.models import torchvision_operators; import torchvision.datasets, timm")
    assert result.returncode == 0, result.stderr


@pytest.mark.slow
def test_operators_are_declared_only_when_missing():
    # With declared operators torchvision must say that it has none; with loaded ones we must not declare any.
    code = (
        "from softnce.lab.models.torchvision_operators import library; import torchvision.extension as e;"
        "assert (library is None) == e._has_ops(), (library, e._has_ops())"
    )
    result = run(code)
    assert result.returncode == 0, result.stderr
