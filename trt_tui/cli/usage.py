"""Options without an effect, which are refused with the reason before anything is opened, and the spellings of earlier
releases, with the way round."""

import os
import stat
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import click
from click.core import ParameterSource

from trt_tui.cli.output_files import OUTPUT_PARAMETERS
from trt_tui.core.exporters.registry import EXPORT_FORMATS
from trt_tui.errors import InputError

ParameterValues = Mapping[str, Any]
"""The values of a command's parameters by parameter name."""

_PRODUCTION_OPTIONS = ("plugins", "production")
_CONFIG_COMMANDS = (
    "open",
    "compare",
    "methods",
    "preflight",
    "search",
    "build",
    "export",
    "bundle",
    "subgraph",
    "inspect",
    "scheme",
    "preview",
)
_FIX_OPTIONS = ("output", "config_path", "force", "calib_cache")
_DATA_OPTIONS = ("data", "calib_data", "calib_method", "calib_cache", "samples", "batch", "shapes")


@dataclass(frozen=True)
class IneffectiveOptions:
    """Options of some commands that have no effect under a condition, with the reason.

    Attributes:
        has_no_effect: Function that returns True if the options have no effect with the given parameter values.
    """

    commands: tuple[str, ...]
    options: tuple[str, ...]
    has_no_effect: Callable[[ParameterValues], bool]
    reason: str
    next_step: str


def _builds_no_engine(option_values: ParameterValues) -> bool:
    return str(option_values["output"]).lower().endswith((".onnx", ".json"))


def _uses_no_engines(option_values: ParameterValues) -> bool:
    builds_engine = any(text.startswith("trt-") or "=" in text for text in option_values["stages"])
    return not (option_values["engines"] or option_values["engine_files"] or option_values["outputs"] or builds_engine)


def _compares_configs(option_values: ParameterValues) -> bool:
    return len(option_values["config_paths"]) > 1


def _get_config_paths(option_values: ParameterValues) -> object:
    return option_values["config_paths"] if "config_paths" in option_values else option_values["config_path"]


def _uses_no_quantized_type(option_values: ParameterValues) -> bool:
    from trt_tui.core.quantized_types import QUANTIZED_TYPES

    return option_values.get("precision") not in (None, *QUANTIZED_TYPES)


