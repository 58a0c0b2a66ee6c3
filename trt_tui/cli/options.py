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

from trt_tui.cli.removed_options import find_removed_option_error, refuse_removed_metric
from trt_tui.core.builder_options import BuilderOptions, builder_option_specs
from trt_tui.core.precision import REQUESTABLE
from trt_tui.errors import InputError, TrtTuiError
from trt_tui.formatting import RUN_TITLES, escape_hidden_characters

if TYPE_CHECKING:
    from trt_tui.options import Options

FunctionT = TypeVar("FunctionT", bound=Callable[..., Any])
Decorator: TypeAlias = Callable[[Any], Any]
"""The return value of `click.option`: a decorator that adds an option to a function that becomes a command."""

CONTEXT_SETTINGS = {"help_option_names": ["-h", "--help"], "max_content_width": 100}

MAX_WORKERS = 256
MAX_SAMPLES, MAX_BATCH, MAX_SEED = 10**9, 1 << 20, (1 << 63) - 1

HELP_HEADINGS = ("Data", "Config", "Judging", "Search", "Stages", "TensorRT", "Workers", "Output", "Two dumps")
"""The headings of ``--help`` in their order. Options without a heading come last."""


class Option(click.Option):
    """A command-line option with its heading in ``--help``."""

    def __init__(self, *args: Any, heading: str, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.heading = heading


class Command(click.Command):
    """A command whose ``--help`` has a section for each heading, and that knows the options of earlier releases."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parses the arguments as click does. The error for a removed option names the way round."""
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            raise find_removed_option_error(ctx.info_name or "", error.option_name) or error from None

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
        check_text: Callable[[str], object]) -> Callable[[click.Context, click.Parameter, Any], Any]:
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


def _validate_release_text(text: str) -> None:
    """Raises an `InputError` if a text is not a valid TensorRT release."""
    from trt_tui.core.network.target_release import parse_release

    parse_release(text)


def _require_model_file(path: str) -> None:
    """Raises an `InputError` if the file of a network, or of a dump instead of a network, does not exist."""
    from trt_tui.core.data.dumps import split_dump_spec
    from trt_tui.files.reading import missing_file_error

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
    from trt_tui.core.network.model_file import read_model
    from trt_tui.core.network.naming import assign_node_names

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


_data_option, _config_option, _judging_option, _tensorrt_option = (partial(option_under_heading, name)
                                                                   for name in ("Data", "Config", "Judging",
                                                                                "TensorRT"))

DATA_OPTIONS = (
    file_path_option(
        "Data", "--data", metavar="D", help="Samples: .npz, a folder of them, Polygraphy inputs JSON, or a "
        "script with load_data(). Arrays that are not inputs are labels. Without: seeded random inputs."),
    file_path_option("Data", "--calib-data", metavar="D",
                     help="Samples to calibrate on. Without: every fourth batch of --data."),
    _data_option("--calib-method", default="minmax", show_default=True,
                 type=click.Choice(["minmax", "percentile", "entropy",
                                    "mse"]), help="How ranges are computed from samples."),
    file_path_option("Data", "--calib-cache", metavar="FILE",
                     help="Read the ranges from a TensorRT calibration cache. If FILE does not exist, it is written "
                          "after calibration."),
    _data_option(
        "--shapes", multiple=True, metavar="NAME:MIN:OPT:MAX", help="Shapes of a dynamic input, like "
        "x:1x3x224x224:8x3x224x224:16x3x224x224; a single shape is used for all three."),
    _data_option("--samples", metavar="N", type=click.IntRange(1, MAX_SAMPLES), help="Use at most N samples."),
    _data_option("--batch", type=click.IntRange(1, MAX_BATCH), help="Batch size, if the network leaves it open."),
)
"""The options of input data, for commands that calibrate or measure accuracy."""

SEED_OPTIONS = (_data_option("--seed", default=0, show_default=True, type=click.IntRange(0, MAX_SEED),
               help="Seed of random inputs."),)

REFERENCE_OPTIONS = (file_path_option(
    "Judging", "--reference", metavar="FILE", help="The reference of all errors, in place of FP32 of "
    "MODEL: outputs of a framework for all samples of --data (Polygraphy's RunResults, FILE.json or "
    "FILE.json:RUNNER; trtexec's --exportOutput; an .npz by tensor name), or another network, .onnx. If MODEL is "
    "quantized or typed and reproduces this network with its weights, layers raised to FP32 have these weights."), )
