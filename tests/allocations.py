"""The memory that an operation takes, as torch's allocator counts it."""

from collections.abc import Callable

from torch.autograd.profiler import profile


def peak(operation: Callable[[], object]) -> int:
    """The largest number of bytes that ``operation`` has allocated at once."""
    with profile(profile_memory=True) as recorded:
        operation()
    events = [event for event in recorded.kineto_results.events() if event.name() == "[memory]"]
    now = highest = 0
    for event in sorted(events, key=lambda event: event.start_ns()):
        now += event.nbytes()
        highest = max(highest, now)
    return highest
