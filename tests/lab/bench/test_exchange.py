"""What ranks send, counted."""

import pytest

from softnce.lab.bench.exchange import bytes_sent


@pytest.mark.slow
def test_pairs_instead_of_rows() -> None:
    rows, classes = 32, 50
    sent = bytes_sent(rows, classes)
    header, mean = 64, 8
    assert sent["labels"] == 4 * rows + header + mean
    assert sent["pairs"] == 2 * (4 + 4) * rows + header + mean
    assert sent["dense"] == 4 * rows * classes + header + mean
    assert sent["dense, expected InfoNCE"] == 8 * classes + header + mean
