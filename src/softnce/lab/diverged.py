"""The error of a training that cannot go on."""


class Diverged(RuntimeError):
    """The loss or the class scores are NaN or infinite."""
