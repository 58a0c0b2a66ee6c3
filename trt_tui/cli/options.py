"""The options that commands share, each defined once, with its heading in ``--help``.

The headings are click's own help sections. The alternatives have drawbacks: click-option-group adds pseudo options to
the real options, cloup replaces all decorators of click, and rich-click imports rich for every ``--help``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import fields, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

import click
from click.shell_completion import CompletionItem

from trt_tui.cli.output_files import check_command_files, check_new_calib_cache, writes_calib_cache
from trt_tui.cli.usage import (
    find_removed_option_error,
    refuse_ineffective_options,
    refuse_removed_metric,
    resolve_stdout_aliases,
)
from trt_tui.core.builder_options import BuilderOptions
from trt_tui.core.precision import REQUESTABLE, Precision
from trt_tui.errors import InputError, TrtTuiError
from trt_tui.files.reading import missing_file_error
from trt_tui.formatting import RUN_TITLES, escape_hidden_characters

if TYPE_CHECKING:
    from trt_tui.options import Options

FunctionT = TypeVar("FunctionT", bound=Callable[..., Any])
Decorator: TypeAlias = Callable[[Any], Any]
"""The return value of `click.option`: a decorator that adds an option to a function that becomes a command."""

CONTEXT_SETTINGS = {"help_option_names": ["-h", "--help"], "max_content_width": 100}

MAX_WORKERS = 256
MAX_SAMPLES, MAX_BATCH, MAX_SEED = 10**9, 1 << 20, (1 << 63) - 1

FREQUENT = "Frequent options"
HELP_HEADINGS = (FREQUENT, "Data", "Config", "Judging", "Search", "Stages", "TensorRT", "Workers", "Output")
"""The headings of ``--help`` in their order. Options without a heading come last."""


class Option(click.Option):
    """A command-line option with its heading in ``--help``."""

    def __init__(self, *args: Any, heading: str, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.heading = heading


class Command(click.Command):
    """A command with headings in its ``--help``. It also knows the options of earlier releases.

    Before it runs, it refuses options without an effect, and files that it cannot write or that are also inputs. The
    files that it writes are its argument ``written_paths``.
    """

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parses the arguments as click does. The error for a removed option names the way round."""
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            raise find_removed_option_error(ctx.info_name or "", error.option_name) or error from None

    def invoke(self, ctx: click.Context) -> Any:
        refuse_ineffective_options()
        if ctx.params.keys() & {"model", "first"}:
            resolve_stdout_aliases(ctx.params)
            ctx.params["written_paths"] = check_command_files(ctx.info_name or "", ctx.params)
        return super().invoke(ctx)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Writes a section of ``--help`` for each heading that has options."""
        sections: dict[str, list[tuple[str, str]]] = {heading: [] for heading in (*HELP_HEADINGS, "Other options")}
        for parameter in self.get_params(ctx):
            if isinstance(parameter, click.Option) and (record := parameter.get_help_record(ctx)) is not None:
                sections[parameter.heading if isinstance(parameter, Option) else "Other options"].append(record)
        for heading, records in sections.items():
            if records:
                with formatter.section(heading):
                    formatter.write_dl(records)


def make_option_check_callback(
    check_text: Callable[[str], object],
) -> Callable[[click.Context, click.Parameter, Any], Any]:
    """Returns a callback that checks each text of an option while click parses the command line.

    Click parses parameters in the order in which they were typed, and reports missing parameters last. The first wrong
    value is therefore reported first.

    Args:
        check_text: Raises an `InputError` for an invalid text.
    """

    def check_value(ctx: click.Context, parameter: click.Parameter, value: Any) -> Any:
        if not ctx.resilient_parsing:
            for text in () if value is None else (value,) if isinstance(value, str) else value:
                check_text(text)
        return value

    return check_value


def validate_target_text(text: str) -> None:
    """Raises an `InputError` if a text is not a valid target."""
    from trt_tui.core.measure.target import parse_target

    parse_target(text)


_check_target_options = make_option_check_callback(validate_target_text)


def _join_target_options(ctx: click.Context, parameter: click.Parameter, texts: Sequence[str]) -> str | None:
    """Returns the targets of a repeated option as one text; None without the option. Refuses invalid targets."""
    from trt_tui.session.state import TOLERANCE_SEPARATOR

    return TOLERANCE_SEPARATOR.join(_check_target_options(ctx, parameter, texts)) or None


def _validate_release_text(text: str) -> None:
    """Raises an `InputError` if a text is not a valid TensorRT release."""
    from trt_tui.core.network.known_defects import parse_release

    parse_release(text)


def require_model_file(path: str) -> None:
    """Raises an `InputError` if the file of a network, or of a dump instead of a network, does not exist."""
    from trt_tui.core.data.tensor_files import split_dump_spec

    if not Path(path).exists() and not split_dump_spec(path)[0].exists():
        raise missing_file_error(f"{path} does not exist", path)


def complete_files(ctx: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Returns the completion that makes a shell complete file names."""
    return [CompletionItem(incomplete, type="file")]


