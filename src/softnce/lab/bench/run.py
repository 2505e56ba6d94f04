"""The whole benchmark of the losses: plan, measure, save, show."""

import datetime
import os
import platform
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import torch
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from softnce.lab.atomic import write_text
from softnce.lab.bench import figures, tables
from softnce.lab.bench.cases import CASES, Family, Size
from softnce.lab.bench.exchange import bytes_sent
from softnce.lab.bench.limits import limits
from softnce.lab.bench.measurement import Measurement, Plan, measure
from softnce.lab.bench.memory import own_process
from softnce.lab.bench.scaling import Sweeps, exponents
from softnce.lab.bench.timing import Load
from softnce.lab.configuration import option
from softnce.lab.experiment.results import Results, versions
from softnce.lab.report import drawing


@dataclass(frozen=True)
class Config:
    out: str = option("results/bench", "directory for results and figures")
    sizes: tuple[tuple[int, int], ...] = option(
        ((128, 100), (4096, 10), (256, 1_000), (1024, 1_000), (1024, 10_000), (1024, 100_000)),
        "N and K of the losses on logits",
    )
    table_classes: tuple[int, ...] = option((10_000, 100_000, 1_000_000), "K of the losses on a label table", least=1)
    table_rows: int = option(1024, "N of the losses on a label table", least=1)
    dim: int = option(256, "d, features of the label table", least=1)
    rounds: int = option(15, "rounds; slow losses run in the first few only", least=1)
    seconds: float = option(20.0, "time per loss, in seconds, after which it is not run again", above=0)
    clock: Literal["wall", "cpu"] = option(
        "wall", "wall time, or cpu: processor time, for a shared machine; best with one thread"
    )
    threads: int | None = option(None, "number of torch threads; null: torch's default", least=1)
    device: str = option("cpu", "cpu or cuda")
    judged: bool = option(True, "compare with the limits that the losses should keep, at the sizes they are stated for")
    compiled: bool = option(True, "also measure with torch.compile (half a minute per loss and size)")
    max_gb: float = option(9.0, "steps that need more memory, in GB, are skipped", above=0)
    sweeps: Sweeps = field(default_factory=Sweeps)

    def __post_init__(self) -> None:
        for size in self.sizes:
            if len(size) != 2 or min(size) < 1:
                raise ValueError(f"sizes: got {list(size)}, need pairs [N, K] of at least 1")
        if self.device not in ("cpu", "cuda"):
            raise ValueError(f"device: got {self.device!r}, need cpu or cuda")
        if self.device == "cuda" and self.clock == "cpu":
            raise ValueError("device: cuda works beside the processor, whose time does not count it; use --clock wall")


PRESETS = {
    "quick": Config(
        sizes=((128, 100), (256, 1_000)),
        table_classes=(1_000, 10_000),
        table_rows=256,
        dim=64,
        rounds=5,
        seconds=0.5,
        compiled=False,
        judged=False,
        max_gb=0.5,
        sweeps=Sweeps(
            rows=(32, 64, 128),
            candidates=(32, 64, 128),
            classes=(300, 1_000, 3_000),
            table_classes=(1_000, 10_000, 100_000),
            batch=128,
            fixed_classes=200,
        ),
    ),
    "paper": Config(),
}