"""The option of the reference that errors are computed against."""

CONFIG_OPTIONS = (
    file_path_option(
        "Config", "--config", "config_path", metavar="FILE", help="Start from a precision.json; or from the input of "
                                                                  "another tool, read as text: a trtexec or "
                                                                  "Polygraphy command or script, Python that sets "
                                                                  "layer.precision of TensorRT, ModelOpt's exclusions "
                                                                  "(JSON, YAML, command, Python)."),
    _config_option("--force", is_flag=True,
                   help="Accept a config of another network structure, and ignore names that this network does not "
                        "have."),
    _config_option("--other", default="fp16", show_default=True, type=click.Choice(["fp32", "fp16", "bf16"]),
                   help="Float precision of the layers around quantized layers."),
    _config_option(
        "--keep", multiple=True, metavar="RULE[=fp16]", shell_complete=complete_layers,
        help="Keep the layers of a rule in FP32, or in the precision behind =, whatever other settings say: "
             "layernorm, softmax, embeddings, attention, head, ends (the first and the last layer that can be INT8), "
             "indices (kept by default), /REGEX/ or a layer; several with commas, may be repeated."),
    _config_option(
        "--range", "tensor_ranges", multiple=True, metavar="NAME=RANGE", help="Give tensors this range: an amax "
        "like 2.5, a method (minmax, percentile, entropy, mse), p99.9 or top5-mean. NAME is a tensor, a scope of the "
        "layer tree, or a pattern like 'encoder*' in quotes. May be repeated; the last one that names a tensor counts.",
        callback=make_option_check_callback(lambda text: _parse_tensor_ranges([text]))),
    _config_option("--tf32", is_flag=True,
                   help="Let FP32 layers use TF32, which keeps 10 bits of mantissa; applies to the "
                   "whole engine."),
)
"""The options that decide the precision of each layer."""

JUDGING_OPTIONS = (
    _judging_option(
        "--judge", multiple=True, metavar="TENSOR[SLICE][@MASK]", help="A judged output, counted only where "
        "MASK (an input or another array of the data) is not 0; may be repeated. Without: the float outputs, with a "
        "final Concat split into its parts."),
    file_path_option(
        "Judging", "--metric", metavar="FILE.py:FUNCTION", help="(outputs, labels) -> float or a mapping.",
        callback=make_option_check_callback(refuse_removed_metric)),
    _judging_option(
        "--target", metavar="TEXT", help="metric>=base-0.01, metric>=base-1%, metric[f1/8]>=base-1% of a part, "
        "metric[*]>=base-2% of each, the metric by its own name (f1>=93), sqnr>=20, cosine>=0.999 or "
        "agreement>=0.99.", callback=make_option_check_callback(validate_target_text)),
    _judging_option(
        "--exact", is_flag=True, help="Measure the layers' shares on all samples. Without: on a few, then "
        "those that may be 1 % or more on as many as needed; the number of samples is shown beside each."),
    _judging_option("--judge-at", multiple=True, type=click.Choice(["min", "max"]),
                    help="Also judge engines at this shape of the profile; may be repeated."),
    _judging_option(
        "--builds", default=1, show_default=True, type=click.IntRange(1, 20), metavar="N", help="Build each "
        "config N times, with new measurements of tactics. The worst engine counts, and the spread is reported."),
)
"""The options of measurements: judged outputs, metric and targets."""

BUILDER_OPTIONS = (
    _tensorrt_option("--backend", default="auto", show_default=True,
                     type=click.Choice(["auto", "onnxruntime", "tensorrt",
                                        "tensorrt-rtx"]), help="The backend that builds engines."),
    _tensorrt_option(
        "--weak", is_flag=True, help="TensorRT up to 10: build with layer constraints and implicit "
        "quantization, if production builds engines this way."),
    _tensorrt_option(
        "--strict", is_flag=True, help="Build engines as requested or not at all. Without, if TensorRT refuses: "
        "first the layers that it names lose their precision or are raised one step. Then all precisions are only "
        "preferred, and last no precision is set (8.6 and --weak; a strongly typed release takes the first step "
        "only). The report lists both the requested and the built precisions."),
    _tensorrt_option("--compute-capability", metavar="8.9", help="TensorRT-RTX: the GPU to build for.",
                     callback=make_option_check_callback(lambda text: _parse_compute_capability(text))),
)
"""The options that choose the backend that builds engines, and the kind of build."""