INEFFECTIVE_OPTIONS = (
    IneffectiveOptions(
        ("open", "compare", "methods", "search"),
        ("workers", "scheduler"),
        lambda values: values["gpus"] is not None,
        "--gpus already selects where measurements run",
        "Give one of --gpus, --workers and --scheduler.",
    ),
    IneffectiveOptions(
        ("open", "compare", "methods", "search"),
        ("workers",),
        lambda values: values["scheduler"] is not None,
        "--scheduler already selects where measurements run",
        "Give one of --gpus, --workers and --scheduler.",
    ),
    IneffectiveOptions(
        (*_CONFIG_COMMANDS, "dumps"),
        ("force",),
        lambda values: not _get_config_paths(values),
        "it allows a config of another network structure, and no config is named",
        "Name one with --config, or leave it out.",
    ),
    IneffectiveOptions(
        _CONFIG_COMMANDS,
        ("other",),
        lambda values: bool(_get_config_paths(values)),
        "the config sets the precision around quantized layers",
        "Leave it out.",
    ),
    IneffectiveOptions(
        _CONFIG_COMMANDS,
        ("other",),
        _uses_no_quantized_type,
        "it sets the precision around quantized layers, and no quantized layer is requested",
        "Leave it out, or use --precision int8.",
    ),
    IneffectiveOptions(
        ("search", "inspect", "scheme", "preview"),
        ("precision",),
        lambda values: values["config_path"] is not None,
        "the config sets the precisions",
        "Leave out one of --config and --precision.",
    ),
    IneffectiveOptions(
        ("search",),
        ("precision", "higher"),
        lambda values: bool(values["rungs"]),
        "--rungs sets the first and the last precision",
        "Leave out one of them.",
    ),
    IneffectiveOptions(
        ("open", "compare", "methods", "preflight", "search"),
        ("seed",),
        lambda values: bool(values["data"]),
        "only random inputs have a seed, and --data names samples",
        "Leave out one of --seed and --data.",
    ),
    IneffectiveOptions(
        ("compare",),
        ("saved_outputs", "exact", "runs", "stages", "engine_files", "outputs", "inputs"),
        _compares_configs,
        "configs are compared at the outputs of the network",
        "Leave it out, or compare one config.",
    ),
    IneffectiveOptions(
        ("compare",),
        ("layers",),
        lambda values: _compares_configs(values) and values["layers"] != "none",
        "configs are compared at the outputs of the network",
        "Use --layers none, or leave it out.",
    ),
    IneffectiveOptions(
        ("compare",),
        ("exact",),
        lambda values: values["layers"] != "shares",
        "it applies to shares, and none are measured",
        "Leave it out, or use --layers shares.",
    ),
    IneffectiveOptions(
        ("compare",),
        ("weak", "strict", "judge_at", "builds", *_PRODUCTION_OPTIONS, "compute_capability"),
        _uses_no_engines,
        "it applies to engines, and none is built or loaded",
        "Add --engines, or leave it out.",
    ),
    IneffectiveOptions(
        ("compare",),
        ("marked",),
        lambda values: not values["engines"] or _compares_configs(values),
        "it inspects the engines of one config",
        "Add --engines and name one --config, or leave it out.",
    ),
    IneffectiveOptions(
        ("open", "compare"),
        ("inputs",),
        lambda values: not values["outputs"],
        "it needs --outputs, the outputs of production for these inputs",
        "Name them with --outputs, or leave it out.",
    ),
    IneffectiveOptions(
        ("dumps",),
        ("threshold", "network", "json_path", *_FIX_OPTIONS),
        lambda values: values["second"] is None,
        "one dump is listed",
        "Name two, or leave it out.",
    ),
    IneffectiveOptions(
        ("dumps",),
        _FIX_OPTIONS,
        lambda values: values["network"] is None,
        "a fix is made for a network",
        "Name the network with --model, or leave it out.",
    ),
    IneffectiveOptions(
        ("dumps",),
        ("calib_cache",),
        lambda values: values["output"] is None,
        "-o takes ranges from it, and is not named",
        "Add -o precision.json, or leave it out.",
    ),
    IneffectiveOptions(
        ("build",),
        ("weak", "strict", *_PRODUCTION_OPTIONS, "compute_capability", "backend"),
        _builds_no_engine,
        "no engine is built",
        "Name an engine with -o model.engine, or leave it out.",
    ),
    IneffectiveOptions(
        ("build",),
        ("tensorrt_release",),
        lambda values: not _builds_no_engine(values),
        "the installed release builds the engine",
        "Leave it out, or write -o typed.onnx.",
    ),
    IneffectiveOptions(
        ("export",),
        _PRODUCTION_OPTIONS,
        lambda values: not EXPORT_FORMATS[values["kind"]].has_build_commands,
        "this format has no builder settings",
        "Leave it out.",
    ),
    IneffectiveOptions(
        ("export",),
        _DATA_OPTIONS,
        lambda values: not EXPORT_FORMATS[values["kind"]].uses_data,
        "this format does not depend on data",
        "Leave it out.",
    ),
    IneffectiveOptions(
        ("inspect",),
        ("nodes", "tensorrt_release"),
        lambda values: values["engine"] is not None,
        "the layers of an engine are shown by fused layer, and it contains its release",
        "Leave out one of them.",
    ),
    IneffectiveOptions(
        ("inspect",),
        ("config_path", "precision", "force", "other", "tf32", "json_path"),
        lambda values: values["tensorrt_release"] is None,
        "it applies to known defects of a release, and none is named",
        "Add --for, or use the command scheme or preview.",
    ),
    IneffectiveOptions(
        ("inspect", "scheme"),
        ("compute_capability",),
        lambda values: values["tensorrt_release"] is None,
        "it applies to the release of --for, and none is named",
        "Add --for, or leave it out.",
    ),
    IneffectiveOptions(
        ("inspect", "lint"),
        ("backend", "plugins"),
        lambda values: values["engine"] is None,
        "it loads an engine, and none is named",
        "Name one with --engine, or leave it out.",
    ),
)


def find_given_options() -> dict[str, str]:
    """Returns the options that the user typed on the command line, as typed, by parameter name."""
    context = click.get_current_context()
    written = {
        option.name: max(option.opts, key=len) for option in context.command.params if isinstance(option, click.Option)
    }
    return {
        name: text
        for name, text in written.items()
        if name is not None and context.get_parameter_source(name) is ParameterSource.COMMANDLINE
    }


