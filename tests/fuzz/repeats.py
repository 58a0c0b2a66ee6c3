"""Small files that repeat, nest and double, given to every reader of texts: each is read or refused in time.

    python -m tests.fuzz.repeats --cases 3000 --seed 1

A case that raises anything but an `InputError`, or computes for over `SLOW_S`, is printed with its reader and seed.
"""

import argparse
import collections
import json
import random
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from pathlib import Path

import onnx

from tests import networks
from trt_tui.core.calibration.cache import read_calibration_cache
from trt_tui.core.engines.inspector import read_engine_report, read_layer_listing, read_profile_report
from trt_tui.core.importers.any_config import read_any_config
from trt_tui.core.moves.keep_rules import find_groups_of_rule
from trt_tui.core.network.network import Network, open_network
from trt_tui.errors import InputError
from trt_tui.files.lazy_json import read_lazy_json
from trt_tui.files.reading import MAX_READ_S
from trt_tui.tui import keys

SLOW_S = MAX_READ_S + 2
MAX_CHARACTERS = 400_000

TOKENS = (
    "[ONNX Layer: ",
    "[ONNX Layer: a]",
    "{ForeignNode[",
    "{ForeignNode[a...b]}",
    "]}",
    "] ",
    "] [",
    ":1",
    "_clone_1",
    "_myl1_1",
    "__q",
    "__dq_1",
    "__fp16__q",
    "PWN(",
    " + ",
    ", Inputs: [ { ",
    ", Outputs: [ { Name: a, ",
    " }, { ",
    ", ",
    ", TacticName: ",
    ", Metadata: ",
    ", LayerType: ",
    "\nName: ",
    "\n",
    "\\\n",
    "*",
    "a*",
    "(a+)+",
    "(a|a)*",
    "(.*)*",
    "${a:-",
    "$A",
    "--fp16 ",
    "--layerPrecisions=",
    ":fp32,",
    "'",
    '"',
    "#",
    "&a ",
    "*a ",
    "<<: ",
    "1:",
    "- ",
    "? ",
    "!!",
    "{a: ",
    "[",
    "]",
    "{",
    "}",
    "(",
    ")",
    "x: ",
    "  ",
    "not ",
    "-",
    "lambda: ",
    "a.",
    "f(",
    "if x:\n",
    "Kernel_traits",
    "fully_connected={",
    "\x1e",
    "\\",
    "/",
    "9",
    "0x",
    "Conv_",
    "\xe9",
    "\ud800",
    "Weights: {",
    "nodes_to_exclude",
)


def _script(rng: random.Random) -> str:
    """A Polygraphy script of loops, lists that double, comparisons and patterns."""
    lines, depth = ["def postprocess(network):", "    x = [1, 2]"], 1
    for _ in range(rng.randrange(3, 60)):
        line = rng.choice(
            (
                "x = [x, x]",
                "y = [x, [x, x], 'a']",
                "if x == y: z = x",
                "if x in [y, x]: z = y",
                "for v in [1, 2, 3, 4, 5, 6, 7, 8, 9]:",
                "for layer in network:",
                "for v in x:",
                "if any(v == x for v in x):",
                "if re.match('(a+)+$', layer.name):",
                "if re.search('(a|aa)+$', 'a' * 1):",
                "layer.precision = trt.float32",
                "layer.get_output(-5).dynamic_range = (-1, 1)",
                "x = x[0]",
                "y = not not -1",
            )
        )
        lines.append("    " * depth + line)
        depth = min(depth + 1, 40) if line.endswith(":") else max(1, depth - (rng.random() < 0.2))
        if line.endswith(":"):
            lines.append("    " * depth + "w = 1")
    return "\n".join(lines) + "\n"


def _yaml(rng: random.Random) -> str:
    """Levels of aliases or merge keys, each of those before."""
    text = rng.choice(("a0: &a0 [x]\n", "a0: &a0 {x: 1}\n"))
    for level in range(1, rng.randrange(2, 14)):
        parts = ", ".join([f"*a{level - 1}"] * rng.randrange(1, 10))
        text += f"a{level}: &a{level} [{parts}]\n" if "[" in text[:9] else f"a{level}: &a{level}\n  <<: [{parts}]\n"
    return text + "quantize_mode: int8\n"


def _text(rng: random.Random) -> str:
    """One to four tokens, each repeated or nested."""
    parts = [rng.choice(TOKENS) * rng.choice((1, 19, 900, 5000, 60_000)) for _ in range(rng.randrange(1, 5))]
    return "".join(parts)[:MAX_CHARACTERS]


