"""torch.compile switches off the checks of all distributions for the rest of the process; here they are on."""

import pytest
from torch.distributions import Distribution


@pytest.fixture(autouse=True)
def checked_arguments():
    Distribution.set_default_validate_args(True)
