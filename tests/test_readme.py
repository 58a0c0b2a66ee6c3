"""README and the pages beside the code: output is as shown, commands are accepted, links lead to existing files."""

import contextlib
import inspect
import re
import shlex
import shutil
import tomllib
from pathlib import Path
from types import SimpleNamespace

import click
import numpy as np
import onnx
import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from polygraphy.tools._main import main as polygraphy

from tests import ROOT, networks
from tests.test_workflow import verify
from trt_tui import demo
from trt_tui.cli.main import main
from trt_tui.cli.usage import refuse_ineffective_options
from trt_tui.core.builder_options import builder_option_specs
from trt_tui.core.calibration.calibration import RANGE_METHODS
from trt_tui.core.engines import fallback_ladder, group_implementations
from trt_tui.core.exporters.registry import EXPORT_FORMATS
from trt_tui.core.guards import guards
from trt_tui.core.measure import error_metrics, simulation, stages, target
from trt_tui.core.measure.error_metrics import ERROR_METRICS
from trt_tui.core.measure.simulation_limits import GAP_PATTERNS
from trt_tui.core.moves.keep_rules import KEEP_RULES
from trt_tui.core.search import SEARCH_METHODS
from trt_tui.errors import ExitCode
from trt_tui.tui import keys
from trt_tui.tui.state import columns

TEXT = (ROOT / "README.md").read_text()
PAGES = {
    path.relative_to(ROOT).as_posix(): path.read_text()
    for path in (
        ROOT / "README.md",
        *sorted((ROOT / "trt_tui").rglob("*.md")),
        *sorted((ROOT / "tests").rglob("README.md")),
    )
}
WORKFLOW = "trt_tui/core/exporters/WORKFLOW.md"
NUMPY = re.search(r"```python\n(.*?)```", TEXT, re.S)[1]
PRINTED = re.search(r"```\n\$ (trt-tui compare .*?)\n(.*?)```", TEXT, re.S)
ROWS = re.findall(r"^\| ([^|]+) \| `trt-tui (.*?)` \|$", TEXT, re.M)

METRIC = """
def f1(outputs, labels):
    return 100.0 * float((next(iter(outputs.values())).argmax(1) == labels["labels"]).mean())
"""

OPTIONS_OF_OTHER_TOOLS = {
    "--calib",
    "--exportLayerInfo",
    "--exportOutput",
    "--exportProfile",
    "--fp16",
    "--int8",
    "--loadEngine",  # trtexec
    "--layerPrecisions",
    "--profilingVerbosity",
    "--profile",
    "--minShapes",
    "--optShapes",
    "--maxShapes",
    *(spec.option for spec in builder_option_specs().values()),
    "--load-outputs",
    "--onnx-outputs",  # polygraphy
    "--high_precision_dtype",
    "--nodes_to_exclude",  # ModelOpt
    "--onnxrt",
    "--reduce",  # verify.sh and run.sh of exported folders
    "--command",
    "--control-flow",
    "--pieces",
    "--resume",  # programs of tests/benchmarks
}


def find_table(page: str, first_title: str) -> list[list[str]]:
    """Returns the cells of the rows of a page's table, by the title of its first column."""
    match = re.search(rf"^\| {re.escape(first_title)} \|[^\n]*\n\| ?-[^\n]*\n((?:\|[^\n]*\n)+)", PAGES[page], re.M)
    assert match, (page, first_title)
    return [
        [cell.strip() for cell in re.split(r" \|(?: |$)", line.removeprefix("| "))] for line in match[1].splitlines()
    ]


def find_names(page: str, first_title: str) -> list[str]:
    """Returns the names in code spans in the first column of a table."""
    return [name for row in find_table(page, first_title) for name in re.findall(r"`([^`]+)`", row[0])]


def find_commands() -> list[tuple[str, str]]:
    """Returns the page and the text of each command line of this program, in code spans and in code blocks."""
    commands = []
    for page, text in PAGES.items():
        blocks = re.findall(r"```\w*\n(.*?)```", text, re.S)
        lines = [line for block in blocks for line in block.replace("\\\n", " ").splitlines()]
        spans = re.findall(r"(?<!`)`([^`\n]+)`(?!`)", re.sub(r"```.*?```", "", text, flags=re.S))
        commands += [
            (page, match[1])
            for line in [*lines, *spans]
            if (match := re.match(r"(?:\$ |ttyd .* )?(trt-tui(?: .*)?)$", line))
        ]
    return list(dict.fromkeys(commands))


