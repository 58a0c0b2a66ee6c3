"""Command lines with one thing mistyped: a command, an option, a file, a layer, a rule, a count of labels.

    python -m tests.fuzz.mistyped --cases 500 --seed 1

Each case ends with exit code 2, an error on stderr and nothing on stdout; it is no defect of the program. What it
suggests exists, and one slip in a word of `LONG` letters or more is recognised. What is otherwise is printed.
"""

import argparse
import collections
import contextlib
import io
import os
import random
import re
import sys
import tempfile
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import onnx

from tests import networks
from trt_tui.cli.main import main as command_line
from trt_tui.core.moves.keep_rules import KEEP_RULES
from trt_tui.core.network.hierarchy import build_scope_tree, group_titles
from trt_tui.core.network.network import open_network

LONG = 6
LETTERS = "abcdefghijklmnopqrstuvwxyz0123456789_-.ßé漢"
COMMANDS = ("open", "demo", "preflight", "compare", "search", "build", "export", "inspect", "doctor")
FILES = ("network.onnx", "network_v2.onnx", "backbone.onnx", "samples.npz", "samples-test.npz", "metrics.py")
SAMPLES = 40


@dataclass
class Result:
    """How many cases there were of each kind, and what went wrong."""

    looks: collections.Counter = field(default_factory=collections.Counter)
    failures: list[str] = field(default_factory=list)


def slipped(rng: random.Random, word: str) -> str:
    """A word with one slip: a letter lost, doubled, added, changed or put before the one before it."""
    at = rng.randrange(len(word))
    return rng.choice((word[:at] + word[at + 1:], word[:at] + word[at] + word[at:],
                       word[:at] + rng.choice(LETTERS) + word[at:], word[:at] + rng.choice(LETTERS) + word[at + 1:],
                       word[:max(0, at - 1)] + word[at] + word[max(0, at - 1):at] + word[at + 1:]))


def mistyped(rng: random.Random, word: str, known: set[str]) -> str:
    """A word that is none of the known ones: with a slip, or now and then with several."""
    while True:
        typed = word
        for _ in range(rng.choice((1, 1, 1, 2, 4))):
            typed = slipped(rng, typed) or rng.choice(LETTERS)
        if typed not in known and typed.casefold() not in known and not typed.startswith(("-", "/")):
            return typed


