"""Stand-ins for TensorRT's Python package: the API of one release exactly, and behaviour enough to build and run.

`install` puts a module ``tensorrt`` (``tensorrt_rtx`` for "rtx-1.7.1") into `sys.modules`. Its classes have just the
members that ``api/RELEASE.json`` lists; what is not there raises `AttributeError`, as with the real bindings.
`environment` gives a child process the same, and `header` reads what a build was told out of its engine.

Environment variables steer a build or a run: ``STANDIN_FAULT`` (see `building.fault`; the ONNX metadata property
``standin`` does the same for one network), ``STANDIN_STEP_SECONDS`` (the time of one timing step, 0 by default) and
``STANDIN_DEVICE`` (the GPU's compute capability).

What is not the real thing: numbers of most enum members, timings, the texts of messages that no CPU machine can make
TensorRT say, and arithmetic: ONNX Runtime computes what the ONNX graph says, whatever precision a weakly typed
network was asked for.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
import sys
from dataclasses import dataclass
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType

import numpy as np

libraries: list[str] = []
"""What a registry was asked to load."""

RELEASES = ("8.6.1", "10.16.1", "11.4.0", "rtx-1.7.1")
_HERE = Path(__file__).parent
_DATA_TYPES = {"float32": "FLOAT", "float16": "HALF", "bfloat16": "BF16"}
_ORDERED = {
    "Severity": ("INTERNAL_ERROR", "ERROR", "WARNING", "INFO", "VERBOSE"),
    "DataType": ("FLOAT", "HALF", "INT8", "INT32", "BOOL", "UINT8", "FP8", "BF16", "INT64", "INT4", "FP4", "E8M0"),
    "ErrorCode": (
        "SUCCESS",
        "INTERNAL_ERROR",
        "MEM_ALLOC_FAILED",
        "MODEL_DESERIALIZE_FAILED",
        "INVALID_VALUE",
        "INVALID_GRAPH",
        "INVALID_NODE",
        "UNSUPPORTED_GRAPH",
        "UNSUPPORTED_NODE",
    ),
}
"""Members in the order of their numbers; other members follow, numbered by their place in the API file."""


@dataclass(frozen=True)
class Release:
    """One release: its name here, its module's name and ``__version__``, and whether it has strong typing alone."""

    name: str
    module: str
    version: str
    strong: bool

    @property
    def major(self) -> int:
        """8, 10 or 11; TensorRT-RTX behaves as 11."""
        return 11 if self.module == "tensorrt_rtx" else int(self.version.split(".")[0])


class Binding(type):
    """The class of the stand-ins' classes: constructs as pybind11 does."""

    def __call__(cls, *args: object, **kwargs: object) -> object:
        bound = next(base for base in cls.__mro__ if "_bound" in base.__dict__)
        if not bound._constructible:
            raise TypeError(f"{bound.__module__}.{bound.__name__}: No constructor defined!")
        made = super().__call__(*args, **kwargs)
        if "_constructed" not in made.__dict__:
            raise TypeError(f"{bound.__module__}.{bound.__name__}.__init__() must be called when overriding __init__")
        return made


class Bound(metaclass=Binding):
    """What every class of a stand-in derives from. Names with an underscore are the stand-in's own."""

    def __setattr__(self, name: str, value: object) -> None:
        if not name.startswith("_") and "_bound" in type(self).__dict__:
            member = getattr(type(self), name, None)
            if not hasattr(member, "__set__"):
                raise AttributeError(
                    f"'{type(self).__module__}.{type(self).__name__}' object has no attribute '{name}'"
                    if member is None
                    else f"'{name}' of '{type(self).__name__}' has no setter"
                )
        object.__setattr__(self, name, value)

    def __enter__(self) -> Bound:
        return self

    def __exit__(self, *exc: object) -> None:
        pass


class Value:
    """A plain attribute, held in the instance under its own name."""

    def __init__(self, default: object = None) -> None:
        self.default = default

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    def __get__(self, held: object, owner: type) -> object:
        return self if held is None else held.__dict__.get(self.name, self.default)

    def __set__(self, held: object, value: object) -> None:
        held.__dict__[self.name] = value