def complete_layers(ctx: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
    """Returns the completions of a keep rule: rule names, and the layers of the network named earlier on the command
    line.

    The network is read in this process, with the limits and checks of the background process and without data and
    scripts. A shell starts a process for each completion, so a file that crashes this process does no harm. A further
    process would take another second. Names that a shell or a terminal could misread are omitted.
    """
    from trt_tui.core.moves.keep_rules import KEEP_RULES
    from trt_tui.core.network.model_editing import assign_node_names
    from trt_tui.core.network.model_file import read_model

    names = list(KEEP_RULES)
    # click does not parse arguments before an unfinished option.
    model = ctx.params.get("model") or next(iter(ctx.args), None)
    with suppress(TrtTuiError, OSError):
        if model is not None:
            graph = read_model(Path(model))[0].graph
            assign_node_names(graph)
            names += [node.name for node in graph if node.name and escape_hidden_characters(node.name) == node.name]
    return [name for name in names if name.startswith(incomplete)]


def option_under_heading(help_heading: str, *args: Any, **kwargs: Any) -> Decorator:
    """Returns the decorator of an option with a heading in ``--help``. The arguments are those of `click.option`."""
    return click.option(*args, cls=Option, heading=help_heading, **kwargs)


def file_path_option(help_heading: str, *args: Any, **kwargs: Any) -> Decorator:
    """Returns the decorator of an option that names a file, which shells complete."""
    return option_under_heading(help_heading, *args, shell_complete=complete_files, **kwargs)


_data_option, _config_option, _judging_option, _tensorrt_option = (
    partial(option_under_heading, name) for name in ("Data", "Config", "Judging", "TensorRT")
)

CALIB_CACHE_OPTION = file_path_option(
    "Data",
    "--calib-cache",
    metavar="FILE",
    help="Ranges of a TensorRT calibration cache; a new FILE is written after calibration.",
)

DATA_OPTIONS = (
    file_path_option(
        FREQUENT,
        "--data",
        metavar="D",
        help="Samples: .npz, a folder, Polygraphy's JSON, or a script. Without: random inputs.",
    ),
    file_path_option(
        FREQUENT, "--calib-data", metavar="D", help="Samples to calibrate on. Without: every fourth batch of --data."
    ),
    _data_option(
        "--calib-method",
        metavar="METHOD",
        default="minmax",
        show_default=True,
        type=click.Choice(["minmax", "percentile", "entropy", "mse"]),
        help="minmax, percentile, entropy or mse.",
    ),
    CALIB_CACHE_OPTION,
    _data_option(
        "--shapes",
        multiple=True,
        metavar="NAME:MIN:OPT:MAX",
        help="Shapes of a dynamic input, like x:1x3:4x3:8x3; or a single shape, x:4x3.",
    ),
    _data_option("--samples", metavar="N", type=click.IntRange(1, MAX_SAMPLES), help="Use at most N samples."),
    _data_option("--batch", metavar="N", type=click.IntRange(1, MAX_BATCH), help="Batch size, if left open."),
)
"""The options of input data, for commands that calibrate or measure accuracy."""

SEED_OPTIONS = (
    _data_option(
        "--seed",
        metavar="N",
        default=0,
        show_default=True,
        type=click.IntRange(0, MAX_SEED),
        help="Seed of random inputs.",
    ),
)

REFERENCE_OPTIONS = (
    file_path_option(
        "Judging",
        "--reference",
        metavar="FILE",
        help="Errors against outputs of a framework, or another network, in place of FP32.",
    ),
)
"""The option of the reference that errors are computed against."""

CONFIG_OPTION = file_path_option(
    FREQUENT,
    "--config",
    "config_path",
    metavar="FILE",
    help="Start from a precision.json, or settings of trtexec, Polygraphy or ModelOpt.",
)
FORCE_OPTION = _config_option("--force", is_flag=True, help="Accept a config of another network structure.")

CONFIG_OPTIONS = (
    CONFIG_OPTION,
    FORCE_OPTION,
    _config_option(
        "--other",
        metavar="PRECISION",
        default="fp16",
        show_default=True,
        type=click.Choice(["fp32", "fp16", "bf16"]),
        help="Around quantized layers: fp32, fp16 or bf16.",
    ),
    _config_option(
        "--keep",
        multiple=True,
        metavar="RULE[=fp16]",
        shell_complete=complete_layers,
        help="Keep layers in FP32, or FP16, by rule: layernorm, softmax, embeddings, attention, head, ends, indices, "
        "/REGEX/, a name.",
    ),
    _config_option(
        "--range",
        "tensor_ranges",
        multiple=True,
        metavar="NAME=RANGE",
        help="A range like 2.5, mse, p99.9 or top5-mean of a tensor, a scope or a 'pattern*'.",
        callback=make_option_check_callback(lambda text: _parse_tensor_ranges([text])),
    ),
    _config_option("--tf32", is_flag=True, help="Let FP32 layers use TF32."),
)
"""The options that decide the precision of each layer."""

TARGET_OPTIONS = (
    file_path_option(
        FREQUENT,
        "--metric",
        metavar="FILE.py:FUNCTION",
        help="(outputs, labels) -> float or a mapping.",
        callback=make_option_check_callback(refuse_removed_metric),
    ),
    _judging_option(
        "--judge", multiple=True, metavar="TENSOR[SLICE][@MASK]", help="A judged output. Without: all float outputs."
    ),
    option_under_heading(
        FREQUENT,
        "--target",
        metavar="TEXT",
        multiple=True,
        help="Like metric>=base-1%, metric[*]>=base-2%, sqnr>=20, cosine>=0.999 or agreement>=0.99.",
        callback=_join_target_options,
    ),
)
"""The options of judged outputs, metric and targets."""

JUDGING_OPTIONS = (
    *TARGET_OPTIONS,
    _judging_option("--exact", is_flag=True, help="Measure the shares of layers on all samples."),
    _judging_option(
        "--judge-at",
        metavar="min|max",
        multiple=True,
        type=click.Choice(["min", "max"]),
        help="Also judge engines at this shape of the profile.",
    ),
    _judging_option(
        "--builds",
        default=1,
        show_default=True,
        type=click.IntRange(1, 20),
        metavar="N",
        help="Build each config N times; the worst engine counts.",
    ),
)
"""The options of measurements: judged outputs, metric, targets, shares and engines."""

BUILDER_OPTIONS = (
    _tensorrt_option(
        "--backend",
        metavar="NAME",
        default="auto",
        show_default=True,
        type=click.Choice(["auto", "onnxruntime", "tensorrt", "tensorrt-rtx"]),
        help="auto, onnxruntime, tensorrt or tensorrt-rtx.",
    ),
    _tensorrt_option("--weak", is_flag=True, help="Build with layer constraints (TensorRT up to 10)."),
    _tensorrt_option("--strict", is_flag=True, help="Build engines as requested or not at all."),
    _tensorrt_option(
        "--compute-capability",
        metavar="8.9",
        help="TensorRT-RTX: the GPU to build for.",
        callback=make_option_check_callback(lambda text: _parse_compute_capability(text)),
    ),
)
"""The options that choose the backend that builds engines, and the kind of build."""


def make_release_option(help_text: str, required: bool = False) -> Decorator:
    """Returns the decorator of ``--for``, which names the TensorRT release that engines are built with."""
    return _tensorrt_option(
        "--for",
        "tensorrt_release",
        metavar="RELEASE",
        help=help_text,
        required=required,
        callback=make_option_check_callback(_validate_release_text),
    )


release_option = make_release_option("Name the known defects of a TensorRT release, like 10.14 or rtx1.5.")
"""The option of the release, for commands that name its known defects."""

PREVIEW_OPTIONS = (_tensorrt_option("--no-preview", is_flag=True, help="Turn previews of TensorRT-RTX off."),)
"""The option of previews, which a builder makes without a GPU."""


def _read_trtexec_arguments(ctx: click.Context, parameter: click.Parameter, texts: Sequence[str]) -> BuilderOptions:
    from trt_tui.core.importers.commands import read_builder_options

    return BuilderOptions() if ctx.resilient_parsing else read_builder_options(" ".join(texts))


PRODUCTION_OPTIONS = (
    _tensorrt_option(
        "--trtexec",
        "production",
        multiple=True,
        metavar="ARGS",
        callback=_read_trtexec_arguments,
        help="Builder options of trtexec, like '--refit --memPoolSize=workspace:512'.",
    ),
)
"""The option of the TensorRT builder."""

ORT_OPERATOR_OPTIONS = (
    file_path_option(
        "Data", "--ort-ops", multiple=True, metavar="LIB.so", help="Operators for ONNX Runtime. Their code runs."
    ),
)
"""The option of libraries of ONNX Runtime."""

LIBRARY_OPTIONS = (
    file_path_option(
        "TensorRT", "--plugins", multiple=True, metavar="LIB.so", help="A library of plugins. Its code runs."
    ),
    *ORT_OPERATOR_OPTIONS,
)
"""The options of libraries with operators that neither ONNX nor the runtimes have."""


def _parse_runs(ctx: click.Context, parameter: click.Parameter, text: str) -> tuple[str, ...]:
    runs = tuple(dict.fromkeys(run.strip() for run in text.split(","))) if text else ()
    precisions = [run for run in RUN_TITLES if run != "config"]
    if unknown := [run for run in runs if run not in precisions]:
        raise click.BadParameter(
            f"{unknown[0] or 'nothing'} is not a precision of a run. Available: "
            f"{', '.join(precisions)}; FP32 is what they are compared with"
        )
    return runs


STAGE_OPTIONS = (
    option_under_heading(
        "Config",
        "--runs",
        metavar="A,B,..",
        callback=_parse_runs,
        default="",
        help=f"Compare {', '.join(run for run in RUN_TITLES if run != 'config')} with FP32. Without: fp16,int8.",
    ),
    file_path_option(
        "Stages",
        "--stage",
        "stages",
        multiple=True,
        metavar="NAME[=FILE]",
        help="A step to production: a network, outputs, an engine, config, fp16, trt-fp16.",
    ),
    file_path_option(
        "Stages",
        "--engine",
        "engine_files",
        metavar="FILE",
        multiple=True,
        help="An engine built elsewhere. Repeated: their spread.",
    ),
    file_path_option("Stages", "--outputs", metavar="FILE", help="Outputs of production for all samples of --data."),
    file_path_option("Stages", "--inputs", metavar="FILE", help="Inputs of production, with --outputs."),
)
"""The options of the stages between the network and production."""


def _check_gpu_indices(ctx: click.Context, parameter: click.Parameter, text: str | None) -> str | None:
    if text not in (None, "all") and not all(index.strip().isdigit() for index in text.split(",")):
        raise click.BadParameter(f"{text} is neither all nor numbers with commas between")
    return text


def _check_worker_count(ctx: click.Context, parameter: click.Parameter, text: str | None) -> str | None:
    if text not in (None, "auto") and not (text.isdigit() and 0 < int(text) <= MAX_WORKERS):
        raise click.BadParameter(f"{text} is neither auto nor a number from 1 to {MAX_WORKERS}")
    return text


CLUSTER_OPTIONS = (
    option_under_heading(
        "Workers",
        "--gpus",
        metavar="all|0,1",
        callback=_check_gpu_indices,
        help="Measure on these GPUs (trt-tui[cluster]).",
    ),
    option_under_heading(
        "Workers", "--workers", metavar="N|auto", callback=_check_worker_count, help="Measure in N processes."
    ),
    option_under_heading("Workers", "--scheduler", metavar="tcp://HOST:PORT", help="Measure on a Dask cluster."),
)
"""The options of the GPUs and workers that measure in parallel."""

VERBOSE_OPTIONS = (
    option_under_heading("Output", "--verbose", is_flag=True, help="Also print the messages of TensorRT and CUDA."),
)
"""The option of raw messages, which every command has."""

SESSION_OPTIONS = (
    *DATA_OPTIONS,
    *REFERENCE_OPTIONS,
    *SEED_OPTIONS,
    *CONFIG_OPTIONS,
    *JUDGING_OPTIONS,
    *BUILDER_OPTIONS,
    *PRODUCTION_OPTIONS,
    *LIBRARY_OPTIONS,
    *CLUSTER_OPTIONS,
    *VERBOSE_OPTIONS,
)

model_argument = click.argument(
    "model", shell_complete=complete_files, is_eager=True, callback=make_option_check_callback(require_model_file)
)
"""The argument MODEL. It is parsed before all options, so that a missing network is reported first."""
precision_option = option_under_heading(
    FREQUENT,
    "--precision",
    metavar="PRECISION",
    type=click.Choice([precision.value for precision in REQUESTABLE]),
    help=f"In place of a config: {', '.join(precision.value for precision in REQUESTABLE)}.",
)


def add_options(*decorators: Decorator) -> Callable[[FunctionT], FunctionT]:
    """Returns a decorator that adds shared arguments and options to a command, in their order."""

    def add_each(function: FunctionT) -> FunctionT:
        for decorator in reversed(decorators):
            decorator(function)
        return function

    return add_each


def collect_options(arguments: Mapping[str, Any]) -> Options:
    """Builds the `Options` of a session from the arguments of a command. Options that the command lacks keep their
    defaults, but commands measure on all samples.

    Raises:
        InputError: The text of an option is invalid.
    """
    from trt_tui.options import Options

    values = {field.name: arguments[field.name] for field in fields(Options) if field.name in arguments}
    builder_options: BuilderOptions = arguments.get("production", BuilderOptions())
    plugins = (*builder_options.plugins, *arguments.get("plugins", ()))
    values |= {
        "other": Precision(arguments.get("other", "fp16")),
        "production": replace(builder_options, plugins=plugins),
        "compute_capability": _parse_compute_capability(arguments.get("compute_capability")),
        "tensor_ranges": _parse_tensor_ranges(arguments.get("tensor_ranges", ())),
        "preview": not arguments.get("no_preview", False),
    }
    if writes_calib_cache(arguments):
        check_new_calib_cache(arguments)
        values |= {"calib_cache": None, "new_calib_cache": arguments["calib_cache"]}
    return Options(**({"whatif_samples": 0} | values))


def require_config_or_precision(command: str, config_path: str | None, precision: str | None) -> None:
    """Checks that a command that writes a config has either ``--config`` or ``--precision``.

    Raises:
        InputError: Neither ``--config`` nor ``--precision`` is given, or both are.
    """
    if (config_path is None) == (precision is None):
        raise InputError(
            f"{command} needs a config or a precision",
            "exactly one of --config and --precision must be used",
            "Give --config precision.json, or --precision fp16.",
        )


def _parse_tensor_ranges(texts: Iterable[str]) -> tuple[tuple[str, str], ...]:
    """Returns the names and range texts of ``--range NAME=RANGE``.

    Raises:
        InputError: The text has no ``=``, or no valid range follows it.
    """
    from trt_tui.core.calibration.user_ranges import parse_amax

    tensor_ranges = []
    for text in texts:
        tensor, equals, range_text = text.rpartition("=")
        if not equals or not tensor:
            raise InputError(f"--range {text} has no range", "", "Write it like --range NAME=2.5.")
        parse_amax(range_text)
        tensor_ranges.append((tensor, range_text))
    return tuple(tensor_ranges)


def _parse_compute_capability(text: str | None) -> tuple[int, int] | None:
    if text is None:
        return None
    major, dot, minor = text.lower().removeprefix("sm").partition(".")
    if not dot:
        major, minor = major[:-1], major[-1:]
    if not (major.isdigit() and minor.isdigit()):
        raise InputError(f"{text} is not a compute capability", "", "Write it like 8.9 or SM89.")
    return int(major), int(minor)
