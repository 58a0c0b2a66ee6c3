"""The options that commands share, each defined once, with its heading in ``--help``.

The headings are click's own help sections: click-option-group adds pseudo options to the real ones, cloup replaces all
of click's decorators, and rich-click imports rich for every ``--help``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

import click
from click.shell_completion import CompletionItem

from trt_tui.core.production import Production, Setting, settings
from trt_tui.errors import InputError, TrtTuiError
from trt_tui.words import visible

if TYPE_CHECKING:
    from trt_tui.options import Options

F = TypeVar("F", bound=Callable[..., Any])
Decorator: TypeAlias = Callable[[Any], Any]
"""What `click.option` returns: it adds an option to a function that becomes a command."""

CONTEXT = {"help_option_names": ["-h", "--help"], "max_content_width": 100}

MOST_WORKERS = 256
MOST_SAMPLES, LARGEST_BATCH, LARGEST_SEED = 10**9, 1 << 20, (1 << 63) - 1

HEADINGS = ("Data", "Config", "Judging", "Search", "Stages", "TensorRT", "Workers", "Output", "Two dumps")
"""The headings of ``--help``, in this order; options without one come last."""


class Option(click.Option):
    """An option with its heading in ``--help``."""

    def __init__(self, *args: Any, heading: str, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.heading = heading


class Command(click.Command):
    """A command whose help has a section for each heading."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Writes a section for each heading that has options."""
        sections: dict[str, list[tuple[str, str]]] = {heading: [] for heading in (*HEADINGS, "Other options")}
        for one in self.get_params(ctx):
            if isinstance(one, click.Option) and (record := one.get_help_record(ctx)) is not None:
                sections[one.heading if isinstance(one, Option) else "Other options"].append(record)
        for heading, records in sections.items():
            if records:
                with formatter.section(heading):
                    formatter.write_dl(records)


def checked(check: Callable[[str], object]) -> Callable[[click.Context, click.Parameter, Any], Any]:
    """Returns a callback that checks each text of an option where it stands on the command line.

    Click reads parameters in the order in which they were typed and misses the required ones last, so that the first
    wrong value is told first.

    Args:
        check: Raises an `InputError` for a text that makes no sense.
    """
    def callback(ctx: click.Context, parameter: click.Parameter, value: Any) -> Any:
        if not ctx.resilient_parsing:
            for text in () if value is None else (value,) if isinstance(value, str) else value:
                check(text)
        return value

    return callback


def check_target(text: str) -> None:
    """Raises an `InputError` if a text is not a valid target."""
    from trt_tui.core.measure.target import parse_target

    parse_target(text)


def _check_model(path: str) -> None:
    """Raises an `InputError` if a network, or a dump in its place, is not there."""
    from trt_tui.core.data.dumps import split_dump
    from trt_tui.files.reading import missing_file

    if not Path(path).exists() and not split_dump(path)[0].exists():
        raise missing_file(f"{path} does not exist", path)