def slugs(text: str) -> list[str]:
    """Returns the anchors of a page's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.*)$", re.sub(r"```.*?```", "", text, flags=re.S), re.M)
    return [re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings]


def figures(line: str) -> list[float]:
    return [float(one) for one in re.findall(r"(?<![\w.])\d*\.?\d+", line)]


def test_compare_prints_what_is_shown(run, monkeypatch):
    monkeypatch.chdir(Path(demo.__file__).parent)
    code, out, err = run(*shlex.split(PRINTED[1], comments=True)[1:], "--layers", "none")  # they stand below
    assert code == 0, err
    shown = PRINTED[2].splitlines()
    for one, other in zip(shown, out.splitlines()[: len(shown)], strict=True):
        one, other = (re.sub(r"Runtime [\d.]+ \w+", "Runtime", line) for line in (one, other))
        assert re.sub(r"~?[\d.#±]+", "", one).split() == re.sub(r"~?[\d.#±]+", "", other).split()
        assert figures(other) == pytest.approx(figures(one), rel=0.1, abs=1)


def hold_shown_lines(shown: list[str], printed: str) -> None:
    """Checks that a command printed each shown line: the same words, and about the same values."""

    def words(line: str) -> list[str]:
        return re.sub(
            r"runner-\S+", "runner", re.sub(r"~?[\d.#±]+(?:e\d+)?", "", re.sub(r"Runtime [\d.]+", "", line))
        ).split()

    for line in shown:
        alike = [other for other in printed.splitlines() if words(other) == words(line)]
        assert (
            any(figures(other) == pytest.approx(figures(line), rel=0.1, abs=1) for other in alike)
            or "runner" in line
            and alike
        ), (line, alike, printed)


@pytest.mark.onnxruntime("1.31")
def test_the_steps_of_the_workflow_print_what_is_shown(run, tmp_path, monkeypatch):
    """The whole page in its order, with Polygraphy itself; only what needs a GPU has no prompt and is not executed."""
    for file in (demo.network_path(), demo.samples_path(), demo.calibration_path()):
        shutil.copy(file, tmp_path)
    monkeypatch.chdir(tmp_path)
    exec(re.search(r"```python\n(.*?)```", PAGES[WORKFLOW], re.S)[1], {})
    commands = re.findall(r"^\$ (.*)\n((?:(?!\$ |```).*\n)*)", PAGES[WORKFLOW], re.M)
    codes = []
    for command, shown in commands:
        program, *arguments = shlex.split(command)
        if program == "trt-tui":
            code, out, err = run(*arguments)
            printed = out + err
        elif program == "polygraphy":
            code, printed = int(run_polygraphy(arguments, monkeypatch)), ""
        else:
            code, printed = verify(Path("bundle"))
        hold_shown_lines(shown.splitlines(), printed)
        codes.append((program, code))
    assert codes == [
        ("polygraphy", 0),
        ("trt-tui", 0),
        ("polygraphy", 0),
        ("trt-tui", 1),
        ("trt-tui", 1),
        ("trt-tui", 0),
        ("trt-tui", 0),
        ("sh", 0),
        ("polygraphy", 0),
        ("trt-tui", 0),
    ]
    assert Path("image.bin").stat().st_size == 8 * 96 * 96 * 4


def run_polygraphy(arguments: list[str], monkeypatch: pytest.MonkeyPatch) -> bool:
    monkeypatch.setattr("sys.argv", ["polygraphy", *arguments])
    return bool(polygraphy())


def read_project() -> dict:
    return tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def requirements(extra: str) -> list[Requirement]:
    """What a checkout needs with an extra, as its metadata say."""
    project = read_project()
    return [*map(Requirement, project["dependencies"]), *map(Requirement, project["optional-dependencies"][extra])]


@pytest.mark.parametrize("python", ["3.11", "3.12", "3.13", "3.14"])
@pytest.mark.parametrize("extra", ["cpu", "test"])
def test_the_readmes_commands_install_one_tested_version_of_each_requirement(extra, python):
    lines = (ROOT / "tests" / "constraints.txt").read_text().splitlines()
    pins = [Requirement(line) for line in lines if not line.startswith("#")]
    pinned = {}
    for pin in pins:
        if pin.marker is None or pin.marker.evaluate({"python_version": python}):
            assert re.fullmatch(r"==[^*,]+", str(pin.specifier)) and canonicalize_name(pin.name) not in pinned, pin
            pinned[canonicalize_name(pin.name)] = str(pin.specifier).removeprefix("==")
    for one in requirements(extra):
        assert pinned[canonicalize_name(one.name)] in one.specifier, one
    (command,) = (line for line in TEXT.splitlines() if f"'.[{extra}]'" in line and "-m venv" in line)
    assert " -c tests/constraints.txt " in command


def test_the_readme_names_every_extra():
    assert sorted(find_names("README.md", "extra")) == sorted(read_project()["optional-dependencies"])


@pytest.fixture(scope="module")
def named_files(tmp_path_factory):
    """A folder with what the README's commands name; its samples are made by the README's lines."""
    folder = tmp_path_factory.mktemp("named")
    with contextlib.chdir(folder):
        write_named_files()
    return folder


def write_named_files():
    rng = np.random.default_rng(0)
    dataset = [SimpleNamespace(x=rng.random((3, 32, 32), dtype=np.float32), label=at % 10) for at in range(16)]
    exec(NUMPY, {"dataset": dataset, "preprocess": lambda one: one.x})
    model = networks.small_resnet()
    for name in ("model.onnx", "quantized.onnx", "fp32.onnx"):
        onnx.save(model, name)
    for name in ("onnxruntime.npz", "tensorrt.npz"):
        np.savez(name, **{model.graph.output[0].name: np.ones((16, 10), np.float32)})
    Path("metric.py").write_text(METRIC)
    Path("trtexec.sh").write_text("trtexec --onnx=model.onnx --fp16 --saveEngine=model.plan\n")
    Path("production.plan").write_bytes(b"no engine")


@pytest.fixture
def folder(named_files, tmp_path, monkeypatch):
    """A copy of these files, in the current folder."""
    shutil.copytree(named_files, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(("trouble", "command"), ROWS)
def test_each_trouble_has_a_command_that_is_taken(run, folder, trouble, command):
    code, _, err = run(*shlex.split(command))
    if "--engine" in command:
        assert code in (2, 3) and "No such option" not in err  # there is no engine, and here nothing that loads one
        return
    assert code == 0, err
    assert not re.search("-o (.*)", command) or Path(shlex.split(command)[-1]).exists()
    shutil.rmtree("bundle", ignore_errors=True)


def test_the_readme_has_a_command_for_each_trouble():
    assert len(ROWS) == 7


@pytest.mark.parametrize(("page", "command"), find_commands())
def test_each_command_line_is_taken(folder, page, command):
    arguments = [word.replace("COMMAND", "compare") for word in shlex.split(command, comments=True)[1:]]
    if len(arguments) == 1 and arguments[0] in main.commands:
        return  # a command by its name alone
    for name in ("scenes.onnx", "first.json", "second.json", "framework.json", "engine.json"):
        Path(name).touch()
    try:
        with main.make_context("trt-tui", list(arguments)) as context:
            name, subcommand, rest = main.resolve_command(context, [*context._protected_args, *context.args])
            with subcommand.make_context(name, rest, parent=context):
                refuse_ineffective_options()
    except click.exceptions.NoArgsIsHelpError:
        assert not arguments
    except click.exceptions.Exit as stop:
        assert stop.exit_code == 0 and "--help" in arguments


@pytest.mark.parametrize("page", PAGES)
def test_each_option_exists(page):
    options = {
        option
        for command in main.commands.values()
        for parameter in command.params
        for option in (*parameter.opts, *parameter.secondary_opts)
    }
    named = {
        option
        for span in re.findall(r"`([^`\n]+)`", PAGES[page])
        if not span.startswith(("python", "pytest"))
        for option in re.findall(r"(?<![\w-])--[a-zA-Z][\w-]*", span)
    }
    assert not sorted(named - options - OPTIONS_OF_OTHER_TOOLS - {"--help"})


@pytest.mark.parametrize("page", PAGES)
def test_each_link_leads_to_a_file_and_its_heading(page):
    for link in re.findall(r"\]\(([^)\s]+)\)", PAGES[page]):
        if re.match(r"\w+://", link):
            continue
        name, _, anchor = link.partition("#")
        path = ((ROOT / page).parent / name).resolve() if name else ROOT / page
        assert path.is_file(), link
        assert not anchor or anchor in slugs(path.read_text()), link


def test_the_readme_links_to_each_page():
    links = re.findall(r"\]\(([^)#\s]+)", TEXT)
    assert {*PAGES} - {"README.md"} <= {*links}


@pytest.mark.parametrize("page", [page for page in PAGES if page != "README.md"])
def test_each_file_of_the_program_that_a_page_names_exists(page):
    names = {path.name for folder in ("trt_tui", "tests", "screenshots") for path in (ROOT / folder).rglob("*")}
    folders = "core|backends|cluster|jobs|session|tui|cli|files|demo|tests|trt_tui|screenshots"
    named = re.findall(rf"`((?:{folders})/[\w/.-]+|\w+\.py)`", PAGES[page])
    outside = {"build.py", "coco_map.py", "fix.py", "load.py", "loader.py", "metric.py"}
    for name in set(named) - outside:
        assert (ROOT / name).exists() or (ROOT / "trt_tui" / name).exists() or "/" not in name and name in names, name
    for module in re.findall(r"`(?:python -m )?tests\.benchmarks\.(\w+)", PAGES[page]):
        assert module == "NAME" or (ROOT / "tests" / "benchmarks" / f"{module}.py").is_file(), module


# -- values and names that the program has too ------------------------------------------------------------------------

BENCHMARKS, SCREEN, MEASURE = "tests/benchmarks/README.md", "trt_tui/tui/README.md", "trt_tui/core/measure/README.md"


def test_the_known_gaps_are_those_of_the_program():
    assert [row[:3] for row in find_table(BENCHMARKS, "pattern") if row[1].endswith(" dB")] == [
        [pattern.text, f"{pattern.gap_db:.1f} dB", pattern.measured_on] for pattern in GAP_PATTERNS
    ]


def test_each_key_of_the_main_screen_is_listed():
    shown = {keys.key_text(name) for names in keys.KEYS.values() for name in names if "+" not in name}
    assert {*find_names(SCREEN, "keys")} == shown
    assert {*find_names("README.md", "key")} <= shown


@pytest.mark.parametrize("page", ["README.md", SCREEN])
def test_each_column_of_the_layer_list_has_its_title(page):
    source = inspect.getsource(columns)
    titles = find_names(page, "column")
    assert titles and all(title in source for title in titles)


def test_lists_of_names_are_those_of_the_program():
    assert {*find_names("trt_tui/core/data/README.md", "guard")} == {guard.name for guard in guards.GUARDS}
    assert {*find_names("trt_tui/core/data/README.md", "`--calib-method`")} == {*RANGE_METHODS}
    assert {*find_names("trt_tui/core/moves/README.md", "rule")} - {"/regex/"} == {*KEEP_RULES}
    assert {*find_names("trt_tui/core/search/README.md", "`--method`")} == {*SEARCH_METHODS}
    assert {*find_names("trt_tui/core/exporters/README.md", "`--format`")} == {*EXPORT_FORMATS}
    assert {*find_names("README.md", "format")} == {*EXPORT_FORMATS}
    assert {row[0] for row in find_table("trt_tui/cli/README.md", "exit code")} == {str(int(code)) for code in ExitCode}
    targets = " ".join(find_names(MEASURE, "target"))
    assert all(re.search(rf"\b{name}[<>]=", targets) for name in ERROR_METRICS)


def test_the_marks_of_previews_are_those_of_the_program():
    marks = find_names("trt_tui/backends/README.md", "text")
    assert {
        group_implementations.NO_EFFECT,
        group_implementations.BREAKS_MHA,
        group_implementations.STANDALONE_QDQ,
    } <= {*marks}


def test_the_build_attempts_have_the_titles_of_reports():
    _, *titles = fallback_ladder.ATTEMPT_TITLES.values()
    assert find_names("trt_tui/backends/README.md", "attempt") == titles


@pytest.mark.parametrize(
    ("page", "sentence", "value"),
    [
        ("README.md", "needs at least {} samples", error_metrics.MIN_SAMPLES),
        (MEASURE, "at most {} dB larger, and", stages.MAX_PRODUCTION_GAP_DB),
        (MEASURE, "at least {} dB nearer", stages.MIN_COMMON_ERROR_GAP_DB),
        ("README.md", "because fewer than {} samples calibrate", guards.MIN_CALIBRATION_SAMPLES),
        ("README.md", "an SQNR of at least {} dB", target.DEFAULT_SQNR_DB),
        ("README.md", "classifiers with {} or more classes", target.MIN_AGREEMENT_CLASSES),
        (MEASURE, "if at least {} samples were measured", error_metrics.MIN_SAMPLES),
        (MEASURE, "the result is PASS with {} samples or more", target.MIN_SAMPLES_OF_MAXIMUM),
        (MEASURE, "less than {} dB of its energy", simulation.MAX_REPEAT_ERROR_DB),
        (MEASURE, "with {} calls of the metric", error_metrics.METRIC_RESAMPLE_COUNT),
    ],
)
def test_a_sentence_has_the_value_of_the_program(page, sentence, value):
    assert sentence.format(f"{value:g}") in " ".join(PAGES[page].split())
