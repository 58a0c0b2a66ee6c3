"""Execution of one function in a user's Python file. Errors name the file and the line."""

import contextlib
import functools
import hashlib
import importlib.abc
import importlib.machinery
import importlib.util
import inspect
import os
import re
import sys
import threading
import traceback
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from trt_tui.errors import InputError, TrtTuiError, exception_text
from trt_tui.files.reading import MAX_SCRIPT_BYTES, check_regular_file, missing_file_error

_imported_modules: dict[Path, dict[str, ModuleType]] = {}
"""Modules that scripts of a folder have imported from that folder, by folder and name."""

_opened_files: dict[Path, dict[str, bool]] = {}
"""Files that scripts of a folder have opened, by folder and path. The value is True for files that were only read."""

_running_script = threading.local()
"""The folder of the script that runs in the current thread, in its attribute ``folder``."""

_CODE_SUFFIXES = (".py", ".pyc", ".so", ".pyd", ".dll")
"""Suffixes of files that an import opens."""

_DISTRIBUTIONS = {
    "Crypto": "pycryptodome",
    "Levenshtein": "python-Levenshtein",
    "PIL": "Pillow",
    "attr": "attrs",
    "bs4": "beautifulsoup4",
    "cuda": "cuda-python",
    "cv2": "opencv-python-headless",
    "dateutil": "python-dateutil",
    "dotenv": "python-dotenv",
    "faiss": "faiss-cpu",
    "fitz": "PyMuPDF",
    "google": "protobuf",
    "magic": "python-magic",
    "modelopt": "nvidia-modelopt",
    "mpl_toolkits": "matplotlib",
    "pkg_resources": "setuptools",
    "skimage": "scikit-image",
    "sklearn": "scikit-learn",
    "yaml": "PyYAML",
}
"""The names of packages on PyPI whose modules have other names."""

_SCRIPT_SPEC = re.compile(r"(?P<path>.+\.py)(?::(?P<function>[^:/\\]+))?", re.DOTALL)


def split_script_spec(spec: str) -> tuple[Path, str | None] | None:
    """Splits ``FILE.py`` or ``FILE.py:FUNCTION``; None if the text is neither."""
    match = _SCRIPT_SPEC.fullmatch(spec)
    return (Path(match["path"]), match["function"]) if match else None


def list_script_files(script_path: str | Path) -> tuple[Path, ...]:
    """Lists a script with the files that scripts in its folder have imported from there or read so far.

    A file that a script writes, such as its own cache, is left out.
    """
    script_path = Path(os.path.realpath(script_path))
    files = (_module_file(module) for _, module in sorted(_imported_modules.get(script_path.parent, {}).items()))
    read = (file for file, only_read in sorted(_opened_files.get(script_path.parent, {}).items()) if only_read)
    return (
        script_path,
        *(Path(file) for file in files if file),
        *(Path(file) for file in read if os.path.isfile(file)),
    )


def _record_opened_file(event: str, arguments: tuple[Any, ...]) -> None:
    """Records the files that a script opens. Python calls this audit hook at every audit event."""
    if event != "open" or (folder := getattr(_running_script, "folder", None)) is None:
        return
    path, mode, flags = arguments
    if not isinstance(path, (str, bytes)):
        return
    name = os.path.realpath(os.fsdecode(path))
    if name.endswith(_CODE_SUFFIXES) or name.startswith(_SYSTEM_FOLDERS):
        return
    reads = not set(mode) & set("wax+") if isinstance(mode, str) else flags & os.O_ACCMODE == os.O_RDONLY
    read_only_by_file = _opened_files.setdefault(folder, {})
    read_only_by_file[name] = reads and read_only_by_file.get(name, True)


_SYSTEM_FOLDERS = tuple(
    os.path.realpath(path) + os.sep for path in ("/proc", "/sys", "/dev", sys.prefix, sys.base_prefix)
)
"""Folders whose files do not belong to the user."""


@functools.cache
def _watch_opened_files() -> None:
    """Installs the audit hook that records opened files, once per process. Python cannot remove an audit hook."""
    sys.addaudithook(_record_opened_file)


def _module_file(module: ModuleType | None) -> str | None:
    return getattr(module, "__file__", None)


