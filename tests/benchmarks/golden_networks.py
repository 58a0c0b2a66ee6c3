"""What commands print and write of large networks, compared with files that were written before a change.

    python -m tests.benchmarks.golden_networks FOLDER --write   # before the change
    python -m tests.benchmarks.golden_networks FOLDER           # after it

The networks are ResNet-50 and a BERT encoder of 6 layers (`tests.benchmarks.networks`, which needs torch), and the
files that ``--network MODEL`` names. All get random inputs. Texts are compared as in ``tests/test_golden.py``, and the
exit code is 1 if anything differs. A network takes minutes, so FOLDER lies outside the repository.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.benchmarks import networks
from tests.golden_cases import differences, normalise
from trt_tui.errors import BackendUnavailableError
from trt_tui.module_path import python_command

SAMPLES = ("--samples", "8")
COMMANDS: tuple[tuple[str, ...], ...] = (
    ("inspect", "model.onnx", "--nodes"),
    ("scheme", "model.onnx", "--precision", "int8", "--json", "scheme.json"),
    ("compare", "model.onnx", *SAMPLES, "--json", "compare.json", "--markdown", "compare.md"),
    ("search", "model.onnx", *SAMPLES, "--tolerance", "sqnr>=30", "-o", "found.json", "--markdown", "search.md"),
    ("export", "model.onnx", "--config", "found.json", "--format", "trtexec", "-o", "trtexec.sh"),
    ("export", "model.onnx", "--config", "found.json", "--format", "polygraphy", "-o", "polygraphy.py"),
)
TEXTS = (".json", ".md", ".py", ".sh")


def printed_texts(model: Path) -> dict[str, str]:
    """Returns what the commands print and the texts that they write, by file name."""
    with tempfile.TemporaryDirectory() as folder:
        for path in model.parent.glob(f"{model.name}*"):  # a file of weights lies beside its network
            os.symlink(path.resolve(), Path(folder) / path.name.replace(model.name, "model.onnx", 1)
                       if path == model else Path(folder) / path.name)
        printed = []
        environment = {**os.environ, "COLUMNS": "120", "PYTHONPATH": str(Path(__file__).parents[2])}
        for command in COMMANDS:
            result = subprocess.run(python_command("trt_tui", *command), cwd=folder, env=environment, text=True,
                                    capture_output=True)
            printed.append(f"$ trt-tui {' '.join(command)}\n{result.stdout}{result.stderr}"
                           f"exit code {result.returncode}\n")
        written = {path.name: path.read_text() for path in Path(folder).iterdir() if path.suffix in TEXTS}
    return {"commands.txt": "\n".join(printed), **written}


def check_network(model: Path, golden: Path, write: bool) -> list[str]:
    """Compares the texts of a network with those in a folder, or writes them there; returns the lines that differ."""
    texts = {name: normalise(text) for name, text in printed_texts(model).items()}
    if write:
        shutil.rmtree(golden, ignore_errors=True)
        golden.mkdir(parents=True)
        for name, text in texts.items():
            (golden / name).write_text(text)
        return []
    if not golden.is_dir():
        return [f"{golden} is missing: run with --write before the change"]
    different = [f"{path.name} is no longer written" for path in golden.iterdir() if path.name not in texts]
    for name, text in texts.items():
        before = golden / name
        lines = differences(before.read_text(), text) if before.exists() else ["is new"]
        different += [f"{name}: {line}" for line in lines]
    return different


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--network", type=Path, action="append", default=[])
    parser.add_argument("--write", action="store_true")
    arguments = parser.parse_args()
    models = list(arguments.network)
    if missing := [str(model) for model in models if not model.is_file()]:
        parser.error(f"{', '.join(missing)}: no such file")
    for make in (networks.resnet50, networks.bert6):
        try:
            models.append(make())
        except BackendUnavailableError as error:
            print(f"{make.__name__}: left out, {error.cause}")
    failed = 0
    for model in models:
        lines = check_network(model, arguments.folder / model.stem, arguments.write)
        print(f"{model.stem}: {'written' if arguments.write else f'{len(lines)} differences'}", *lines[:40], sep="\n  ")
        failed += bool(lines)
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
