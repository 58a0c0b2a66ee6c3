"""How quickly the app answers on a 20,000-node network, and how much it writes to the terminal.

    python -m tests.benchmarks.screen [--nodes 20000] [--moves 200]

The app runs in a pseudo-terminal of 120×40 with seeded random inputs, so that a comparison runs in the background.
Printed are: the time from the command to the first rows, and the processor time of all its processes until then, beside
that of a network of 60 nodes (what is left is what the size costs); the time from a cursor key to the first and to the
last byte of its repaint, the processor time of the app itself by key, and the bytes of the repaint, when the cursor
moves within the page and when the page scrolls; and the time of ``trt-tui --help``.
"""

import argparse
import fcntl
import os
import pty
import re
import select
import signal
import statistics
import struct
import subprocess
import sys
import tempfile
import termios
import time
from pathlib import Path

import onnx
import psutil

from tests import networks
from trt_tui.jobs.requests import CompareRuns

ROWS, COLUMNS = 40, 120
SILENCE_S = 0.03
"""A repaint has ended when nothing was written for so long."""


class Screen:
    """The app in a pseudo-terminal."""

    def __init__(self, model: Path, state: Path) -> None:
        self.started, self.written = time.perf_counter(), b""
        self.pid, self.terminal = pty.fork()
        if self.pid == 0:
            os.environ.update(
                TERM="xterm-256color", COLORTERM="truecolor", XDG_STATE_HOME=str(state), XDG_CACHE_HOME=str(state)
            )
            os.execv(sys.executable, [sys.executable, "-m", "trt_tui", str(model), "--samples", "8"])
        fcntl.ioctl(self.terminal, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))

    def read(self, seconds: float) -> bytes:
        """What is written within ``seconds``; ends with the first piece."""
        ready, _, _ = select.select([self.terminal], [], [], seconds)
        return os.read(self.terminal, 1 << 16) if ready else b""

    def until(self, pattern: bytes, seconds: float) -> float:
        """Seconds from the start until the output matches."""
        while time.perf_counter() - self.started < seconds:
            self.written += self.read(0.01)
            if re.search(pattern, self.written):
                return time.perf_counter() - self.started
        raise SystemExit(f"{pattern!r} did not appear within {seconds} s; written last: {self.written[-500:]!r}")

    def drain(self, seconds: float) -> None:
        end = time.perf_counter() + seconds
        while time.perf_counter() < end:
            self.read(0.02)

    def press(self, key: bytes) -> tuple[float, float, int]:
        """Time to the first byte and to the last one in seconds, and the number of bytes."""
        while self.read(0.0):
            pass
        start = time.perf_counter()
        os.write(self.terminal, key)
        first, last, count = 0.0, 0.0, 0
        while True:
            data = self.read(SILENCE_S if count else 1.0)
            if not data:
                return first, last, count
            last = time.perf_counter() - start
            first = first or last
            count += len(data)
            if last > 1.0:
                return first, last, count

    def processor_s(self, alone: bool = False) -> float:
        """Processor time so far of all its processes, or of the app ``alone``, without those that compute."""
        own = psutil.Process(self.pid)
        return sum(sum(one.cpu_times()[:2]) for one in (own, *([] if alone else own.children(recursive=True))))

    def close(self) -> None:
        os.kill(self.pid, signal.SIGHUP)
        os.close(self.terminal)
        os.waitpid(self.pid, 0)


CLOCK_BYTES = 64
"""What is written where only the time of a job moves on is less."""


def percentile(values: list[float], share: float) -> float:
    return sorted(values)[min(len(values) - 1, int(share * len(values)))]


def measure(nodes: int, moves: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        big, small = root / "big.onnx", root / "small.onnx"
        onnx.save(networks.synthetic_tree(nodes), big)
        onnx.save(networks.synthetic_tree(60), small)
        pattern = rb"block|stage|layer0|LeakyRelu"
        taken: dict[Path, list[tuple[float, float]]] = {small: [], big: []}
        for number in range(4):
            for model, times in taken.items():
                screen = Screen(model, root / f"{model.stem}{number}")
                times.append((screen.until(pattern, 120), screen.processor_s()))
                if (model, number) != (big, 3):
                    screen.close()
        seconds, processor = (
            [statistics.median(one[place] for one in times) for times in taken.values()] for place in (0, 1)
        )
        print(
            f"first rows after the command: {seconds[1]:.2f} s, a 60-node network: {seconds[0]:.2f} s; in processor "
            f"time {processor[1]:.2f} s and {processor[0]:.2f} s"
        )
        screen.until(re.escape(CompareRuns({}).job_title().encode()), 180)
        for key in (b"j", b"l", b"j", b"l", b"j", b"l", b"l"):
            screen.press(key)
        screen.drain(2)
        for name, key, count in (
            ("cursor down within the page", b"j", 12),
            ("cursor down, page scrolls", b"j", moves),
            ("cursor up within the page", b"k", 12),
        ):
            before, processor_ms, results = screen.processor_s(alone=True), 0.0, []
            for _ in range(count):
                result = screen.press(key)
                if result[2] < CLOCK_BYTES:  # the cursor is at the last row
                    break
                results.append(result)
                processor_ms = 1e3 * (screen.processor_s(alone=True) - before) / len(results)
            assert results, f"no key changes the page: {name}"
            first = [1e3 * one[0] for one in results]
            last = [1e3 * one[1] for one in results]
            size = [float(one[2]) for one in results]
            said = [
                f"{what} median {statistics.median(values):.1f}, 95 % {percentile(values, 0.95):.1f}"
                for what, values in (("first byte ms", first), ("last byte ms", last), ("bytes", size))
            ]
            print(f"{name}: {len(results)} keys; {'; '.join(said)}; processor time {processor_ms:.1f} ms")
        screen.close()
    times = []
    for _ in range(7):
        before = time.perf_counter()
        subprocess.run([sys.executable, "-m", "trt_tui", "--help"], check=True, capture_output=True)
        times.append(time.perf_counter() - before)
    print(f"trt-tui --help: median {statistics.median(times):.2f} s")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=20_000)
    parser.add_argument("--moves", type=int, default=200)
    arguments = parser.parse_args()
    measure(arguments.nodes, arguments.moves)
