"""Independent runs side by side on many machines, by Ray."""

import logging
import os
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

from softnce.lab.cores import SHARE
from softnce.lab.experiment.parallel import ATTEMPTS, Killed

Run = TypeVar("Run")
Result = TypeVar("Result")


def on_cluster(
    perform: Callable[[Run], Result], runs: Iterable[Run], *, address: str = "", gpu: bool = False
) -> Iterator[Result]:
    """``perform(run)`` for each of ``runs`` on the nodes of a Ray cluster; yields results as they arrive.

    Each run gets one core, or one GPU. A run whose worker or node is lost is started again elsewhere. Every node
    needs softnce and, under the same paths, the data and the folder of results.

    Args:
        perform: a function of a module.
        runs: its arguments; each is taken when the cluster has room for it.
        address: of the cluster; "auto" for the one this machine belongs to; "" for that one, or a new one on this
            machine if there is none.
        gpu: one per run, if the cluster has any.
    """
    try:
        import ray
    except ModuleNotFoundError:
        raise ValueError("engine: ray is not installed: pip install 'softnce[cluster]'") from None
    started = not ray.is_initialized()
    if started:
        try:
            ray.init(address or None, log_to_driver=False, logging_level=logging.WARNING)
        except (ConnectionError, ValueError) as error:
            raise ValueError(
                f"address: no Ray cluster at {address!r} ({str(error).partition('. ')[0]}); start one with "
                "`ray start --head`"
            ) from None
    gpus = int(gpu and ray.cluster_resources().get("GPU", 0) >= 1)
    remote: Any = ray.remote(num_cpus=1, num_gpus=gpus, max_retries=ATTEMPTS - 1, retry_exceptions=False)(_perform)
    waiting, empty = iter(runs), object()
    pending: dict[Any, Run] = {}
    try:
        while True:
            while len(pending) < _room(ray, gpus):
                run: Any = next(waiting, empty)
                if run is empty:
                    break
                pending[remote.remote(perform, run)] = run
            if not pending:
                return
            done, _ = ray.wait(list(pending), timeout=5)  # then look whether nodes have come or gone
            for reference in done:
                run = pending.pop(reference)
                try:
                    yield ray.get(reference)
                except ray.exceptions.RayTaskError as error:
                    raise error.cause from None
                except (ray.exceptions.WorkerCrashedError, ray.exceptions.NodeDiedError) as error:
                    raise Killed(run) from error
    finally:
        for reference in pending:
            ray.cancel(reference, force=True)
        if started:
            ray.shutdown()


def _room(ray: Any, gpus: int) -> int:
    """Runs that the cluster can do at once."""
    resources = ray.cluster_resources()
    return max(1, int(resources.get("GPU" if gpus else "CPU", 1)))


def _perform(perform: Callable[[Run], Result], run: Run) -> Result:
    import torch

    torch.set_num_threads(1)
    if not torch.cuda.is_available():
        os.environ[SHARE] = "1"  # the core of this run, also for its loaders
    return perform(run)
