"""Loading and calling one function of a Python file that the user names, with errors that name the file and line."""

import contextlib
import functools
import hashlib
import importlib.abc
import importlib.machinery
import importlib.util
import os
import re
import sys
import threading
import traceback
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from trt_tui.errors import InputError, TrtTuiError, text_of
from trt_tui.files.reading import SCRIPT_BYTES, missing_file, regular

_imported: dict[Path, dict[str, ModuleType]] = {}
"""Modules of a folder that scripts in it have imported, by folder and name."""

_opened: dict[Path, dict[str, bool]] = {}
"""Files that scripts of a folder have opened, by folder; True for those that they have only read."""

_running = threading.local()
"""Has the folder of the script that runs in a thread, in ``folder``."""

_CODE = (".py", ".pyc", ".so", ".pyd", ".dll")
"""Endings of files that an import opens."""

_SPEC = re.compile(r"(?P<path>.+\.py)(?::(?P<function>[^:/\\]+))?", re.DOTALL)


DETECTION = "detection:map="
"""How a metric begins that is no script: a file of annotations follows, and settings behind commas."""


def annotations_of(spec: str) -> Path | None:
    """The annotations that a metric names, see `DETECTION`; None for another metric."""
    return split_annotations(spec)[0] if spec.startswith(DETECTION) else None


def split_annotations(spec: str) -> tuple[Path, list[str]]:
    """Splits the path of the annotations from the settings behind it.

    A path may contain commas: the longest one that names a file is taken, else the shortest one that ends in ``.json``.
    """
    parts = spec.removeprefix(DETECTION).split(",")
    paths = [",".join(parts[:end]) for end in range(1, len(parts) + 1)]
    path = next((one for one in reversed(paths) if os.path.isfile(one)),
                next((one for one in paths if one.lower().endswith(".json")), paths[0]))
    return Path(path), parts[paths.index(path) + 1:]


def split_spec(spec: str) -> tuple[Path, str | None] | None:
    """Splits ``FILE.py`` or ``FILE.py:FUNCTION``; None if the text is neither."""
    match = _SPEC.fullmatch(spec)
    return (Path(match["path"]), match["function"]) if match else None


def script_files(path: str | Path) -> tuple[Path, ...]:
    """A script, and what it or another script in its folder has imported from there and read so far.

    A file that a script writes, such as a cache of its own, is left out.
    """
    path = Path(os.path.realpath(path))
    files = (_file_of(module) for _, module in sorted(_imported.get(path.parent, {}).items()))
    read = (file for file, only_read in sorted(_opened.get(path.parent, {}).items()) if only_read)
    return (path, *(Path(file) for file in files if file), *(Path(file) for file in read if os.path.isfile(file)))


def _note_opened(event: str, arguments: tuple[Any, ...]) -> None:
    """Notes the files that a script opens: an audit hook, which is called for all that Python does."""
    if event != "open" or (folder := getattr(_running, "folder", None)) is None:
        return
    path, mode, flags = arguments
    if not isinstance(path, (str, bytes)):
        return
    name = os.path.realpath(os.fsdecode(path))
    if name.endswith(_CODE) or name.startswith(_SYSTEM):
        return
    reads = not set(mode) & set("wax+") if isinstance(mode, str) else flags & os.O_ACCMODE == os.O_RDONLY
    known = _opened.setdefault(folder, {})
    known[name] = reads and known.get(name, True)


_SYSTEM = tuple(os.path.realpath(path) + os.sep for path in ("/proc", "/sys", "/dev", sys.prefix, sys.base_prefix))
"""Folders of files that are no user's."""


@functools.cache
def _watch_opened() -> None:
    """Has the files noted that scripts open, from the first script on: a hook cannot be taken away."""
    sys.addaudithook(_note_opened)


def _file_of(module: ModuleType | None) -> str | None:
    """The file of an imported module, where it has one."""
    return getattr(module, "__file__", None)


def _is_own(name: str, folder: Path) -> bool:
    """Whether a module lies in a script's folder, installed packages aside."""
    module = sys.modules.get(name)
    file = _file_of(module) or next(iter(getattr(module, "__path__", ())), None)  # a package without __init__.py
    if not file or name == "trt_tui" or name.startswith("trt_tui."):
        return False
    return _is_inside(file, folder)


def _is_inside(path: str, folder: Path) -> bool:
    """Returns True for a path in a folder, but not in a folder of installed packages."""
    return (Path(path).is_relative_to(folder)
            and not {"site-packages", "dist-packages"} & set(Path(path).relative_to(folder).parts))


class _SourceLoader(importlib.machinery.SourceFileLoader):
    """Compiles a script anew: Python knows by size and time alone whether bytecode is current."""

    def path_stats(self, path: str) -> Mapping[str, Any]:
        """Implements `importlib.abc.SourceLoader.path_stats`; the error stands for a file without usable bytecode."""
        raise OSError


_find_anew = importlib.machinery.FileFinder.path_hook(
    (importlib.machinery.ExtensionFileLoader, importlib.machinery.EXTENSION_SUFFIXES),
    (_SourceLoader, importlib.machinery.SOURCE_SUFFIXES))


def _find_in_script_folders(path: str) -> importlib.abc.PathEntryFinder:
    """Implements an entry of `sys.path_hooks` for the folders of scripts, installed packages aside."""
    if any(_is_inside(path, folder) for folder in _imported):
        return _find_anew(path)
    raise ImportError(path)


def _use_modules_of(folder: Path) -> None:
    """Puts what scripts of a folder have imported from it in place of what those of other folders have."""
    for name in [name for other, modules in _imported.items() if other != folder for name in modules]:
        sys.modules.pop(name, None)
    sys.modules.update(_imported.setdefault(folder, {}))