class Bench:
    """A folder with what commands need, and the command lines that go wrong in it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        model = networks.small_resnet()
        for name in FILES:
            if name.endswith(".onnx"):
                onnx.save(model, folder / name)
        rng = np.random.default_rng(0)
        self.images = networks.random_images(rng, (SAMPLES, 3, 32, 32))
        for name in FILES:
            if name.endswith(".npz"):
                np.savez(folder / name, image=self.images)
        (folder / "metrics.py").write_text("def score(outputs, labels):\n    return 1.0\n")
        opened = open_network(folder / FILES[0])
        tree = build_scope_tree(opened.layers, opened.groups)
        self.layers = {layer.name for layer in opened.layers} | set(group_titles(tree).values())
        self.nodes = [layer.name for layer in opened.layers]

    # -- what is mistyped: a command line, what was meant, what exists of its kind ------------------------------

    def command(self, rng: random.Random) -> tuple[list[str], str, set[str]]:
        meant = rng.choice(COMMANDS)
        typed = mistyped(rng, meant, {*COMMANDS, *FILES})
        while Path(typed).suffix:  # that is a file
            typed = mistyped(rng, meant, {*COMMANDS, *FILES})
        behind = rng.choice(([], [FILES[0]], ["--help"], [FILES[0], "--data", FILES[3]]))
        return [typed, *behind], meant, {*COMMANDS, *FILES}

    def option(self, rng: random.Random) -> tuple[list[str], str, set[str]]:
        from trt_tui.cli.main import main

        command = rng.choice(("compare", "search", "build", "export", "inspect", "open"))
        known = {text for one in main.get_command(None, command).params for text in (*one.opts, *one.secondary_opts)
                 if text.startswith("--")} | {"--help"}
        meant = rng.choice(sorted(known))
        while True:
            typed = "--" + mistyped(rng, meant[2:], {one[2:] for one in known})
            if "=" not in typed and not any(one.startswith(typed) for one in known):
                return [command, FILES[0], typed], meant, known

    def file(self, rng: random.Random) -> tuple[list[str], str, set[str]]:
        meant = rng.choice(FILES)
        typed = mistyped(rng, meant, set(FILES))
        while "/" in typed or not Path(typed).suffix:
            typed = mistyped(rng, meant, set(FILES))
        if rng.random() < 0.5:
            typed, meant = str(self.folder / typed), str(self.folder / meant)
        if meant.endswith(".onnx"):
            arguments = [*rng.choice((["compare"], ["inspect"], ["open"], ["search"], [])), typed]
        elif meant.endswith(".npz"):
            arguments = [rng.choice(("compare", "search")), FILES[0], "--data", typed]
        else:
            arguments = ["compare", FILES[0], "--data", FILES[3], "--metric", f"{typed}:score"]
        if arguments[0] == "search":
            arguments += ["--tolerance", "sqnr>=20", "-o", "c.json"]
        return arguments, meant, {*FILES, *(str(self.folder / one) for one in FILES)}

    def layer(self, rng: random.Random) -> tuple[list[str], str, set[str]]:
        meant = rng.choice((*self.nodes, *KEEP_RULES))
        return (["compare", FILES[0], "--data", FILES[3], "--layers", "none", "--keep",
                 mistyped(rng, meant, {*self.layers, *KEEP_RULES})], meant, {*self.layers, *KEEP_RULES})

    def labels(self, rng: random.Random) -> tuple[list[str], str, set[str]]:
        off = rng.choice((-1, 1)) * rng.randint(1, max(1, SAMPLES // 20))
        np.savez(self.folder / "labelled.npz", image=self.images, label=np.zeros(SAMPLES + off, np.int64))
        return (["compare", FILES[0], "--data", "labelled.npz", "--layers", "none", "--metric", "metrics.py:score"],
                "", set())


KINDS: dict[str, Callable[[Bench, random.Random], tuple[list[str], str, set[str]]]] = {
    "command": Bench.command, "option": Bench.option, "file": Bench.file, "layer": Bench.layer, "labels": Bench.labels}
OFTEN = ("command", "option", "file", "command", "option", "file", "layer", "labels")
"""What opens a network in a child process takes a second, what does not some milliseconds."""


def ended(arguments: list[str]) -> tuple[int | str | None, str, str]:
    """Exit code, stdout and stderr of a command."""
    out, err = io.StringIO(), io.StringIO()
    code: int | str | None = 0
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            command_line(arguments)
        except SystemExit as stop:
            code = stop.code
    return code, out.getvalue(), err.getvalue()


def suggested(said: str) -> list[str]:
    """What an error asks whether it was meant."""
    found = re.search(r"(?:Did you mean|Possible options:)(?: one of:)? (.+?)\??\)?(?:\n|$)", said)
    return [one.strip(" '\"") for one in re.split(r",\s|\sor\s", found[1])] if found else []


def slip_apart(one: str, other: str) -> bool:
    """Whether two words differ by a letter that is lost, changed, or on the wrong side of the next one."""
    short, long = sorted((one, other), key=len)
    start = len(os.path.commonprefix([short, long]))
    if len(short) < len(long):
        return short[start:] == long[start + 1:]
    return short[start + 1:] == long[start + 1:] or (
        short[start:start + 2] == long[start:start + 2][::-1] and short[start + 2:] == long[start + 2:])


def wrong(arguments: list[str], meant: str, known: set[str], layers: set[str]) -> str:
    """What is wrong with how a command line ended; "" if nothing is. Many layers may be as near as the one meant."""
    code, out, err = ended(arguments)
    if code != 2 or out or "Traceback" in err or "defect" in err or "Error: " not in err:
        return f"exit code {code}, stdout {out[:300]!r}, stderr {err[-2000:]}"
    if strange := [one for one in suggested(err) if one not in known]:
        return f"suggests {strange}, which does not exist: {err}"
    near = [one.removesuffix(":score") for one in arguments]
    if len(Path(meant).stem) >= LONG and any(slip_apart(one, meant) for one in near):
        if meant not in suggested(err) and (meant not in layers or not suggested(err)):
            return f"does not recognise {meant}: {err}"
    return ""


def run(cases: int, seed: int, folder: Path, result: Result) -> None:
    """Goes through so many command lines in a folder, which becomes the current one."""
    os.chdir(folder)
    bench = Bench(folder)
    for case in range(cases):
        rng = random.Random(f"{seed} {case}")
        kind = OFTEN[case % len(OFTEN)]
        arguments, meant, known = KINDS[kind](bench, rng)
        result.looks[kind] += 1
        try:
            said = wrong(arguments, meant, known, bench.layers)
        except Exception:
            said = traceback.format_exc(limit=-3)
        if said:
            result.failures.append(f"case {case} of seed {seed}, {' '.join(arguments)}: {said}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=int, default=500)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    result = Result()
    with tempfile.TemporaryDirectory(prefix="trt-tui-mistyped-") as base:
        os.environ.update(XDG_STATE_HOME=f"{base}/state", XDG_CACHE_HOME=f"{base}/cache")
        run(arguments.cases, arguments.seed, Path(base), result)
    for one in result.failures:
        print(one)
    counts = ", ".join(f"{count} of {what}" for what, count in sorted(result.looks.items()))
    print(f"{arguments.cases} mistyped command lines ({counts}): {len(result.failures)} went wrong")
    sys.exit(bool(result.failures))


if __name__ == "__main__":
    main()
