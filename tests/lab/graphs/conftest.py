import os
import warnings
from importlib.util import find_spec
from pathlib import Path

import pytest

collect_ignore_glob = [] if find_spec("torch_geometric") and find_spec("h5py") else ["test_*.py"]
if not collect_ignore_glob:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "`torch.jit.script` is deprecated")  # PyG uses it while it is imported
        import torch_geometric.nn  # noqa: F401


@pytest.fixture(scope="session")
def tissue(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Root of ten small specimens of two stages, for tests that only read."""
    from softnce.lab.data.tissue import TissueConfig, write_tissue

    return write_tissue(TissueConfig(tmp_path_factory.mktemp("tissue"), specimens=10, stages=2, cells=(90, 140)))


@pytest.fixture(scope="session")
def graphs(tissue: Path) -> list:
    from softnce.lab.data.celltypegraph import find_specimens, read_specimen

    return [read_specimen(specimen.path) for specimen in find_specimens(tissue)]


@pytest.fixture(scope="session")
def real_data() -> Path:
    """Folder of exported real data, from SOFTNCE_DATA."""
    folder = os.environ.get("SOFTNCE_DATA")
    if not folder:
        pytest.skip("SOFTNCE_DATA is not set")
    return Path(folder)