def _is_script_module(name: str, folder: Path) -> bool:
    """Returns True if an imported module is in the folder of a script and is not an installed package."""
    module = sys.modules.get(name)
    file = _module_file(module) or next(iter(getattr(module, "__path__", ())), None)  # a package without __init__.py
    return name.partition(".")[0] != "trt_tui" and bool(file and _is_in_folder(file, folder))


def _is_in_folder(path: str, folder: Path) -> bool:
    """Returns True if a path is in a folder, but not in a folder of installed packages."""
    return Path(path).is_relative_to(folder) and not {"site-packages", "dist-packages"} & set(
        Path(path).relative_to(folder).parts
    )


class _UncachedSourceLoader(importlib.machinery.SourceFileLoader):
    """An import loader that always compiles a script again.

    Python decides by size and time alone whether cached bytecode is current.
    """

    def path_stats(self, path: str) -> Mapping[str, Any]:
        """Always raises OSError, which tells Python that the file has no usable bytecode."""
        raise OSError


_uncached_path_hook = importlib.machinery.FileFinder.path_hook(
    (importlib.machinery.ExtensionFileLoader, importlib.machinery.EXTENSION_SUFFIXES),
    (_UncachedSourceLoader, importlib.machinery.SOURCE_SUFFIXES),
)


def _find_script_folder_loader(path: str) -> importlib.abc.PathEntryFinder:
    """Returns the import finder for a folder of scripts, except folders of installed packages.

    The function is an entry of `sys.path_hooks`.

    Raises:
        ImportError: The path is not in a folder of scripts.
    """
    if any(_is_in_folder(path, folder) for folder in _imported_modules):
        return _uncached_path_hook(path)
    raise ImportError(path)


def _activate_folder_modules(folder: Path) -> None:
    """Activates the modules that scripts of a folder imported, in place of the modules that scripts of other folders
    imported."""
    for name in [
        name for imported_folder, modules in _imported_modules.items() if imported_folder != folder for name in modules
    ]:
        sys.modules.pop(name, None)
    sys.modules.update(_imported_modules.setdefault(folder, {}))


def _failed_import_advice(error: BaseException, script_folder: Path) -> str:
    """Returns the next step after a failed import; "" if the cause is unknown.

    The package may be missing in the environment of the program, although the environment of the script has it. The
    helper module of a script may have the name of an installed module, which replaces it. Or it may be in the
    current folder, which is not searched.
    """
    if isinstance(error, ImportError):
        name = error.name
    else:
        name = getattr(error.obj, "__name__", None) if isinstance(error, AttributeError) else None
    name = str(name or "").partition(".")[0]
    if isinstance(error, ModuleNotFoundError) and any(os.path.exists(candidate) for candidate in (f"{name}.py", name)):
        return f"Set PYTHONPATH to {os.getcwd()}: the current folder has {name}, and is not searched without that."
    if isinstance(error, ModuleNotFoundError) and name and sys.modules.get(name) is None:
        package = _DISTRIBUTIONS.get(name, name)
        helper_text = "" if name in _DISTRIBUTIONS else f", or put {name}.py beside the script"
        return f"Install {package} in trt-tui's environment ({sys.executable} -m pip install {package}){helper_text}."
    if name not in sys.modules or _is_script_module(name, script_folder):
        return ""
    helper = next((path for path in (script_folder / f"{name}.py", script_folder / name) if path.exists()), None)
    return f"Rename {helper}: an installed module has the same name and is imported instead." if helper else ""


