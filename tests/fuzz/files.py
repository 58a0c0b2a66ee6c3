"""Opens damaged networks by the thousand, and says what did not end as it should.

    nice python -m tests.fuzz.files [--cases N] [--first N] [--compare]

A file opens, or is refused by an error with a cause; anything else (a traceback, a process that dies, over a minute of
work) is a finding, told with the number that makes its file again: ``--first N --cases 1``.
"""

import argparse
import collections
import contextlib
import io
import multiprocessing
import signal
import sys
import tempfile
import traceback
from concurrent.futures import ProcessPoolExecutor, TimeoutError
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path

from tests.fuzz.mutations import damaged

LIMIT_S = 60


def inspected(path: Path) -> str:
    """What `trt-tui inspect` makes of a file: "opened", or "refused: <title>".

    Raises:
        Exception: the defect that was found.
    """
    from trt_tui.core.network.layer_tree import build_scope_tree, find_repeated_blocks, render_tree
    from trt_tui.core.network.network import open_network
    from trt_tui.errors import TrtTuiError

    try:
        network = open_network(path)
    except TrtTuiError as error:
        if not error.cause or not error.next_step:
            raise
        return f"refused: {error.title}"
    tree = build_scope_tree(network.layers, network.groups)
    render_tree(tree, network.shape, show_nodes=True)
    find_repeated_blocks(tree)
    network.build_outline()
    return "opened"


def compared(path: Path) -> str:
    """What `trt-tui compare` makes of a file on random inputs: "compared", or "refused: <first line>".

    Raises:
        AssertionError: with what was printed, where it is no plain error.
    """
    from trt_tui.cli.main import main

    shown, errors = io.StringIO(), io.StringIO()
    arguments = ["compare", str(path), "--samples", "4"]
    try:
        with contextlib.redirect_stdout(shown), contextlib.redirect_stderr(errors):
            main(arguments)
        code: object = 0
    except SystemExit as stop:
        code = stop.code
    text = errors.getvalue()
    if code not in (0, 1, 2) or "Traceback" in text or "defect" in text or code and "Error: " not in text:
        raise AssertionError(f"exit code {code}\n{text[-4000:]}")
    return "compared" if not code else "refused: " + text[text.index("Error: ") + 7 :].splitlines()[0]


def outcome(case: int, folder: Path, *, compare: bool = False) -> tuple[str, str]:
    """How a case ended: "opened", "compared", "refused" or "FOUND", and the title or the traceback."""
    what, content = damaged(case)
    path = folder / "case.onnx"
    path.write_bytes(content)

    def late(*_: object) -> None:
        raise TimeoutError(f"over {LIMIT_S} s")

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(LIMIT_S)
    try:
        said = compared(path) if compare else inspected(path)
    except Exception:
        return "FOUND", f"{what}\n{traceback.format_exc()}"
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
    kind, _, title = said.partition(": ")
    return kind, title


def _alone(case: int, compare: bool) -> tuple[str, str]:
    with tempfile.TemporaryDirectory() as folder:
        return outcome(case, Path(folder), compare=compare)


def _run(first: int, last: int, compare: bool) -> tuple[collections.Counter, list[tuple[int, str]]]:
    """Runs cases in a child, a new one where it dies or hangs."""
    counts: collections.Counter = collections.Counter()
    found: list[tuple[int, str]] = []
    child = None
    for case in range(first, last):
        child = child or ProcessPoolExecutor(1, multiprocessing.get_context("spawn"))
        try:
            kind, text = child.submit(_alone, case, compare).result(2 * LIMIT_S)
        except (BrokenProcessPool, TimeoutError) as error:
            kind, text = "FOUND", f"{damaged(case)[0]}\nthe process died or hung ({type(error).__name__})"
            for process in multiprocessing.active_children():
                process.kill()
            child = None
        counts[kind] += 1
        if kind == "FOUND":
            found.append((case, text))
            print(f"case {case}: {text}", flush=True)
    return counts, found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--cases", type=int, default=1000)
    parser.add_argument("--compare", action="store_true", help="compare each network instead of inspecting it")
    options = parser.parse_args()
    counts, found = _run(options.first, options.first + options.cases, options.compare)
    kinds: dict[str, list[tuple[int, str]]] = {}
    for case, text in found:
        kinds.setdefault(_place(text), []).append((case, text))
    for place, cases in sorted(kinds.items(), key=lambda item: -len(item[1])):
        print(f"{len(cases)} x {place}: cases {[case for case, _ in cases][:8]}")
    print(", ".join(f"{count} {kind}" for kind, count in counts.most_common()))
    return bool(found)


def _place(text: str) -> str:
    """The last line of the program's own code in a traceback, and the error."""
    lines = text.rstrip().splitlines()
    own = [line.strip() for line in lines if "/trt_tui/" in line]
    return f"{own[-1] if own else 'elsewhere'}: {lines[-1][:150]}"


if __name__ == "__main__":
    sys.exit(main())