def run(config: Config) -> None:
    """Measure everything, save each part as it is finished, then show it."""
    if config.device == "cuda" and not torch.cuda.is_available():
        raise ValueError("device: cuda is not available to this torch")
    results = Results(config.out, "bench")
    started = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    console, machine = Console(), describe_machine(config)
    missing = sorted({case.needs for case in CASES.values() if case.needs and not case.is_installed})
    console.print(machine + (f"; not installed, left out: {', '.join(missing)}" if missing else ""))
    options: dict[str, Any] = {"rounds": config.rounds, "seconds": config.seconds, "clock": config.clock}
    options["max_bytes"] = 1e9 * config.max_gb

    def save(part: str, measurements: Sequence[Measurement]) -> None:
        for m in measurements:
            where = {"started": started, "machine": machine, "part": part, "case": m.case.name, **asdict(m.size)}
            result = {"times": m.times, "bytes": m.bytes, "ratio": m.ratio and asdict(m.ratio), "needs": m.needs}
            results.append(where, result, sum(m.times))

    plans = {
        "logits": plan_logits(config),
        "tables": plan_tables(config),
        **{f"growth in {axis}": plan for axis, plan in config.sweeps.plans().items()},
    }
    plans = {part: [(case, replace(size, device=config.device)) for case, size in plan] for part, plan in plans.items()}
    found: dict[str, list[Measurement]] = {}
    load = options["load"] = Load()
    columns = TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn(), TimeRemainingColumn()
    with Progress(*columns, console=console) as progress, own_process(torch.get_num_threads()) as peak:
        for part, plan in plans.items():
            task = progress.add_task(part, total=len(plan) * (config.rounds + 1))
            torch.compiler.reset()
            found[part] = measure(plan, peak=peak, on_progress=partial(progress.advance, task), **options)
            save(part, found[part])
        task = progress.add_task("bytes between ranks", total=1)
        sent = bytes_sent(1024, 1000)
        results.append({"started": started, "machine": machine, "part": "exchange"}, sent, 0.0)
        progress.advance(task)

    sweeps = {axis: found[f"growth in {axis}"] for axis in config.sweeps.plans()}
    fitted = {axis: exponents(axis, measurements) for axis, measurements in sweeps.items()}
    everything = found["logits"] + found["tables"]
    families: tuple[Family, ...] = ("soft", "labels", "table")
    shown = [tables.comparison(family, everything) for family in families]
    shown += [tables.growth(fitted), tables.exchange(sent, 1024, 1000)]
    if config.judged:
        shown.append(tables.kept(limits(everything, fitted, sent)))
    for table in shown:
        console.print(table.rich())
    notes = [note for note in (tables.summary(everything), load.warning(config.clock)) if note]
    for note in notes:
        console.print(note)
    directory = Path(config.out)
    text = "\n\n".join([machine, *notes, *(table.markdown() for table in shown)]) + "\n"
    write_text(directory / "bench.md", text)
    for figure in (figures.scaling(sweeps), figures.steps(found["tables"])):
        drawing.save(figure, directory / "figures")
    print(f"{results.path}, {directory / 'bench.md'} and {directory / 'figures'}/bench-*")


def plan_logits(config: Config) -> Plan:
    sizes = [Size(rows, classes) for rows, classes in config.sizes]
    return [(case, size) for case in _cases(config, ("soft", "labels")) for size in sizes]


def plan_tables(config: Config) -> Plan:
    sizes = [Size(config.table_rows, classes, dim=config.dim) for classes in config.table_classes]
    return [(case, size) for case in _cases(config, ("table",)) for size in sizes]


def _cases(config: Config, families: tuple[Family, ...]) -> list[Any]:
    chosen = [case for case in CASES.values() if case.family in families and case.is_installed]
    return [case for case in chosen if config.compiled or not case.is_compiled]


def describe_machine(config: Config) -> str:
    """Processor or accelerator, threads, load and versions, on one line."""
    name = platform.processor() or platform.machine()
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            name = next(line.partition(":")[2].strip() for line in file if line.startswith("model name"))
    except (OSError, StopIteration):
        pass
    load = f", load average {os.getloadavg()[0]:.1f} at the start" if hasattr(os, "getloadavg") else ""
    found = versions()
    if config.device == "cuda":
        name = f"{torch.cuda.get_device_name()} beside {name}"
    return (
        f"{name}, {os.cpu_count()} cores, {torch.get_num_threads()} threads{load}, {config.clock} time; "
        f"torch {found['torch']}, softnce {found['softnce']}, Python {found['python']}"
    )