def _import_advice(error: BaseException, folder: Path) -> str:
    """Returns what to do about a failed import, "" if nothing is known.

    A helper of a script may have the name of an installed module, which replaces it, or be in the current folder, which
    is not searched.
    """
    if isinstance(error, ImportError):
        name = error.name
    else:
        name = getattr(error.obj, "__name__", None) if isinstance(error, AttributeError) else None
    name = str(name or "").partition(".")[0]
    if isinstance(error, ModuleNotFoundError) and any(os.path.exists(place) for place in (f"{name}.py", name)):
        return f"Set PYTHONPATH to {os.getcwd()}: the current folder has {name}, and is not searched without that."
    if name not in sys.modules or _is_own(name, folder):
        return ""
    helper = next((path for path in (folder / f"{name}.py", folder / name) if path.exists()), None)
    return f"Rename {helper}: an installed module has the same name and is imported instead." if helper else ""


class UserFunction:
    """A function of the user's Python file.

    The file is executed when this object is made, and what it imports from its own folder is imported again. That
    folder is searched last, and only while the script runs, so that no file in it replaces an installed module or a
    helper of another script. What the script prints goes to stderr, since stdout carries data.

    Args:
        path: The Python file.
        name: The function in it.

    Raises:
        InputError: the file cannot be read, raises, or has no such function.
    """

    def __init__(self, path: str | Path, name: str) -> None:
        self.path = Path(os.path.realpath(path))
        self.name = name
        if not self.path.is_file():
            raise missing_file(f"Script not found: {path}", path)
        regular(self.path, most=SCRIPT_BYTES)
        digest = hashlib.sha256(str(self.path).encode()).hexdigest()[:12]
        name_of_module = f"trt_tui_user_{self.path.stem}_{digest}"
        module_spec = importlib.util.spec_from_file_location(
            name_of_module, self.path, loader=_SourceLoader(name_of_module, str(self.path)))
        assert module_spec is not None and module_spec.loader is not None  # of a file that ends in .py there is one
        module = importlib.util.module_from_spec(module_spec)
        sys.modules[module_spec.name] = module
        for imported in _imported.pop(self.path.parent, {}):
            sys.modules.pop(imported, None)
        _opened.pop(self.path.parent, None)
        _watch_opened()
        with self._guard(f"{self.path.name} cannot be loaded"):
            module_spec.loader.exec_module(module)
        function = getattr(module, name, None)
        if not callable(function):
            functions = [key for key, value in vars(module).items() if callable(value) and not key.startswith("_")]
            raise InputError(
                f"{self.path.name} has no function {name}",
                f"It has: {', '.join(functions)}." if functions else "It defines no function.",
                f"Name the function as {self.path.name}:FUNCTION.",
            )
        self._function: Callable[..., Any] = function

    def __str__(self) -> str:
        return f"{self.path.name}:{self.name}"

    def __call__(self, *args: Any) -> Any:
        """Calls the function.

        Raises:
            InputError: it raised; names the exception and the line of the file.
        """
        with self._guard(f"{self} failed"):
            return self._function(*args)

    def iterate(self, *args: Any) -> Iterator[Any]:
        """Calls the function and yields the items of what it returns, each guarded as the call itself.

        A mapping counts as one item.

        Raises:
            InputError: it raised, or what it returned is not iterable.
        """
        result = self(*args)
        if isinstance(result, Mapping):
            result = (result,)
        with self._guard(f"{self} failed"):
            try:
                iterator = iter(result)
            except TypeError:
                raise InputError(
                    f"{self} returned {type(result).__name__}",
                    "It must return or yield dictionaries of arrays.",
                    "Yield one dictionary {input name: array} per feed.",
                ) from None
        end = object()
        while True:
            with self._guard(f"{self} failed"):
                item = next(iterator, end)
            if item is end:
                return
            yield item

    @contextlib.contextmanager
    def _guard(self, title: str) -> Iterator[None]:
        _use_modules_of(self.path.parent)
        folder, before = str(self.path.parent), set(sys.modules)
        sys.path.append(folder)
        sys.path_hooks.insert(0, _find_in_script_folders)
        sys.path_importer_cache.pop(folder, None)
        outer, _running.folder = getattr(_running, "folder", None), self.path.parent
        try:
            with contextlib.redirect_stdout(sys.stderr):
                yield
        except TrtTuiError:
            raise
        except (KeyboardInterrupt, GeneratorExit):
            raise
        except BaseException as error:  # a script may end the program, or raise exceptions of its own
            next_step = _import_advice(error, self.path.parent) or f"Correct {self.path}."
            raise InputError(title, self._describe(error), next_step) from error
        finally:
            _running.folder = outer
            sys.path_hooks.remove(_find_in_script_folders)
            sys.path_importer_cache.pop(folder, None)
            if folder in sys.path:
                del sys.path[-1 - sys.path[::-1].index(folder)]
            _imported[self.path.parent].update(
                {name: sys.modules[name] for name in set(sys.modules) - before if _is_own(name, self.path.parent)})

    def _describe(self, error: BaseException) -> str:
        """The exception with the deepest line of the user's file that it went through."""
        if isinstance(error, SyntaxError) and error.filename and Path(error.filename) == self.path:
            line = error.lineno
        else:
            lines = [
                frame.lineno
                for frame in traceback.extract_tb(error.__traceback__)
                if Path(frame.filename) == self.path
            ]
            line = lines[-1] if lines else None
        where = f" (line {line} of {self.path.name})" if line else ""
        message = error.msg if isinstance(error, SyntaxError) else text_of(error)
        return f"{type(error).__name__}: {message}{where}" if message else f"{type(error).__name__}{where}"