class UserFunction:
    """A function of a user's Python file.

    The constructor executes the file, and imports modules from the file's own folder again. That folder is searched
    last, and only while the script runs. No file in it can therefore replace an installed module or a helper of another
    script. The output of the script goes to stderr, because stdout carries data.

    Args:
        path: The Python file.
        name: The function in the file.

    Raises:
        InputError: The file cannot be read, raises an exception, or has no such function.
    """

    def __init__(self, path: str | Path, name: str) -> None:
        self.path = Path(os.path.realpath(path))
        self.name = name
        if not self.path.is_file():
            raise missing_file_error(f"Script not found: {path}", path)
        check_regular_file(self.path, max_bytes=MAX_SCRIPT_BYTES)
        digest = hashlib.sha256(str(self.path).encode()).hexdigest()[:12]
        name_of_module = f"trt_tui_user_{self.path.stem}_{digest}"
        module_spec = importlib.util.spec_from_file_location(
            name_of_module, self.path, loader=_UncachedSourceLoader(name_of_module, str(self.path))
        )
        assert module_spec is not None and module_spec.loader is not None  # both exist for every file that ends in .py
        module = importlib.util.module_from_spec(module_spec)
        sys.modules[module_spec.name] = module
        for imported in _imported_modules.pop(self.path.parent, {}):
            sys.modules.pop(imported, None)
        _opened_files.pop(self.path.parent, None)
        _watch_opened_files()
        with self._convert_script_errors(f"{self.path.name} cannot be loaded"):
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

    def check_parameters(self, *parameter_names: str) -> None:
        """Checks that the function accepts the given number of positional arguments.

        Raises:
            InputError: it cannot; the next step shows a definition with these parameters.
        """
        try:
            signature = inspect.signature(self._function)
        except (TypeError, ValueError):  # a callable written in C may have no signature
            return
        try:
            signature.bind(*parameter_names)
        except TypeError:
            arguments = ", ".join(parameter_names)
            raise InputError(
                f"{self} cannot be called with ({arguments})",
                f"its parameters are {signature}",
                f"Define it as def {self.name}({arguments}).",
            ) from None

    def __call__(self, *args: Any) -> Any:
        """Calls the user's function.

        Raises:
            InputError: The function raised an exception. The error names the exception and the line of the file.
        """
        with self._convert_script_errors(f"{self} failed"):
            return self._function(*args)

    def iterate_results(self, *args: Any) -> Iterator[Any]:
        """Calls the user's function and yields the items of its result. Errors of any item become errors of the script.

        A mapping counts as one item.

        Raises:
            InputError: The function raised an exception, or its result is not iterable.
        """
        result = self(*args)
        if isinstance(result, Mapping):
            result = (result,)
        with self._convert_script_errors(f"{self} failed"):
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
            with self._convert_script_errors(f"{self} failed"):
                item = next(iterator, end)
            if item is end:
                return
            yield item

    @contextlib.contextmanager
    def _convert_script_errors(self, error_title: str) -> Iterator[None]:
        _activate_folder_modules(self.path.parent)
        folder, before = str(self.path.parent), list(sys.modules)
        sys.path.append(folder)
        sys.path_hooks.insert(0, _find_script_folder_loader)
        sys.path_importer_cache.pop(folder, None)
        outer, _running_script.folder = getattr(_running_script, "folder", None), self.path.parent
        try:
            with contextlib.redirect_stdout(sys.stderr):
                yield
        except TrtTuiError:
            raise
        except (KeyboardInterrupt, GeneratorExit):
            raise
        except BaseException as error:  # a script may end the program, or raise exceptions of its own
            next_step = _failed_import_advice(error, self.path.parent) or f"Correct {self.path}."
            raise InputError(error_title, self._describe_error(error), next_step) from error
        finally:
            _running_script.folder = outer
            sys.path_hooks.remove(_find_script_folder_loader)
            sys.path_importer_cache.pop(folder, None)
            if folder in sys.path:
                del sys.path[-1 - sys.path[::-1].index(folder)]
            if list(sys.modules) != before:  # equal lists are compared faster than sets are made
                _imported_modules[self.path.parent].update(
                    {
                        name: sys.modules[name]
                        for name in sys.modules.keys() - before
                        if _is_script_module(name, self.path.parent)
                    }
                )

    def _describe_error(self, error: BaseException) -> str:
        """Returns the text of an exception, with the innermost line of its traceback that is in the user's file."""
        if isinstance(error, SyntaxError) and error.filename and Path(error.filename) == self.path:
            line = error.lineno
        else:
            lines = [
                frame.lineno for frame in traceback.extract_tb(error.__traceback__) if Path(frame.filename) == self.path
            ]
            line = lines[-1] if lines else None
        location = f" (line {line} of {self.path.name})" if line else ""
        message = error.msg if isinstance(error, SyntaxError) else exception_text(error)
        return f"{type(error).__name__}: {message}{location}" if message else f"{type(error).__name__}{location}"