def refuse_ineffective_options() -> None:
    """Refuses options of the running command that have no effect.

    Raises:
        InputError: An option would have no effect.
    """
    context = click.get_current_context()
    written_options = find_given_options()
    for rule in INEFFECTIVE_OPTIONS:
        ineffective = [written_options[name] for name in rule.options if name in written_options]
        if context.info_name in rule.commands and ineffective and rule.has_no_effect(context.params):
            raise InputError(
                f"{' and '.join(ineffective)} {'has' if len(ineffective) == 1 else 'have'} no effect here",
                rule.reason,
                rule.next_step,
            )


def warn_of_unread_data_options(reason: str, *, reads_shapes: bool) -> None:
    """Prints a warning about data options that were not read.

    Args:
        reason: The reason why the ranges needed no data; "" if they did.
        reads_shapes: True if the shapes of the data were read nevertheless.
    """
    read_options = {"calib_cache", *(("data", "samples", "batch", "shapes") if reads_shapes else ())}
    unread = [text for name, text in find_given_options().items() if name in _DATA_OPTIONS and name not in read_options]
    if reason and unread:
        click.echo(f"Warning: {', '.join(unread)}: not read, since {reason}.", err=True)


def replace_stdout_alias(path: str | None) -> str | None:
    """Returns ``-`` for another name of stdout, such as /dev/stdout. Other paths are returned unchanged."""
    if path in (None, "-"):
        return path
    try:
        path_stat, stdout_stat = os.stat(str(path)), os.fstat(1)
    except (OSError, ValueError):  # the path does not exist, so it is not stdout
        return path
    is_null_device = stat.S_ISCHR(path_stat.st_mode) and os.path.samestat(path_stat, os.stat(os.devnull))
    return "-" if os.path.samestat(path_stat, stdout_stat) and not is_null_device else path


def resolve_stdout_aliases(option_values: dict[str, Any]) -> None:
    """Replaces other names of stdout by ``-`` in the output paths of a command. Only one output may use it.

    Raises:
        InputError: Several outputs go to stdout.
    """
    paths = {name: replace_stdout_alias(option_values[name]) for name in OUTPUT_PARAMETERS if name in option_values}
    option_values |= paths
    stdout_options = [find_given_options()[name] for name, path in paths.items() if path == "-"]
    if len(stdout_options) > 1:
        raise InputError(
            "two outputs go to stdout", f"{' and '.join(stdout_options)} both name it", "Write one of them to a file."
        )


REMOVED_OPTIONS: Mapping[str, str] = {
    "--preset": "Use --keep RULE, which takes the same rules.",
    "--sticky": "Use --keep RULE, which takes the same rules.",
    "--no-layers": "Use --layers none.",
    "--lower": "Use --method lower.",
    "search --from": "Use --higher, which also sets the start of --method lower and scoped.",
    "--no-keep": "Use --config with a precision.json without the entries of the rule; `trt-tui export --format json` "
    "writes one to edit.",
    **dict.fromkeys(
        ("--fail-code", "--ignore-fail-code", "--fail-regex"),
        "Let the command of --check decide, such as 'python check.py || [ $? -eq 3 ]': exit code 0 accepts a config.",
    ),
    "--artifacts": "Let the command of --check copy its files: 'cp \"$TRT_TUI_MODEL\" kept/ && python check.py'.",
    "--held-out": "Measure the result on other samples: trt-tui compare MODEL --data OTHER --config RESULT.",
    "--free-budget": "Leave it out, or use --no-free: the limit of the zero-cost changes is fixed.",
    **{
        option: f"Use --trtexec {replacement}."
        for option, replacement in {
            "--timing-cache": "--timingCacheFile=FILE",
            "--optimization-level": "--builderOptimizationLevel=N",
            "--tactic-sources": "--tacticSources=+A,-B",
            "--refit": "--refit",
            "--strip-plan": "--stripWeights",
            "--version-compatible": "--versionCompatible",
            "--workspace": "--memPoolSize=workspace:MIB",
            "--hardware-compatibility": "--hardwareCompatibilityLevel=ampere+",
            "--sparsity": "--sparsity=enable",
            "--profile": "'--profile=1 --minShapes=X:MIN --optShapes=X:OPT --maxShapes=X:MAX'",
            "--quick": "--builderOptimizationLevel=0",
        }.items()
    },
    **dict.fromkeys(
        ("compare --threshold", "compare --model", "compare -o", "compare --output"),
        "Use trt-tui dumps FIRST SECOND, which has it.",
    ),
    "--script": "Use -o fix.json, then trt-tui export MODEL --config fix.json --format polygraphy -o fix.py. For a "
    "fix.sh, use --format trtexec.",
    "--top-k": "Use --json OUT, which contains all tensors.",
    "--costs": "Leave it out, or use --max-latency MS, which estimates latencies from engines.",
    "--no-samples": "Export the bundle in the app, which asks whether it contains samples.",
    **dict.fromkeys(
        ("--locate", "--max-seconds", "compare --max-builds"),
        "Use --engines, with --marked for TensorRT before 10.16: it names the first layer that the engine "
        "computes wrongly. Then cut this layer out with trt-tui subgraph.",
    ),
    "--evidence": "Run verify.sh of the bundle on the machine of the engine: its exit code judges the engine. To see "
    "values, run trt-tui compare --engines there.",
    "--junit": "Use the exit code, which is 1 if a target is missed; --json and --markdown contain the values.",
    "--metric=detection:map": "Copy the script of trt_tui/core/measure/README.md (mAP of a detector) beside the "
    "annotations, and give --metric coco_map.py:mean_ap.",
    "--repair-constants": "Export the file again from FP32: trt-tui compare names the first constant that is not "
    "finite. With --reference FP32.onnx trt-tui takes the lost constants from that network.",
}
"""The next step for each removed option. "COMMAND OPTION" is an option that other commands still have,
and "OPTION=VALUE" a value that the option had."""


