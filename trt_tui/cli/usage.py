"""Refuses options that would have no effect, with the reason, before anything is opened."""

import os
import stat
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import click
from click.core import ParameterSource

from trt_tui.core.production import settings
from trt_tui.errors import InputError

Values = Mapping[str, Any]
"""The values of a command's parameters, by name."""

_PRODUCTION = tuple(settings())
_ENGINE = ("weak", "strict", "judge_at", "builds", *_PRODUCTION, "compute_capability")
_DATA = ("data", "calib_data", "calib_method", "calib_cache", "samples", "batch", "shapes")


@dataclass(frozen=True)
class IdleOptions:
    """Options of some commands that have no effect if ``idle`` returns True, and why."""

    commands: tuple[str, ...]
    options: tuple[str, ...]
    idle: Callable[[Values], bool]
    why: str
    next_step: str


def _writes_network(values: Values) -> bool:
    return str(values["output"]).lower().endswith(".onnx")


def _no_engines(values: Values) -> bool:
    built = any(text.startswith("trt-") or "=" in text for text in values["stages"])
    return not (values["engines"] or values["engine"] or values["outputs"] or built)


def _config(values: Values) -> object:
    return values["config_paths"] if "config_paths" in values else values["config_path"]


def _no_codes(values: Values) -> bool:
    return values.get("precision") not in (None, "int8", "fp8", "int4")


IDLE_OPTIONS = (
    IdleOptions(
        ("open", "compare", "search"), ("workers", "scheduler"), lambda values: values["gpus"] is not None,
        "--gpus says who measures", "Give one of --gpus, --workers and --scheduler."),
    IdleOptions(
        ("open", "compare", "search"), ("workers",), lambda values: values["scheduler"] is not None,
        "--scheduler says who measures", "Give one of --gpus, --workers and --scheduler."),
    IdleOptions(
        ("open", "compare", "search", "build", "export"), ("force",), lambda values: not _config(values),
        "it takes a config made for another structure, and there is none", "Name one with --config, or leave it out."),
    IdleOptions(
        ("open", "compare", "search", "build", "export"), ("other",), lambda values: bool(_config(values)),
        "the config says what layers around INT8, FP8 and INT4 ones run in", "Leave it out."),
    IdleOptions(("search", "build", "export"), ("other",), _no_codes,
                "it says what layers around INT8, FP8 and INT4 ones run in, and none is asked for",
                "Leave it out, or use --precision int8."),
    IdleOptions(("search",), ("precision", "higher"), lambda values: bool(values["rungs"]),
                "--rungs names the first and the last precision", "Leave out one of them."),
    IdleOptions(("search",), ("lower",), lambda values: "method" in given(), "--method names another strategy",
                "Leave out one of them."),
    IdleOptions(("search",), ("higher_from",), lambda values: not values["lower"] and values["method"] != "scoped"
                or "higher" in given(), "it says what --lower and --method scoped begin with", "Leave it out, or use "
                "--higher."),
    IdleOptions(("open", "compare", "search"), ("seed",), lambda values: bool(values["data"]),
                "only random inputs have a seed, and --data names samples", "Leave out one of --seed and --data."),
    IdleOptions(("compare",), ("exact",), lambda values: values["layers"] != "shares",
                "it is about shares, and none are measured", "Leave it out, or use --layers shares."),
    IdleOptions(("compare",), _ENGINE, _no_engines, "it is about engines, and none is built or loaded",
                "Add --engines, or leave it out."),
    IdleOptions(("compare",), ("junit_path",), lambda values: values["calib_methods"] is not None,
                "it holds one comparison", "Leave it out, or write --json."),
    IdleOptions(("open", "compare"), ("inputs",), lambda values: not values["outputs"],
                "it is what production was given, and no --outputs of it are named", "Name them, or leave it out."),
    IdleOptions(("build",), ("quick", "weak", "strict", *_PRODUCTION, "compute_capability", "backend"),
                _writes_network, "a network is written, and nothing is built",
                "Name an engine with -o model.engine, or leave it out."),
    IdleOptions(("build",), ("optimization_level",), lambda values: bool(values["quick"]),
                "--quick is the lowest effort already", "Leave out one of them."),
    IdleOptions(("export",), _PRODUCTION, lambda values: values["kind"] not in ("trtexec", "polygraphy",
                                                                                                "bundle"),
                "this format has no settings of the builder", "Leave it out."),
    IdleOptions(("export",), ("release", "no_samples"), lambda values: values["kind"] != "bundle",
                "it is about a bundle", "Leave it out, or use --format bundle."),
    IdleOptions(("export",), ("start", "stop"), lambda values: values["kind"] != "subgraph",
                "it is about a subgraph", "Leave it out, or use --format subgraph."),
    IdleOptions(("export",), _DATA, lambda values: values["kind"] == "markdown",
                "this format does not depend on data", "Leave it out."),
    IdleOptions(("inspect",), ("nodes",), lambda values: bool(values["engine"]), "an engine is shown by groups",
                "Leave out one of them."),
    IdleOptions(("inspect",), ("nodes", "engine"), lambda values: values["preview"] or values["scheme"],
                "a config is shown by groups", "Leave it out, or --preview and --scheme."),
    IdleOptions(("compare",), ("marked",), lambda values: not values["engines"] or len(values["config_paths"]) > 1,
                "it looks into the engines of one config", "Add --engines and name one --config, or leave it out."),
    IdleOptions(("inspect",), ("json_path", "markdown_path", "config_path", "precision", "force", "other", "tf32"),
                lambda values: not (values["preview"] or values["scheme"]), "it is about a config, and none is shown",
                "Add --preview or --scheme, or leave it out."),
    IdleOptions(("inspect",), ("compute_capability", "reference", *_DATA), lambda values: not values["preview"],
                "it is for the preview, and none is asked for", "Add --preview, or leave it out."),
    IdleOptions(("inspect",), ("backend",), lambda values: not values["engine"],
                "it loads an engine, and none is named", "Name one with --engine, or leave it out."),
    IdleOptions(("inspect",), ("plugins",), lambda values: not (values["engine"] or values["preview"]),
                "it is for an engine or a preview, and none is asked for", "Add --preview, or leave it out."),
)