def files(ctx: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """The completion by which a shell completes the names of files."""
    return [CompletionItem(incomplete, type="file")]


def layers(ctx: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
    """Rules, and the names of the layers of the network that was named before on the command line.

    The network is read here, as the child process would read it first (the same limits and checks, no data, no
    scripts): the shell starts a process for each completion, so that a file that ends it ends nothing else, and a child
    would take another second. Names that a shell or a terminal would misread are left out.
    """
    from trt_tui.core.moves.keeping import RULES
    from trt_tui.core.network.naming import name_nodes
    from trt_tui.core.network.reading import read_model

    names = list(RULES)
    # click does not parse arguments before an unfinished option.
    model = ctx.params.get("model") or next(iter(ctx.args), None)
    with suppress(TrtTuiError, OSError):
        if model is not None:
            graph = read_model(Path(model))[0].graph
            name_nodes(graph)
            names += [node.name for node in graph if node.name and visible(node.name) == node.name]
    return [name for name in names if name.startswith(incomplete)]


def option(heading: str, *args: Any, **kwargs: Any) -> Decorator:
    """`click.option` under a heading."""
    return click.option(*args, cls=Option, heading=heading, **kwargs)


def file_option(heading: str, *args: Any, **kwargs: Any) -> Decorator:
    """An `option` that names a file, which shells complete."""
    return option(heading, *args, shell_complete=files, **kwargs)


_data, _config, _judging, _tensorrt = (partial(option, name) for name in ("Data", "Config", "Judging", "TensorRT"))

DATA = (
    file_option("Data", "--data", metavar="D", help="Samples: .npz, a folder of them, Polygraphy inputs JSON, or a "
                "script with load_data(). Arrays that are no input are labels. Without: seeded random inputs."),
    file_option("Data", "--calib-data", metavar="D",
                help="Samples to calibrate on. Without: every fourth batch of --data."),
    _data("--calib-method", default="minmax", show_default=True,
          type=click.Choice(["minmax", "percentile", "entropy", "mse"]), help="How ranges are computed from samples."),
    file_option("Data", "--calib-cache", metavar="FILE", help="Take the ranges from a TensorRT calibration cache."),
    _data("--shapes", multiple=True, metavar="NAME:MIN:OPT:MAX", help="Shapes of a dynamic input, like "
          "x:1x3x224x224:8x3x224x224:16x3x224x224; one shape stands for all three."),
    _data("--samples", type=click.IntRange(1, MOST_SAMPLES), help="Use at most so many samples."),
    _data("--batch", type=click.IntRange(1, LARGEST_BATCH), help="Batch size, if the network leaves it open."),
)
"""What is read, for commands that calibrate or judge."""

SEED = (_data("--seed", default=0, show_default=True, type=click.IntRange(0, LARGEST_SEED),
               help="Seed of random inputs."),)

REFERENCE = (
    file_option("Judging", "--reference", metavar="FILE", help="What errors are taken against in place of FP32 of "
                "MODEL: outputs of a framework for all samples of --data (Polygraphy's RunResults, FILE.json or "
                "FILE.json:RUNNER; an .npz by tensor name), or another network, .onnx. If MODEL is quantized and this "
                "is the FP32 network that it was made from, layers raised to FP32 have its weights."),
)
"""What errors are taken against."""

CONFIG = (
    file_option("Config", "--config", "config_path", metavar="FILE", help="Start from a precision.json; or from what "
                "another tool was told, read as text: a trtexec or Polygraphy command or script, a Polygraphy "
                "postprocess script, ModelOpt's exclusions (JSON, YAML, command)."),
    _config("--force", is_flag=True, help="Take a config made for another structure, and leave out names that are not "
            "there."),
    _config("--other", default="fp16", show_default=True, type=click.Choice(["fp32", "fp16", "bf16"]),
            help="What layers around those in INT8, FP8 or INT4 run in."),
    _config("--keep", multiple=True, metavar="RULE[=fp16]", shell_complete=layers,
            help="Keep what a rule names in FP32, or in the precision behind =, whatever else lowers it: layernorm, "
            "softmax, embeddings, attention, head, ends (the first and the last that can be INT8), indices (kept "
            "by default), /REGEX/ or a layer; several with commas, may be repeated."),
    _config("--no-keep", multiple=True, type=click.Choice(["indices"]), help="Turn off a rule that keeps layers by "
            "default: indices keeps in FP32 what computes values that become integers, indices or sizes."),
    _config("--range", "tensor_ranges", multiple=True, metavar="TENSOR=RANGE", help="Give a tensor this range: an amax "
            "like 2.5, a method (minmax, percentile, entropy, mse), p99.9 or top5-mean; may be repeated.",
            callback=checked(lambda text: _tensor_ranges([text]))),
    _config("--tf32", is_flag=True, help="Let FP32 layers use TF32, which keeps 10 bits of mantissa; applies to the "
            "whole engine."),
)
"""Which layer runs in which precision."""

JUDGING = (
    _judging("--judge", multiple=True, metavar="TENSOR[SLICE][@MASK]", help="Where errors are measured, counting only "
             "where MASK (an input or another array of the data) is not 0; may be repeated. Without: at the float "
             "outputs, a final Concat split into its parts."),
    file_option("Judging", "--metric", metavar="FILE.py:FUNCTION", help="(outputs, labels) -> float or a mapping; or "
                "detection:map=FILE.json with COCO annotations."),
    _judging("--target", metavar="TEXT", help="metric>=base-0.01, metric>=base-1%, metric[f1/8]>=base-1% of a part, "
             "metric[*]>=base-2% of each, the metric by its own name (f1>=93), sqnr>=20, cosine>=0.999 or "
             "agreement>=0.99.", callback=checked(check_target)),
    _judging("--exact", is_flag=True, help="Measure the layers' shares on all samples. Without: on a few, then "
             "those that may be 1 % or more on as many as it takes; each says on how many samples it stands."),
    _judging("--judge-at", multiple=True, type=click.Choice(["min", "max"]),
             help="Also judge engines at this shape of the profile; may be repeated."),
    _judging("--builds", default=1, show_default=True, type=click.IntRange(1, 20), metavar="N", help="Build each "
             "config N times, tactics measured anew; the worst engine counts, and how far they lie apart is said."),
)
"""How figures are measured."""

BUILDER = (
    _tensorrt("--backend", default="auto", show_default=True,
              type=click.Choice(["auto", "onnxruntime", "tensorrt", "tensorrt-rtx"]), help="What builds engines."),
    _tensorrt("--weak", is_flag=True, help="TensorRT up to 10: precisions layer by layer and implicit "
              "quantization, for production that builds this way."),
    _tensorrt("--strict", is_flag=True, help="Build engines as asked or not at all. Without: if TensorRT refuses, "
              "the layers that it names lose their precision or are raised one step; next precisions are only "
              "preferred; last none is given (8.6 and --weak; a strongly typed release takes the first step "
              "only). The report says what was asked and what was built."),
    _tensorrt("--compute-capability", metavar="8.9", help="TensorRT-RTX: the GPU to build for.",
              callback=checked(lambda text: _compute_capability(text))),
)
"""What builds engines, and how."""

PREVIEW = (
    _tensorrt("--no-preview", is_flag=True, help="Do not ask TensorRT-RTX what it would make of configs (it builds "
              "beside, at low priority, with no GPU)."),
)
"""What is asked of a builder without a GPU."""

def _builder_option(name: str, setting: Setting) -> Decorator:
    """The option that a field of `Production` is asked for by."""
    about: dict[str, Any] = {"help": setting.help, "metavar": setting.metavar or None}
    if setting.choices:
        about["type"] = click.Choice(list(setting.choices))
    elif setting.takes == "number":
        least, most = setting.numbers
        about["type"] = click.IntRange(least, most)
    elif not setting.takes:
        about["is_flag"] = True
    about["multiple"] = setting.takes in ("files", "texts")
    return (file_option if setting.takes.startswith("file") else option)("TensorRT", setting.option, name, **about)


PLUGINS = (_builder_option("plugins", settings()["plugins"]),)
"""Libraries of plugins."""

PRODUCTION = tuple(_builder_option(name, setting) for name, setting in settings().items() if name != "plugins")
"""How a builder works and what its engines are like, but for libraries of plugins."""

LIBRARIES = (
    *PLUGINS,
    file_option("Data", "--ort-ops", multiple=True, metavar="LIB.so", help="Load this library of custom operators into "
                "ONNX Runtime, so that the simulation runs them too; may be repeated. Its code runs."),
)
"""What brings operators that neither ONNX nor the runtimes have."""

STAGES = (
    file_option("Stages", "--stage", "stages", multiple=True, metavar="NAME[=FILE]", help="A stage on the way to "
                "production, held against FP32 and the stage before: another network (qdq=Q.onnx), outputs for all "
                "samples of --data (framework=outputs.npz), an engine (NAME=model.plan); fp16, int8 or config as "
                "simulated, trt-fp16, trt-int8 or trt-config as built here. May be repeated, in their order."),
    file_option("Stages", "--engine", metavar="FILE", help="An engine built elsewhere, judged with what became of each "
                "layer."),
    file_option("Stages", "--outputs", metavar="FILE", help="What production has written for all samples of --data "
                "(RunResults, .npz): held against FP32, the config as simulated, and its engine."),
    file_option("Stages", "--inputs", metavar="FILE", help="What production was given, with --outputs: compared with "
                "--data first. Without: what --outputs holds by the names of inputs."),
)
"""What stands between the network and production."""

def _gpus(ctx: click.Context, parameter: click.Parameter, text: str | None) -> str | None:
    if text not in (None, "all") and not all(one.strip().isdigit() for one in text.split(",")):
        raise click.BadParameter(f"{text} is neither all nor numbers with commas between")
    return text


def _workers(ctx: click.Context, parameter: click.Parameter, text: str | None) -> str | None:
    if text not in (None, "auto") and not (text.isdigit() and 0 < int(text) <= MOST_WORKERS):
        raise click.BadParameter(f"{text} is neither auto nor a number from 1 to {MOST_WORKERS}")
    return text


CLUSTER = (
    option("Workers", "--gpus", metavar="all|0,1", callback=_gpus, help="Spread measurements over these GPUs, one "
           "process each (needs trt-tui[cluster])."),
    option("Workers", "--workers", metavar="N|auto", callback=_workers, help="Spread them over so many processes that "
           "share the processor cores."),
    option("Workers", "--scheduler", metavar="tcp://HOST:PORT", help="Spread them over the workers of a Dask cluster "
           "that runs; tls:// with the certificates that Dask is configured with."),
)
"""Who else measures."""

EVERYTHING = (*DATA, *REFERENCE, *SEED, *CONFIG, *JUDGING, *BUILDER, *PRODUCTION, *LIBRARIES, *CLUSTER)

model_argument = click.argument("model", shell_complete=files, is_eager=True, callback=checked(_check_model))
"""It is read before all options, so that a network that is not there is told first."""
config_or_precision = _config("--precision",
                              type=click.Choice(["fp32", "bf16", "fp16+", "fp16", "fp8", "int8", "int4", "file"]),
                              help="In place of a config. fp8 (E4M3, SM89 and later) and int4 (weights of MatMul and "
                              "Gemm, SM80 and later) need a strongly typed TensorRT 10 or later, or TensorRT-RTX; file "
                              "is what a quantized or typed network has in its own file.")


def takes(*shared: Decorator) -> Callable[[F], F]:
    """A decorator that adds the argument MODEL and options that commands share."""
    def add(function: F) -> F:
        for one in reversed(shared):
            one(function)
        return model_argument(function)
    return add


def options_of(model: str, whatif_samples: int, arguments: dict[str, Any]) -> Options:
    """The options of a command as the session and its child take them; those that it lacks keep their defaults.

    Raises:
        InputError: an option's text makes no sense.
    """
    from trt_tui.core.precision import Precision
    from trt_tui.options import Options

    said = {one.name: arguments[one.name] for one in fields(Options) if one.name in arguments}
    said |= {"other": Precision(arguments["other"]), "production": _production(arguments),
             "compute_capability": _compute_capability(arguments.get("compute_capability")),
             "tensor_ranges": _tensor_ranges(arguments.get("tensor_ranges", ())),
             "preview": not arguments.get("no_preview", False)}
    return Options(model, whatif_samples=whatif_samples, **said)


def check_config_or_precision(what: str, config_path: str | None, precision: str | None) -> None:
    """Checks that a command that writes something has a config or a precision for it.

    Raises:
        InputError: neither ``--config`` nor ``--precision`` is given, or both are.
    """
    if (config_path is None) == (precision is None):
        raise InputError(f"{what} needs a config or a precision", "exactly one of --config and --precision is taken",
                         "Give --config precision.json, or --precision fp16.")


def _production(arguments: Mapping[str, Any]) -> Production:
    """What a command's options say of `Production`.

    Raises:
        InputError: a list names nothing.
    """
    said: dict[str, Any] = {}
    for name, setting in settings().items():
        value = arguments.get(name)
        if value is not None and value is not False and value != ():  # 0 is a level
            said[name] = [one for one in map(str.strip, value.split(",")) if one] if setting.takes == "names" else value
            if said[name] == []:
                raise InputError(f"{setting.option} names nothing", "", "Name some with commas, or leave it out.")
            said[name] = tuple(said[name]) if isinstance(said[name], list) else said[name]
    return Production(**said)


def _tensor_ranges(texts: Iterable[str]) -> tuple[tuple[str, str], ...]:
    """Tensors with the text of their ranges.

    Raises:
        InputError: there is no ``=``, or what follows it is no range.
    """
    from trt_tui.core.calibration.given import amax_given

    found = []
    for text in texts:
        tensor, equals, given = text.rpartition("=")
        if not equals or not tensor:
            raise InputError(f"--range {text} names no range", "", "Give it like --range TENSOR=2.5.")
        amax_given(given)
        found.append((tensor, given))
    return tuple(found)


def _compute_capability(text: str | None) -> tuple[int, int] | None:
    if text is None:
        return None
    major, dot, minor = text.lower().removeprefix("sm").partition(".")
    if not dot:
        major, minor = major[:-1], major[-1:]
    if not (major.isdigit() and minor.isdigit()):
        raise InputError(f"{text} is no compute capability", "", "Give it like 8.9 or SM89.")
    return int(major), int(minor)
