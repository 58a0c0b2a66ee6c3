"""What the benchmarks share: contestants in fresh processes, run in turn, with time and peak memory.

A contestant is a function that prepares itself and returns what one pass does. Each lives in a process of its own. The
program asks one after the other for a pass, round by round, so that all of them meet the same disturbances, and takes
medians. Peak memory is the largest sum of resident sizes of the process and its children.
"""

import argparse
import importlib
import json
import os
import platform
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import psutil

Pass = Callable[[], object]
Make = Callable[..., Pass]

_SAMPLING_S = 0.01


@dataclass
class Result:
    """What a contestant took.

    Attributes:
        prepared_s: Seconds from the start of its preparation (imports excluded) to its first pass.
        seconds: Of each pass, the warm-up excluded.
        processor_s: Processor time of the last pass, with that of processes that ended in it.
        peak_bytes: Resident memory at most.
        said: What the last pass returned.
    """

    name: str
    prepared_s: float = 0.0
    seconds: list[float] = field(default_factory=list)
    processor_s: float = 0.0
    peak_bytes: int = 0
    said: object = None

    @property
    def median_s(self) -> float:
        return statistics.median(self.seconds)

    @property
    def peak_mb(self) -> float:
        return self.peak_bytes / 1e6


def resident_bytes(pid: int) -> int:
    """The resident memory of a process and its children; 0 if one of them ends meanwhile."""
    try:
        process = psutil.Process(pid)
        return sum(one.memory_info().rss for one in (process, *process.children(recursive=True)))
    except psutil.NoSuchProcess:
        return 0


class _Child:
    def __init__(self, name: str, module: str, function: str, arguments: Sequence[str]) -> None:
        self.result = Result(name)
        command = [sys.executable, "-m", "tests.benchmarks.measure", module, function, *map(str, arguments)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self._watch = threading.Thread(target=self._sample, daemon=True)
        self._watch.start()
        self.result.prepared_s = self._read()["prepared_s"]

    def run(self, keep: bool = True) -> None:
        self._process.stdin.write("go\n")
        self._process.stdin.flush()
        answer = self._read()
        self.result.said, self.result.processor_s = answer["said"], answer["processor_s"]
        self.result.peak_bytes = max(self.result.peak_bytes, answer["peak_bytes"])
        if keep:
            self.result.seconds.append(answer["seconds"])

    def _read(self) -> dict:
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"{self.result.name} ended with exit code {self._process.wait()}")
        return json.loads(line)

    def _sample(self) -> None:
        while self._process.poll() is None:
            self.result.peak_bytes = max(self.result.peak_bytes, resident_bytes(self._process.pid))
            time.sleep(_SAMPLING_S)

    def close(self) -> None:
        self._process.stdin.close()
        self._process.wait()
        self._watch.join()


@dataclass(frozen=True)
class Contestant:
    """A function of a benchmark module (a `Make`), by name, and its arguments as text."""

    name: str
    module: str
    function: str
    arguments: tuple[str, ...] = ()


def compete(contestants: Sequence[Contestant], rounds: int, warm_up: bool = True) -> dict[str, Result]:
    """Runs contestants in turn, ``rounds`` passes each; results by name."""
    children: list[_Child] = []
    try:
        for one in contestants:
            children.append(_Child(one.name, one.module, one.function, one.arguments))
            if warm_up:
                children[-1].run(keep=False)
        for _ in range(rounds):
            for child in children:
                child.run()
    finally:
        for child in children:
            child.close()
    return {child.result.name: child.result for child in children}


def once(contestant: Contestant) -> Result:
    """One pass without warm-up, for what takes long."""
    return compete([contestant], rounds=1, warm_up=False)[contestant.name]


def machine() -> str:
    """The machine, how busy it is, and the versions, in one line."""
    import numpy
    import onnx
    import onnxruntime

    model = platform.processor() or platform.machine()
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                model = line.partition(":")[2].strip()
                break
    except OSError:
        pass
    return (
        f"{model}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.0f}, "
        f"{psutil.virtual_memory().total / 2**30:.0f} GiB; Python "
        f"{platform.python_version()}, numpy {numpy.__version__}, onnx {onnx.__version__}, ONNX Runtime "
        f"{onnxruntime.__version__}"
    )


def table(header: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """A Markdown table with padded columns; the first one is text, the others are figures."""
    cells = [[f"{c:.2f}" if isinstance(c, float) else str(c) for c in row] for row in (header, *rows)]
    widths = [max(len(row[i]) for row in cells) for i in range(len(header))]

    def line(row: Sequence[str]) -> str:
        return (
            "| "
            + " | ".join(
                cell.ljust(width) if index == 0 else cell.rjust(width)
                for index, (cell, width) in enumerate(zip(row, widths, strict=True))
            )
            + " |"
        )

    rule = ["-" * (widths[0] + 2), *("-" * (width + 1) + ":" for width in widths[1:])]
    return "\n".join([line(cells[0]), f"|{'|'.join(rule)}|", *map(line, cells[1:])])


def parser(
    about: str | None, names: Sequence[str], rounds: int | None = None, default: Sequence[str] | None = None
) -> argparse.ArgumentParser:
    """The arguments of a program that measures networks by name.

    Args:
        about: The docstring of the program.
        names: The networks that it knows.
        rounds: The passes by default; None if the program has no rounds.
        default: The networks by default; None for all.
    """
    from tests.benchmarks.networks import DEFAULT_DIRECTORY

    def check_name(text: str) -> str:
        if text not in names and "=" not in text:
            raise argparse.ArgumentTypeError(f"{text} is none of {', '.join(names)}")
        return text

    default = names if default is None else default
    result = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    result.add_argument(
        "networks",
        nargs="*",
        default=list(default),
        type=check_name,
        help=f"{', '.join(names)}; by default {', '.join(default)}",
    )
    result.add_argument("--directory", type=Path, default=DEFAULT_DIRECTORY, help="where the networks lie or are made")
    if rounds is not None:
        result.add_argument("--rounds", type=int, default=rounds)
    return result


def _own_peak() -> int:
    """The most this process had resident, where the system tells; else what it has now."""
    try:
        status = Path("/proc/self/status").read_text()
    except OSError:
        return psutil.Process().memory_info().rss
    return 1024 * next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM"))


def _serve() -> None:
    module, function, *arguments = sys.argv[1:]
    make: Make = getattr(importlib.import_module(module), function)
    stdout = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print is no answer

    def answer(**values: object) -> None:
        stdout.write(json.dumps(values) + "\n")
        stdout.flush()

    since = time.perf_counter()
    one_pass = make(*arguments)
    answer(prepared_s=time.perf_counter() - since)
    for _ in sys.stdin:
        since, before = time.perf_counter(), sum(os.times()[:4])
        said = one_pass()
        seconds = time.perf_counter() - since
        answer(seconds=seconds, said=said, processor_s=sum(os.times()[:4]) - before, peak_bytes=_own_peak())


if __name__ == "__main__":
    _serve()