def given() -> dict[str, str]:
    """The options of the running command that stand on its command line, as they are written, by parameter name."""
    context = click.get_current_context()
    written = {option.name: max(option.opts, key=len) for option in context.command.params
               if isinstance(option, click.Option)}
    return {name: text for name, text in written.items() if name is not None
            and context.get_parameter_source(name) is ParameterSource.COMMANDLINE}


def check_usage() -> None:
    """Checks the options of the running command.

    Raises:
        InputError: one of them would do nothing.
    """
    context = click.get_current_context()
    said = given()
    for rule in IDLE_OPTIONS:
        idle = [said[name] for name in rule.options if name in said]
        if context.info_name in rule.commands and idle and rule.idle(context.params):
            raise InputError(f"{' and '.join(idle)} would do nothing here", rule.why, rule.next_step)


def _unread_data(shapes: bool) -> list[str]:
    """The options about data on the running command line that are not read if all ranges are known.

    Args:
        shapes: Whether the shapes of the data are read all the same.
    """
    kept = {"calib_cache", *(("data", "samples", "batch", "shapes") if shapes else ())}
    return [text for name, text in given().items() if name in _DATA and name not in kept]


def warn_of_idle_data(why: str, *, shapes: bool) -> None:
    """Says which options about data were not read.

    Args:
        why: Why no data was needed for ranges; "" where it was.
        shapes: Whether the shapes of the data were read all the same.
    """
    if why and (idle := _unread_data(shapes)):
        click.echo(f"Warning: {', '.join(idle)}: not read, since {why}.", err=True)


def stdout_for(path: str | None) -> str | None:
    """``-`` for a path that is stdout by another name (such as /dev/stdout), else the path."""
    if path in (None, "-"):
        return path
    try:
        here, out = os.stat(str(path)), os.fstat(1)
    except (OSError, ValueError):  # nothing stands there, so it is not stdout
        return path
    null = stat.S_ISCHR(here.st_mode) and os.path.samestat(here, os.stat(os.devnull))
    return "-" if os.path.samestat(here, out) and not null else path


def one_on_stdout(outputs: Mapping[str, str | None]) -> None:
    """Checks that at most one output goes to stdout.

    Args:
        outputs: The places, by the options that name them.

    Raises:
        InputError: several do.
    """
    there = [option for option, place in outputs.items() if place == "-"]
    if len(there) > 1:
        raise InputError("stdout takes one thing", f"{' and '.join(there)} both go there",
                         "Write one of them to a file.")