def flags(held: str, enum: str) -> tuple:
    """The methods that set, clear and get a flag of an enum in the bit mask ``held``."""

    def bit(self: Bound, flag: object) -> int:
        if not isinstance(flag, getattr(self._trt, enum)):
            raise TypeError(f"incompatible function arguments: {flag} is no {enum}")
        return 1 << int(flag)

    return (
        lambda self, flag: setattr(self, held, getattr(self, held) | bit(self, flag)),
        lambda self, flag: setattr(self, held, getattr(self, held) & ~bit(self, flag)),
        lambda self, flag: bool(getattr(self, held) & bit(self, flag)),
    )


class Enumeration:
    """An enum as pybind11 makes them: singletons with `name`, `value` and a number; equal to themselves alone."""

    name, value = "", 0

    def __int__(self) -> int:
        return self.value

    __index__ = __int__

    def __str__(self) -> str:
        return f"{type(self).__name__}.{self.name}"


@functools.total_ordering
class OrderedEnumeration(Enumeration):
    """`ILogger.Severity` alone can be compared by order."""

    def __lt__(self, other: Enumeration) -> bool:
        return self.value < other.value


def _load_library(path: str) -> object:
    libraries.append(path)
    return object()


def make(trt: ModuleType, cls: str, /, *args: object, **state: object) -> Bound:
    """An instance of a class of the release, constructor or none; ``state`` goes into its ``__dict__``."""
    bound = getattr(trt, cls)
    made = bound.__new__(bound, *args)
    made.__dict__.update(state)
    return made


def header(engine: bytes) -> dict:
    """What an engine says of itself: release, device, inputs and outputs, profiles, layers and ``config``, what the
    build was told: flags, network_flags, tactic_sources, builder_optimization_level, profiling_verbosity,
    timing_cache (entries found and missed), layer_precisions, output_types, dynamic_ranges."""
    from tests.standins.engine import unpack

    return unpack(bytes(engine))[0]


def cached_engine(path: Path) -> bytes:
    """An engine in the cache of engines, without the checksum in front of it."""
    return path.read_bytes()[hashlib.sha256().digest_size :]


def cached_header(path: Path) -> dict:
    """The `header` of an engine in the cache of engines."""
    return header(cached_engine(path))