def readers(network: Network) -> dict[str, Callable[[random.Random, Path], object]]:
    """The readers by name, each with what it is given: a generator of texts and a folder."""

    def file(folder: Path, name: str, text: str) -> Path:
        path = folder / name
        path.write_text(text, encoding="utf-8", errors="surrogatepass")
        return path

    def layer(rng: random.Random) -> str:
        return json.dumps(
            {
                "Layers": [
                    {
                        "Name": _text(rng),
                        "LayerType": "gemm",
                        "Metadata": _text(rng),
                        "Outputs": [],
                        "TacticName": _text(rng),
                        "Inputs": [{"Name": _text(rng), "Datatype": "x"}],
                    }
                ]
            }
        )

    def row(rng: random.Random) -> str:
        tensor = "{ Name: a, Location: Device, Datatype: Half }"
        return (
            f"Layers:\nName: a{_text(rng)}, LayerType: gemm, Inputs: [ {tensor} ], "
            f"Outputs: [ {tensor}{_text(rng)} ], TacticName: {_text(rng)}, Metadata: {_text(rng)}\n"
        )

    def profile(rng: random.Random, folder: Path) -> Path:
        names = [_text(rng) for _ in range(rng.randrange(1, 4))]
        names += [f"{{ForeignNode[{names[0][:20]}{number}]}}" for number in range(rng.choice((0, 9, 20_000)))]
        (folder / "p.graph.json").unlink(missing_ok=True)
        if rng.random() < 0.5:
            file(folder, "p.graph.json", layer(rng))
        return file(
            folder, "p.profile.json", json.dumps([{"count": 1}, *({"name": name, "averageMs": 0.1} for name in names)])
        )

    patterns = ("(a+)+$", "(a|aa)*$", "a*" * 19 + "$", "(.*)*x", "(?=(a+)+$)")
    return {
        "script": lambda rng, folder: read_any_config(file(folder, "s.py", _script(rng)), network),
        "script of tokens": lambda rng, folder: read_any_config(file(folder, "s.py", "x = " + _text(rng)), network),
        "call": lambda rng, folder: read_any_config(
            file(folder, "s.py", f"NAMES = {_text(rng)}\nquantize(nodes_to_exclude=[NAMES, {_text(rng)}])\n"), network
        ),
        "YAML": lambda rng, folder: read_any_config(file(folder, "a.yaml", _yaml(rng)), network),
        "YAML of tokens": lambda rng, folder: read_any_config(file(folder, "a.yaml", "a: " + _text(rng)), network),
        "command": lambda rng, folder: read_any_config(
            file(folder, "a.sh", "A=b\ntrtexec --fp16 --layerPrecisions=" + _text(rng) + ":fp32"), network, force=True
        ),
        "lists": lambda rng, folder: read_any_config(
            file(
                folder,
                "a.json",
                json.dumps(
                    {"quantize_mode": "int8", "nodes_to_exclude": [rng.choice(patterns), "a" + _text(rng)[:900]]}
                ),
            ),
            network,
        ),
        "config": lambda rng, folder: read_any_config(file(folder, "p.json", '{"format": ' + _text(rng)), network),
        "layers": lambda rng, _: read_engine_report(layer(rng), network),
        "listing": lambda rng, _: read_layer_listing(row(rng), network),
        "profile": lambda rng, folder: read_profile_report(profile(rng, folder), network),
        "cache": lambda rng, folder: read_calibration_cache(
            file(folder, "c", "TRT-8601-EntropyCalibration2\n" + _text(rng))
        ),
        "dump": lambda rng, folder: read_lazy_json(file(folder, "d.json", _text(rng)), "d.json"),
        "keys": lambda rng, folder: keys.read_key_file(file(folder, "k.json", _text(rng))),
        "rule": lambda rng, _: find_groups_of_rule(network, f"/{rng.choice(patterns)}/"),
    }


def run(cases: int, seed: int, folder: Path) -> tuple[collections.Counter, list[str]]:
    """Gives each reader texts in turn; returns how many were read and refused, and what went wrong."""
    model = networks.mlp()
    model.graph.node[0].name = "a" * 40 + "b"
    onnx.save(model, folder / "net.onnx")
    every = list(readers(open_network(folder / "net.onnx")).items())
    counts: collections.Counter = collections.Counter()
    wrong: list[str] = []
    for case in range(cases):
        name, read = every[case % len(every)]
        since, outcome = time.thread_time(), "read"
        try:
            read(random.Random(f"{seed} {case}"), folder)
        except InputError:
            outcome = "refused"
        except BaseException:
            outcome = "wrong"
            wrong.append(f"{name}, case {case} of seed {seed}:\n{traceback.format_exc(limit=-4)[-3000:]}")
        if (took := time.thread_time() - since) > SLOW_S:
            outcome = "wrong"
            wrong.append(f"{name}, case {case} of seed {seed}: took {took:.0f} s")
        counts[f"{name}, {outcome}"] += 1
    return counts, wrong


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--cases", type=int, default=3000)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        counts, wrong = run(arguments.cases, arguments.seed, Path(folder))
    for name, count in sorted(counts.items()):
        print(f"{count:7} {name}")
    for one in wrong:
        print(one)
    print(f"{arguments.cases} texts that repeat, {len(wrong)} went wrong")
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
