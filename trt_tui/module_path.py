"""The module search path of the program's processes.

No process searches the current folder for modules, unless the user names that folder. Python puts the current folder
first on the path of ``python -m`` and ``python -c``, and in place of an empty element of PYTHONPATH. A file ``re.py``
or ``numpy.py`` in a downloaded folder would then run as part of any command.
"""

import os
import sys

_ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
"""The folder that this package is imported from: a checkout, or a folder of installed packages."""

_PACKAGE_FOLDERS = ("site-packages", "dist-packages", "lib-dynload")
"""The names of folders that Python always searches."""

_START_CODE = (
    "import sys; sys.path[:] = {path!r}; import gc; gc.set_threshold(100_000, 20, 50); "
    "import runpy; runpy.run_module({module!r}, None, '__main__', True)"
)
"""The Python code that runs a module in a new process.

Garbage collection is made rare, because imported modules and the many small objects of a big network are never garbage.
"""


def python_command(module: str, *arguments: object) -> list[str]:
    """Returns the command that runs a module in a new process with the module search path of this one.

    Args:
        module: The name of a module or package, as after ``python -m``.
        arguments: Arguments of the module.
    """
    named_folders = [os.path.abspath(folder) for folder in os.environ.get("PYTHONPATH", "").split(os.pathsep) if folder]
    path = list(dict.fromkeys(filter(None, (*named_folders, *sys.path))))
    options = ["-P", "-B"] if sys.dont_write_bytecode else ["-P"]  # -P keeps the current folder off the path
    return [sys.executable, *options, "-c", _START_CODE.format(path=path, module=module), *map(str, arguments)]


def remove_current_folder_from_path() -> None:
    """Removes the current folder from the module search path if only an empty element of PYTHONPATH names that folder.

    The empty element is removed from PYTHONPATH too. The folder stays on the path if Python or this package is in that
    folder.
    """
    value = os.environ.get("PYTHONPATH", "")
    named_folders = [folder for folder in value.split(os.pathsep) if folder]
    if sys.flags.ignore_environment or os.pathsep.join(named_folders) == value:
        return
    os.environ["PYTHONPATH"] = os.pathsep.join(named_folders)
    current_folder = _get_current_folder()
    if current_folder not in (*map(os.path.abspath, named_folders), os.path.dirname(os.__file__)) and not _is_installed(
        current_folder
    ):
        sys.path[:] = [folder for folder in sys.path if folder != current_folder]


def remove_start_folder_from_path() -> None:
    """Removes the current folder from the head of the module search path, where ``python -m trt_tui`` puts that folder."""
    if not (sys.flags.isolated or sys.flags.safe_path):
        if sys.path[0] == _get_current_folder() and not _is_installed(sys.path[0]):
            del sys.path[0]


def _get_current_folder() -> str:
    """Returns the path of the current folder; "" if the folder no longer exists."""
    try:
        return os.getcwd()
    except OSError:
        return ""


def _is_installed(folder: str) -> bool:
    """Returns True if this package or other installed packages are imported from a folder."""
    return folder == _ROOT or os.path.basename(folder) in _PACKAGE_FOLDERS
