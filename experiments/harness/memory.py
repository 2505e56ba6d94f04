"""Peak memory of one step, from a trace of torch's allocator.

What is counted is the largest sum of live allocations during forward, backward and optimiser step beyond what lived
before: inputs, parameters and optimiser state are not counted, gradients are. The trace is exact to
the byte, so the figure is the same in every run, unlike the process's resident memory; what a matrix library allocates
internally is not included.
"""

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from torch.profiler import ProfilerActivity, profile


def peak_of(step: Callable[[], object]) -> int:
    """Bytes. The step runs twice and is traced the second time, after all lazy initialisation."""
    step()
    with _quiet(), profile(activities=[ProfilerActivity.CPU], profile_memory=True) as trace:
        step()
    assert trace.profiler is not None
    events = [event for event in trace.profiler.kineto_results.events() if event.name() == "[memory]"]
    live = peak = 0
    for event in sorted(events, key=lambda event: event.start_ns()):
        live += event.nbytes()
        peak = max(peak, live)
    return peak


@contextmanager
def _quiet() -> Iterator[None]:
    """The profiler's C++ announces itself, and every block freed that it did not see allocated, on standard error."""
    sys.stderr.flush()
    kept, nothing = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nothing, 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nothing)