def make_release_option(help_text: str) -> Decorator:
    """Returns the decorator of ``--for``, which names the TensorRT release that engines are built with."""
    return _tensorrt_option("--for", "tensorrt_release", metavar="RELEASE", help=help_text,
                            callback=make_option_check_callback(_validate_release_text))


release_option = make_release_option(
    "The TensorRT release that engines are built with, like 10.14, 10.14.1.48, rtx or rtx1.5: its known defects are "
    "named. Without: the release that is installed here.")
"""The option of the release, for commands that name its known defects."""

PREVIEW_OPTIONS = (_tensorrt_option(
    "--no-preview", is_flag=True, help="Turn previews off. (For a preview TensorRT-RTX builds the config "
    "without a GPU, in a process of low priority.)"), )
"""The option of previews, which a builder makes without a GPU."""

def _read_trtexec_arguments(ctx: click.Context, parameter: click.Parameter, texts: Sequence[str]) -> BuilderOptions:
    from trt_tui.core.importers.trtexec import read_builder_options

    return BuilderOptions() if ctx.resilient_parsing else read_builder_options(" ".join(texts))


PLUGIN_OPTIONS = (file_path_option(
    "TensorRT", "--plugins", multiple=True, metavar="LIB.so", help="Load this library of plugins into TensorRT; may be "
    "repeated. Its code runs: name what you trust."),)
"""The option of plugin libraries."""

PRODUCTION_OPTIONS = (_tensorrt_option(
    "--trtexec", "production", multiple=True, metavar="ARGS", callback=_read_trtexec_arguments,
    help="Options of the builder in the words of trtexec: "
    f"{', '.join(filter(None, (spec.option for spec in builder_option_specs().values())))}, and further profiles "
    "with --profile=N --minShapes --optShapes --maxShapes."),)
"""The option of the TensorRT builder."""

LIBRARY_OPTIONS = (
    *PLUGIN_OPTIONS,
    file_path_option(
        "Data", "--ort-ops", multiple=True, metavar="LIB.so", help="Load this library of custom operators into "
        "ONNX Runtime, so that the simulation runs them too; may be repeated. Its code runs."),
)
"""The options of libraries with operators that neither ONNX nor the runtimes have."""

def _parse_runs(ctx: click.Context, parameter: click.Parameter, text: str) -> tuple[str, ...]:
    runs = tuple(dict.fromkeys(run.strip() for run in text.split(","))) if text else ()
    precisions = [run for run in RUN_TITLES if run != "config"]
    if unknown := [run for run in runs if run not in precisions]:
        raise click.BadParameter(f"{unknown[0] or 'nothing'} is not a precision of a run. Available: "
                                 f"{', '.join(precisions)}; FP32 is what they are compared with")
    return runs


RUNS_OPTION = option_under_heading(
    "Config", "--runs", metavar="A,B,..", callback=_parse_runs, default="",
    help="The precisions that are compared with FP32, each for all layers, besides the config: some of "
         f"{', '.join(run for run in RUN_TITLES if run != 'config')}. Default: fp16,int8.")

STAGE_OPTIONS = (
    RUNS_OPTION,
    file_path_option(
        "Stages", "--stage", "stages", multiple=True, metavar="NAME[=FILE]", help="A stage on the way to "
        "production, compared with FP32 and with the stage before it: another network (qdq=Q.onnx), outputs for all "
        "samples of --data (framework=outputs.npz), or an engine (NAME=model.plan). config and the precisions of "
        "--runs are simulated; trt-config, trt-fp16 and so on are built here. May be repeated, in their order."),
    file_path_option("Stages", "--engine", "engine_files", metavar="FILE", multiple=True,
                     help="An engine built elsewhere: measure it, and list the precision of each layer in it. If "
                          "repeated, the spread between the engines is reported."),
    file_path_option(
        "Stages", "--outputs", metavar="FILE", help="The outputs of production for all samples of --data "
        "(RunResults, trtexec's --exportOutput, .npz): compared with FP32, the config as simulated, and its engine."),
    file_path_option(
        "Stages", "--inputs", metavar="FILE", help="The inputs of production, with --outputs: compared with "
        "--data first. Without: tensors in --outputs with the names of inputs."),
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
    option_under_heading("Workers", "--gpus", metavar="all|0,1", callback=_check_gpu_indices,
                         help="Run measurements on these GPUs, one "
                         "process each (needs trt-tui[cluster])."),
    option_under_heading("Workers", "--workers", metavar="N|auto", callback=_check_worker_count,
                         help="Run measurements in N processes that share the processor cores."),
    option_under_heading(
        "Workers", "--scheduler", metavar="tcp://HOST:PORT", help="Run measurements on the workers of a running Dask "
                                                                  "cluster; tls:// with the certificates that Dask "
                                                                  "is configured with."),
)
"""The options of the GPUs and workers that measure in parallel."""