def environment(release: str) -> dict[str, str]:
    """What to add to the environment of a process in which ``import tensorrt`` shall find this release's stand-in,
    and Polygraphy host memory in place of CUDA's."""
    paths = [str(_HERE / "path"), str(_HERE.parent.parent), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {
        "PYTHONPATH": os.pathsep.join(paths),
        "STANDIN_RELEASE": release,
        "POLYGRAPHY_USE_TENSORRT_RTX": "1" if release.startswith("rtx") else "0",
    }


def install(release: str) -> ModuleType:
    """Puts the stand-in of a release, one of `RELEASE_TITLES`, into `sys.modules`, and returns it.

    Polygraphy keeps the module it first saw, and decides between TensorRT and RTX when it is imported: one release a
    process, installed before Polygraphy is imported, with POLYGRAPHY_USE_TENSORRT_RTX=1 for RTX.
    """
    from tests.standins import building, engine, network

    api: dict[str, list[str]] = json.loads((_HERE / "api" / f"{release}.json").read_text())
    rtx = release.startswith("rtx-")
    about = Release(
        release,
        "tensorrt_rtx" if rtx else "tensorrt",
        "1.7.1.116" if rtx else release,
        "EXPLICIT_BATCH" not in api["NetworkDefinitionCreationFlag"],
    )
    trt = ModuleType(about.module)
    trt.__version__ = about.version
    trt.__spec__ = ModuleSpec(about.module, None)
    severity = _enumeration(trt, "Severity", _ORDERED["Severity"])
    behaviours = {**vars(network), **vars(building), **vars(engine)}
    classes = {name: [member.removesuffix("()") for member in members] for name, members in api.items() if name}
    for name in sorted(classes, key=lambda name: _base(name, classes) is not None):
        members = classes[name]
        if {"name", "value"} <= set(members):
            made = _enumeration(trt, name, [m for m in members if m not in ("__init__", "name", "value", "itemsize")])
            if "itemsize" in members:
                made.itemsize = property(lambda self: np.dtype(network.NUMPY[self.name]).itemsize)
        else:
            made = _class(
                trt,
                about,
                name,
                members,
                [m[:-2] for m in api[name] if m.endswith("()")],
                _base(name, classes),
                behaviours.get(name),
            )
        setattr(trt, name, made)
    for cls in (trt.ILogger, trt.Logger):
        cls.Severity = severity
        for name, member in severity.__members__.items():
            setattr(cls, name, member)
    registry = make(trt, "IPluginRegistry", plugin_creator_list=[], all_creators=[], load_library=_load_library)
    functions = {
        "init_libnvinfer_plugins": lambda logger, namespace: True,
        "volume": lambda shape: int(np.prod(shape)),
        "nptype": lambda dtype: np.dtype(network.NUMPY[dtype.name]).type,
        "get_builder_plugin_registry": lambda capability: registry,
        "get_nv_onnx_parser_version": lambda: 0,
        "get_plugin_registry": lambda: registry,
    }
    for entry in api[""]:
        name, _, kind = entry.partition("=")
        setattr(trt, name, getattr(trt.DataType, _DATA_TYPES.get(name, name.upper())) if kind else functions.get(name))
    sys.modules[about.module] = trt
    return trt


def _base(name: str, classes: dict[str, list[str]]) -> str | None:
    """The class that the bindings derive this one from, where its members say so."""
    for base, derived in (
        ("ILayer", name.endswith("Layer")),
        ("ILogger", name == "Logger"),
        ("IProfiler", name == "Profiler"),
        ("Dims", name.startswith("Dims") and name != "DimsExprs"),
        ("IInt8Calibrator", name.startswith("IInt8")),
    ):
        if derived and name != base and set(classes.get(base, ["-"])) <= set(classes[name]):
            return base
    return None


def _enumeration(trt: ModuleType, name: str, members: list[str] | tuple[str, ...]) -> type:
    first = [member for member in _ORDERED.get(name, ()) if member in members]
    base = OrderedEnumeration if name == "Severity" else Enumeration
    cls = type(name, (base,), {"__module__": trt.__name__, "__members__": {}})
    cls.__qualname__ = "ILogger.Severity" if name == "Severity" else name
    for number, member in enumerate([*first, *(one for one in members if one not in first)]):
        made = cls()
        made.name, made.value = member, number
        cls.__members__[member] = made
        setattr(cls, member, made)
    return cls


def _class(
    trt: ModuleType,
    release: Release,
    name: str,
    members: list[str],
    methods: list[str],
    base: str | None,
    behaviour: type | None,
) -> type:
    """A class with just these members: the behaviour's where it has them, else attributes held and methods refused."""
    written = {
        key: value
        for key, value in (vars(behaviour) if behaviour else {}).items()
        if key in members or (key.startswith("_") and key not in ("__dict__", "__weakref__"))
    }
    start = written.pop("__init__", None)

    def construct(self: Bound, *args: object, **kwargs: object) -> None:
        self.__dict__["_constructed"] = True
        if start:
            start(self, *args, **kwargs)

    def refused(member: str) -> object:
        def method(self: Bound, *args: object, **kwargs: object) -> None:
            raise NotImplementedError(f"the stand-in has no {name}.{member}")

        return method

    inherited = getattr(trt, base) if base else None
    for member in members:
        if member not in written and not hasattr(inherited, member) and member != "__init__":
            written[member] = refused(member) if member in methods else Value()
    if start or inherited is None or "__init__" in methods:
        written["__init__"] = construct
    bases = (inherited,) if inherited else (Bound, bytes) if name == "IHostMemory" else (Bound,)
    return Binding(
        name,
        bases,
        {
            **written,
            "__module__": trt.__name__,
            "__qualname__": name,
            "_bound": True,
            "_constructible": start is not None or "__init__" in methods,
            "_trt": trt,
            "_release": release,
        },
    )