def find_removed_option_error(command: str, option: str) -> InputError | None:
    """Returns the error for an option that only earlier releases had; None if no release had it."""
    next_step = REMOVED_OPTIONS.get(f"{command} {option}", REMOVED_OPTIONS.get(option, ""))
    return InputError(f"{command} has no option {option} any more", "", next_step) if next_step else None


def refuse_removed_metric(metric_spec: str) -> None:
    """Raises an `InputError` for the metric that earlier releases contained."""
    if metric_spec.startswith("detection:map"):
        raise InputError(
            "trt-tui has no --metric=detection:map any more", "", REMOVED_OPTIONS["--metric=detection:map"]
        )


def _is_dump(dump_spec: str) -> bool:
    """Returns True if a path names a dump, whether it exists or not. The reader of dumps refuses pickles."""
    from pathlib import Path

    from trt_tui.core.data.tensor_files import DUMP_SUFFIXES, PICKLE_SUFFIXES, split_dump_spec

    suffix = split_dump_spec(dump_spec)[0].suffix.lower()
    return suffix in (*DUMP_SUFFIXES, *PICKLE_SUFFIXES) or Path(dump_spec).is_dir()


_NEW_COMMANDS: Mapping[tuple[str, ...], tuple[str, ...]] = {
    ("compare", "--calib-methods"): ("methods", "--calib-methods"),
    ("inspect", "--lint"): ("lint",),
    ("inspect", "--preview"): ("preview",),
    ("inspect", "--scheme"): ("scheme",),
    ("export", "--format", "bundle"): ("bundle",),
    ("export", "--format", "subgraph"): ("subgraph",),
}
"""The words of the command line, the command first, that a command of its own replaces."""


def replace_old_command_name(words: list[str]) -> list[str]:
    """Returns the words of a command line, with the new name of a renamed command. A note on stderr names it."""
    command = words[0] if words else ""
    if command in ("compare", "inspect") and len(words) > 1 and not words[1].startswith("-") and _is_dump(words[1]):
        return _print_new_command_note(f"{command}` of dumps", ["dumps", *words[1:]])
    parts = [
        part
        for word in words[1:]
        for part in (word.split("=", 1) if word.startswith(("--format=", "--calib-methods=")) else [word])
    ]
    for (old_command, *old_words), (new_command, *new_words) in _NEW_COMMANDS.items():
        for start in range(len(parts)) if command == old_command else ():
            end = start + len(old_words)
            if parts[start:end] == old_words:
                return _print_new_command_note(
                    f"{' '.join([command, *old_words])}`", [new_command, *parts[:start], *new_words, *parts[end:]]
                )
    return words


def _print_new_command_note(old_spelling: str, words: list[str]) -> list[str]:
    click.echo(f"Note: `trt-tui {old_spelling} is `trt-tui {words[0]}` from 0.3 on; 0.4 has only that.", err=True)
    return words