VERBOSE_OPTIONS = (option_under_heading(
    "Output", "--verbose", is_flag=True, help="Also print the messages of TensorRT and CUDA as they are (in the app: "
    "to the log). Without: the short form of each warning."),)
"""The option of raw messages, which every command has."""

SESSION_OPTIONS = (*DATA_OPTIONS, *REFERENCE_OPTIONS, *SEED_OPTIONS, *CONFIG_OPTIONS, *JUDGING_OPTIONS,
                   *BUILDER_OPTIONS, *PRODUCTION_OPTIONS, *LIBRARY_OPTIONS, *CLUSTER_OPTIONS, *VERBOSE_OPTIONS)

model_argument = click.argument("model", shell_complete=complete_files, is_eager=True,
                                callback=make_option_check_callback(_require_model_file))
"""The argument MODEL. It is parsed before all options, so that a missing network is reported first."""
precision_option = _config_option(
    "--precision", type=click.Choice([precision.value for precision in REQUESTABLE]),
    help="In place of a config. fp8 (E4M3, SM89 and later) and int4 (weights of MatMul and "
    "Gemm, SM80 and later) need a strongly typed TensorRT 10 or later, or TensorRT-RTX. mxfp8 "
    "(TensorRT 10.12) and nvfp4 (10.8), for MatMul and Gemm with a weight, need SM100 or later. "
    "file is the file precision of a quantized or typed network.")


def add_model_and_options(*decorators: Decorator) -> Callable[[FunctionT], FunctionT]:
    """Returns a decorator that adds the argument MODEL and shared options to a command."""
    def add_options(function: FunctionT) -> FunctionT:
        for decorator in reversed(decorators):
            decorator(function)
        return model_argument(function)
    return add_options


def collect_options(model: str, whatif_samples: int, arguments: dict[str, Any]) -> Options:
    """Builds the `Options` of a session from the arguments of a command. Options that the command lacks keep their
    defaults.

    Raises:
        InputError: The text of an option is invalid.
    """
    from trt_tui.cli.output_files import check_new_calib_cache, is_new_calib_cache
    from trt_tui.core.precision import Precision
    from trt_tui.options import Options

    values = {field.name: arguments[field.name] for field in fields(Options) if field.name in arguments}
    values |= {"other": Precision(arguments["other"]), "production": _join_plugins(arguments),
               "compute_capability": _parse_compute_capability(arguments.get("compute_capability")),
               "tensor_ranges": _parse_tensor_ranges(arguments.get("tensor_ranges", ())),
               "preview": not arguments.get("no_preview", False)}
    if is_new_calib_cache(arguments):
        check_new_calib_cache(arguments)
        values |= {"calib_cache": None, "new_calib_cache": arguments["calib_cache"]}
    return Options(model, whatif_samples=whatif_samples, **values)


def _join_plugins(arguments: Mapping[str, Any]) -> BuilderOptions:
    """Returns the options of the builder with the libraries of ``--plugins``."""
    options: BuilderOptions = arguments.get("production", BuilderOptions())
    return replace(options, plugins=(*options.plugins, *arguments.get("plugins", ())))


def require_config_or_precision(command: str, config_path: str | None, precision: str | None) -> None:
    """Checks that a command that writes a config has either ``--config`` or ``--precision``.

    Raises:
        InputError: Neither ``--config`` nor ``--precision`` is given, or both are.
    """
    if (config_path is None) == (precision is None):
        raise InputError(f"{command} needs a config or a precision", "exactly one of --config and --precision must be "
                                                                     "used",
                         "Give --config precision.json, or --precision fp16.")


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
