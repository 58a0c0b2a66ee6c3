"""The states of a session with undo and redo, the names of its configs, and saved sessions.

Saved sessions are files in the user's state folder, by network. A thread writes them.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import platformdirs
from filelock import FileLock, Timeout

from trt_tui.core.data.input_files import FileStamp, read_file_stamp
from trt_tui.core.measure.results import RunKind
from trt_tui.core.measure.target import parse_target
from trt_tui.core.moves.config import (
    PrecisionConfig,
    PrecisionMove,
    RangeMove,
    UnknownMoveKindError,
    decode_move,
    encode_move,
)
from trt_tui.core.network.layers import NetworkOutline
from trt_tui.core.precision import ASSIGNABLE, FLOAT_PRECISIONS, Precision
from trt_tui.errors import InputError
from trt_tui.files.reading import MAX_TEXT_BYTES, read_bytes
from trt_tui.files.writing import make_private_folder, rename_damaged_file, write_file_atomically


def join_target_texts(targets: Iterable[str]) -> str:
    """Returns targets as one text, which depends neither on their order nor on how a target is written."""
    return _TARGETS_SEPARATOR.join(sorted(replace(parse_target(target), source="").text for target in targets))


_TARGETS_SEPARATOR = " and "


def imply_targets(targets: Iterable[str], weaker_targets: str) -> bool:
    """Returns True if a run that meets some targets also meets others.

    Args:
        weaker_targets: The other targets, from `join_target_texts`.
    """
    try:
        weaker = [*map(parse_target, weaker_targets.split(_TARGETS_SEPARATOR))]
    except InputError:  # the name of an output contains the separator
        return weaker_targets == join_target_texts(targets)
    stricter = [*map(parse_target, targets)]
    return all(any(target.is_as_strict_as(other) for target in stricter) for other in weaker)


@dataclass(frozen=True)
class SearchDoubt:
    """The reason for doubt that a search found in a config.

    Attributes:
        missed_runs: The runs that missed the targets; the simulated one on held-out samples. Empty if none did, but
            those of other configs were worse than simulated.
        is_from_file: True if a config file contains it, so that the samples of the search may be others.
    """

    text: str = ""
    missed_runs: frozenset[RunKind] = frozenset()
    is_from_file: bool = False


@dataclass(frozen=True)
class UserState:
    """Everything in a session that the user can change. Undo and redo restore such states.

    Two states are equal if their configs make the same decisions and the other fields are equal.

    Attributes:
        target_text: The targets as the user gave them; "" for the default target.
        chosen_names: The names that the user gave to configs.
        choice_reasons: The reasons of the search for the moves of ``config``, by group or tensor.
    """

    config: PrecisionConfig
    target_text: str = ""
    chosen_names: Mapping[PrecisionConfig, str] = field(default_factory=dict)
    choice_reasons: Mapping[str, str] = field(default_factory=dict, compare=False)


class ChangeHistory:
    """The states of a session with undo and redo.

    A redo restores an undone state, until the user makes another change.

    Attributes:
        state: The current state.
    """

    def __init__(self, initial_config: PrecisionConfig, target_text: str = "") -> None:
        self._past: list[UserState] = []
        self._future: list[UserState] = []
        self.state = UserState(initial_config, target_text)

    def change_fields(self, **changed_fields: Any) -> None:
        """Changes fields of the current state that the user did not change, without an undo step."""
        self.state = replace(self.state, **changed_fields)

    def push_config(self, config: PrecisionConfig) -> bool:
        """Makes a config the current one, as `push_state` does with a state in which only the config differs."""
        return self.push_state(replace(self.state, config=config))

    def push_state(self, state: UserState) -> bool:
        """Makes a state the current one. Returns True if it differs from the last state.

        If it does not differ, no undo step is added, and only the reasons are replaced.
        """
        is_changed = state != self.state
        if is_changed:
            self._past.append(self.state)
            self._future.clear()
        self.state = state
        return is_changed

    def undo(self) -> bool:
        """Restores the previous state. Returns True if there was a previous state."""
        return self._restore_last_state(self._past, self._future)

    def redo(self) -> bool:
        """Restores the state that was undone last. Returns True if there was an undone state."""
        return self._restore_last_state(self._future, self._past)

    def _restore_last_state(self, states: list[UserState], other_states: list[UserState]) -> bool:
        if not states:
            return False
        other_states.append(self.state)
        self.state = states.pop()
        return True

    def map_configs(self, change_config: Callable[[PrecisionConfig], PrecisionConfig]) -> None:
        """Changes every config of the history in place, without an undo step."""

        def change_state(state: UserState) -> UserState:
            return replace(
                state,
                config=change_config(state.config),
                chosen_names={change_config(config): name for config, name in state.chosen_names.items()},
            )

        self._past, self._future = list(map(change_state, self._past)), list(map(change_state, self._future))
        self.state = change_state(self.state)

    def snapshot(self) -> tuple[list[UserState], UserState, list[UserState]]:
        """Returns the past states (oldest first), the current state, and the undone states (the next redo last)."""
        return list(self._past), self.state, list(self._future)

    @classmethod
    def from_snapshot(cls, past: list[UserState], current: UserState, future: list[UserState]) -> ChangeHistory:
        """Builds a history from the result of `snapshot`."""
        history = cls(current.config)
        history._past, history.state, history._future = list(past), current, list(future)
        return history

    @property
    def can_undo(self) -> bool:
        return bool(self._past)

    @property
    def can_redo(self) -> bool:
        return bool(self._future)


MAX_NAME_LENGTH = 24
"""The maximum number of characters in the name of a config."""

_NUMBERED_NAME = re.compile(r"c\d+")
"""The names that the program gives to configs."""


class ConfigNames(dict[PrecisionConfig, str]):
    """The names of the configs in the order of their first use: c0, c1, ..., or the user's names.

    Attributes:
        chosen_names: The names that the user gave to configs.
        exported_configs: The configs that were exported for production.
        search_doubts: The reasons for doubt that searches found, by config and targets.
    """

    def __init__(
        self,
        names: Iterable[tuple[PrecisionConfig, str]] = (),
        exported_configs: Iterable[PrecisionConfig] = (),
        search_doubts: Mapping[tuple[PrecisionConfig, str], SearchDoubt] | None = None,
    ) -> None:
        super().__init__(names)
        self.exported_configs = set(exported_configs)
        self.search_doubts = dict(search_doubts or {})
        self.chosen_names = {config: name for config, name in self.items() if not _NUMBERED_NAME.fullmatch(name)}
        self._numbered_names: dict[PrecisionConfig, str] = {}

    def rename_config(self, config: PrecisionConfig, name: str) -> None:
        """Gives a config a name that the user has chosen.

        Raises:
            InputError: The name is empty, too long, or the name of another config.
        """
        if not name or len(name) > MAX_NAME_LENGTH or "\n" in name:
            raise InputError(
                f"{name!r} is not a valid name of a config",
                f"a name has 1 to {MAX_NAME_LENGTH} characters in one line",
                "Type another name.",
            )
        if any(other_name == name and other_config != config for other_config, other_name in self.items()):
            raise InputError(
                f"two configs cannot be called {name}", "another config has this name", "Type another name."
            )
        if self.get(config) != name:
            if config in self and config not in self.chosen_names:
                self._numbered_names[config] = self[config]
            self[config] = self.chosen_names[config] = name

    def find_numbered_name(self, config: PrecisionConfig) -> str:
        """Returns the name that the program gave to a config. The user may have given it another name since."""
        return self._numbered_names.get(config, self.get(config, ""))

    def restore_chosen_names(self, chosen_names: Mapping[PrecisionConfig, str]) -> None:
        """Replaces the names that the user gave to configs. Configs that lose such a name get their numbered name
        again.
        """
        renamed = self.chosen_names.keys() - chosen_names.keys()
        self.chosen_names = dict(chosen_names)
        self.update({**dict.fromkeys(renamed, ""), **chosen_names})
        for config in renamed:
            numbered_name = self._numbered_names.get(config, "")
            self[config] = numbered_name if numbered_name not in {"", *self.values()} else self._find_free_name()

    def list_configs_newest_first(self) -> list[tuple[PrecisionConfig, str]]:
        """Returns the configs with their names, from newest to oldest."""
        return list(reversed(self.items()))

    def copy(self) -> ConfigNames:
        names = ConfigNames(self.items(), self.exported_configs, self.search_doubts)
        names.chosen_names, names._numbered_names = dict(self.chosen_names), dict(self._numbered_names)
        return names

    def get_config_name(self, config: PrecisionConfig) -> str:
        """Returns the name of a config. A config without a name gets the next free name."""
        if config not in self:
            self[config] = self._find_free_name()
        return self[config]

    def _find_free_name(self) -> str:
        number, used_names = len(self), {*self.values(), *self._numbered_names.values()}
        while f"c{number}" in used_names:
            number += 1
        return f"c{number}"


FORMAT = "trt-tui/session"
VERSION = 2
MAX_STORED_CONFIGS = 100
"""The maximum number of stored undo steps, redo steps and named configs, each."""


class StoredConfig(msgspec.Struct, omit_defaults=True):
    """One precision config in the file of a saved session.

    A session is one JSON file in the user's state folder, named after the structure of the network. The program that
    writes the file holds a lock on it. If another program opens the same network meanwhile, it starts from a copy and
    writes a separate file.

    Attributes:
        groups: Precisions by group in version 1; empty in later versions, which use `moves`.
        ranges: Ranges by tensor in version 1; empty in later versions.
        target_text: The target before or after the config; None for the target of the session.
        exported: True if the config was exported for production. Only named configs have it.
        doubts: The doubts in the config, by targets.
    """

    quantized: Precision
    other: Precision
    tf32: bool = False
    moves: list[dict[str, Any]] = []
    name: str = ""
    groups: dict[str, dict[str, Any]] = {}
    ranges: dict[str, dict[str, Any]] = {}
    target_text: str | None = None
    exported: bool = False
    doubts: dict[str, SearchDoubt] = {}

    @classmethod
    def from_user_state(cls, state: UserState, session_target: str) -> StoredConfig:
        """Builds the stored form of a state of the history. Names are not part of it."""
        return msgspec.structs.replace(
            cls.from_precision_config(state.config),
            target_text=None if state.target_text == session_target else state.target_text,
        )

    def to_user_state(self, session: SavedSession, config_names: ConfigNames) -> UserState:
        """Returns the state of the history, with the current names of the saved session."""
        target_text = session.target if self.target_text is None else self.target_text
        return UserState(self.to_precision_config(), target_text, config_names.chosen_names)

    @classmethod
    def from_precision_config(
        cls,
        config: PrecisionConfig,
        name: str = "",
        exported: bool = False,
        doubts: Mapping[tuple[PrecisionConfig, str], SearchDoubt] | None = None,
    ) -> StoredConfig:
        """Builds the stored form of a config. Only configs in the list of names have names, exports and doubts."""
        moves = [{"target": subject, **encode_move(move)} for (_, subject), move in config.moves.items()]
        return cls(
            config.quantized,
            config.other,
            config.tf32,
            moves,
            name,
            exported=exported,
            doubts={targets: doubt for (other, targets), doubt in (doubts or {}).items() if other == config},
        )

    def to_precision_config(self) -> PrecisionConfig:
        """Returns the config.

        Raises:
            UnknownMoveKindError: A move has an unknown kind.
            ValueError: A move is damaged.
        """
        entries = [
            *({"target": subject, **entry, "kind": PrecisionMove.kind} for subject, entry in self.groups.items()),
            *({"target": subject, **entry, "kind": RangeMove.kind} for subject, entry in self.ranges.items()),
            *self.moves,
        ]
        moves = [(msgspec.convert(entry.get("target"), str), decode_move(entry)) for entry in entries]
        return PrecisionConfig(
            self.quantized, self.other, self.tf32, {(move.kind, subject): move for subject, move in moves}
        )


class _SessionFileHeader(msgspec.Struct):
    """The entries that identify a file as a saved session."""

    format: str
    version: int


class SavedSession(msgspec.Struct):
    """A saved session: the history of configs, their names, and the target.

    Attributes:
        sha256: The hash of the weights behind the ranges; "" if unknown.
        outcome: The result of the target for the current config when the session was saved; "" if it was unknown.
        samples: The number of samples of that result, as text.
    """

    format: str
    version: int
    network: str
    past: list[StoredConfig]
    current: StoredConfig
    future: list[StoredConfig]
    named_configs: list[StoredConfig]
    target: str = ""
    note: str = ""
    sha256: str = ""
    outcome: str = ""
    samples: str = ""

    @classmethod
    def from_state(
        cls,
        outline: NetworkOutline,
        history: ChangeHistory,
        config_names: ConfigNames,
        target: str,
        sha256: str = "",
        outcome: str = "",
        samples: str = "",
    ) -> SavedSession:
        """Builds a saved session with at most `MAX_STORED_CONFIGS` configs of each kind."""
        past, current, future = history.snapshot()
        current = replace(current, target_text=target)
        past_states, future_states = _list_distinct_states(past, current), _list_distinct_states(future, current)
        return cls(
            FORMAT,
            VERSION,
            os.path.realpath(outline.path),
            [StoredConfig.from_user_state(state, target) for state in past_states[-MAX_STORED_CONFIGS:]],
            StoredConfig.from_user_state(current, target),
            [StoredConfig.from_user_state(state, target) for state in future_states[-MAX_STORED_CONFIGS:]],
            [
                StoredConfig.from_precision_config(
                    config, name, config in config_names.exported_configs, config_names.search_doubts
                )
                for config, name in list(config_names.items())[-MAX_STORED_CONFIGS:]
            ],
            target,
            sha256=sha256,
            outcome=outcome,
            samples=samples,
        )

    def to_change_history(self) -> ChangeHistory:
        """Returns the history, in which all states have the names of the saved session."""
        names = self.to_config_names()
        past, (current,), future = (
            [stored_config.to_user_state(self, names) for stored_config in stored_configs]
            for stored_configs in (self.past, [self.current], self.future)
        )
        return ChangeHistory.from_snapshot(past, current, future)

    def to_config_names(self) -> ConfigNames:
        """Returns the names, exports and doubts of the configs in the saved session."""
        stored = [(stored_config.to_precision_config(), stored_config) for stored_config in self.named_configs]
        return ConfigNames(
            ((config, stored_config.name) for config, stored_config in stored),
            (config for config, stored_config in stored if stored_config.exported),
            {
                (config, targets): doubt
                for config, stored_config in stored
                for targets, doubt in stored_config.doubts.items()
            },
        )

    def list_configs(self) -> list[PrecisionConfig]:
        """Returns all configs of the saved session.

        Raises:
            UnknownMoveKindError: A move has an unknown kind.
            ValueError: A move is damaged.
        """
        return [
            stored_config.to_precision_config()
            for stored_config in (*self.past, self.current, *self.future, *self.named_configs)
        ]

    def network_mismatch_reason(self, network: NetworkOutline) -> str:
        """Returns the reason why the configs of the saved session do not fit a network; "" if they do."""
        for config in self.list_configs():
            file = (Precision.FILE,) if network.has_file_precision else ()
            if config.quantized not in (*ASSIGNABLE, *file) or config.other not in (*FLOAT_PRECISIONS, *file):
                return f"a config's default is {config.quantized.label} and {config.other.label}"
            for (_, subject), move in config.moves.items():
                if (
                    not move.subject_kind.has_layer_or_tensor(network, subject)
                    or move.subject_kind.find_move_subject(network, subject) != subject
                ):
                    return f"the network has no {move.subject_kind.subject_noun} {subject}"
                if refusal := move.refusal_reason(network, subject):
                    return f"{subject} cannot {move.action_text}: {refusal}"
        return ""


def _list_distinct_states(states: list[UserState], current: UserState) -> list[UserState]:
    """Returns the states before the current one, without states that differ from the next only in names or filters."""
    return [
        state
        for state, next_state in pairwise([*states, current])
        if (state.config, state.target_text) != (next_state.config, next_state.target_text)
    ]


def read_session_file(path: Path) -> SavedSession | str:
    """Returns the saved session in a file, or the reason why this version of the program cannot use it.

    Raises:
        InputError: The file cannot be read.
        ValueError: The file is damaged.
        RecursionError: The file is nested too deeply.
    """
    data = read_bytes(path, MAX_TEXT_BYTES)
    try:
        record = msgspec.json.decode(data)
    except msgspec.DecodeError:
        record = json.loads(data)  # accepts lone surrogates (of names in broken UTF-8), unlike msgspec
    head = msgspec.convert(record, _SessionFileHeader)
    if head.format != FORMAT or head.version not in (1, VERSION):
        return f"it is version {head.version} of {head.format}"
    saved = msgspec.convert(record, SavedSession)
    try:
        saved.list_configs()
    except UnknownMoveKindError as error:
        return f"{error}. {error.next_step}".removesuffix(".")
    return saved


def encode_session(saved_session: SavedSession) -> bytes:
    try:
        return msgspec.json.encode(saved_session)
    except UnicodeEncodeError:
        return json.dumps(msgspec.to_builtins(saved_session)).encode("ascii")


MAX_SESSIONS = 100
"""The maximum number of separate saved sessions for one network structure."""


@dataclass(frozen=True)
class SessionEntry:
    """A saved session in the list of the sessions of a network.

    Attributes:
        path: The path of the file that was read.
        modified_time: The Unix time at which it was saved last.
        version: The version on disk before the reading.
        is_own: True for the session that this program writes.
    """

    path: Path
    modified_time: float
    version: FileStamp | None
    saved_session: SavedSession
    is_own: bool = False

    @property
    def name(self) -> str:
        """The name of the session, which ``--session`` takes."""
        return self.path.stem


class SessionFolder:
    """The folder of saved sessions.

    A session file is written by the program that holds its lock. The system releases the lock when the program ends. A
    second program on the same network writes a new session. A file that another program has changed
    nevertheless is never overwritten: the session then goes on in a new file.

    Args:
        folder: The folder; None for the user's state folder.
        requested_name: The name of the session to resume; "" for the newest session of the network.

    Attributes:
        name: The name of the session that this program wrote last; "" if it wrote none.
        load_failures: The sessions that could not be loaded, with the reason, one sentence each.
    """

    def __init__(self, folder: Path | None = None, requested_name: str = "") -> None:
        self.requested_name, self.name = requested_name, ""
        self.folder = folder or Path(platformdirs.user_state_dir("trt-tui")) / "sessions"
        self.load_failures: list[str] = []
        self._path: Path | None = None
        self._version: FileStamp | None = None
        self._lock: FileLock | None = None

    def load_session(
        self, structure_hash: str, network_path: str, outline: NetworkOutline | None = None
    ) -> SavedSession | None:
        """Returns the newest saved session of a network structure; None if there is none.

        A session of the same network file is preferred, whatever path leads to the file. This program then writes the
        session's file, unless another program has locked it or it belongs to another network file.

        A file of another version, or a file that does not fit ``outline``, is left unchanged. A damaged file is kept
        under another name. Both are listed in `load_failures`.
        """
        files = self._read_session_files(structure_hash, outline)
        if self.requested_name and all(file.name != self.requested_name for file in files):
            newest_text = "the newest one is resumed" if files else "none is resumed"
            self.load_failures.append(f"This network has no saved session {self.requested_name}: {newest_text}.")
        if not files:
            return None
        file = max(
            files,
            key=lambda entry: (
                entry.name == self.requested_name,
                _is_same_file(entry.saved_session.network, network_path),
                entry.modified_time,
            ),
        )
        saved = file.saved_session
        saved.note = ""
        if not _is_same_file(saved.network, network_path):
            saved.note = f"The session resumed is the one of {saved.network}, which has the same structure."
        else:
            saved.note = self._lock_session_file(file.path, file.version) or ""
        return saved

    def _read_session_files(self, structure_hash: str, outline: NetworkOutline | None) -> list[SessionEntry]:
        """Reads the sessions saved for a network structure, and returns those that fit the open network. Others go to
        `load_failures`."""
        self.load_failures = []
        files = []
        for path in self.folder.glob(f"{_session_file_stem(structure_hash)}*.json"):
            try:
                modified_time, version = path.stat().st_mtime, read_file_stamp(path)
                saved = read_session_file(path)
            except (OSError, InputError) as error:
                self._record_load_failure(path, getattr(error, "cause", "") or str(error))
                continue
            except (ValueError, RecursionError) as error:  # the errors of msgspec are ValueErrors
                self.load_failures.append(_set_aside_damaged_session(path, error))
                continue
            if isinstance(saved, str):
                self._record_load_failure(path, saved)
            elif outline is not None and (misfit := saved.network_mismatch_reason(outline)):
                self._record_load_failure(path, misfit)
            else:
                files.append(SessionEntry(path, modified_time, version, saved, path == self._path))
        return files

    def list_sessions(
        self, structure_hash: str, network_path: str, network_sha256: str, outline: NetworkOutline
    ) -> list[SessionEntry]:
        """Returns the saved sessions of a network file, or of files with the same content, the newest first."""
        files = [
            file
            for file in self._read_session_files(structure_hash, outline)
            if _is_same_file(file.saved_session.network, network_path)
            or network_sha256
            and file.saved_session.sha256 == network_sha256
        ]
        return sorted(files, key=lambda file: -file.modified_time)

    def open_session(self, name: str, structure_hash: str, network_path: str, outline: NetworkOutline) -> SavedSession:
        """Returns a saved session. From now on, this program writes that session in place of its previous one.

        If another program has the session open, this program writes a copy in a new file.

        Raises:
            InputError: The session is gone, damaged or does not fit the network.
        """
        files = self._read_session_files(structure_hash, outline)
        file = next((file for file in files if file.name == name), None)
        if file is None:
            raise InputError(
                f"the session {name} cannot be opened",
                next(iter(self.load_failures), "the file is gone"),
                "Choose another session.",
            )
        if (reason := self._lock_session_file(file.path, file.version)) is not None:
            file.saved_session.note = reason
            self.release_session_lock()
            self._lock_unused_file(structure_hash)
        return file.saved_session

    def delete_session(self, name: str) -> None:
        """Deletes a saved session.

        Raises:
            InputError: It is the session of this program, another program has it open, or the file cannot be removed.
        """
        path = self.folder / f"{name}.json"
        title = f"the session {name} cannot be deleted"
        if path == self._path:
            raise InputError(title, "it is the current session", "Open another one first.")
        lock = FileLock(path.with_suffix(".lock"), mode=0o600, thread_local=False)
        try:
            with lock.acquire(blocking=False):
                path.unlink(missing_ok=True)
        except Timeout:
            raise InputError(title, "it is open in another terminal", "Close it there first.") from None
        except OSError as error:
            raise InputError(title, error.strerror or str(error), "Change the permissions of its folder.") from None

    def save_session(self, structure_hash: str, saved_session: SavedSession) -> None:
        """Writes the session to its file. A full or read-only disk is ignored, so that the work can go on."""
        if self._path is None or read_file_stamp(self._path) not in (self._version, None):
            self._lock_unused_file(structure_hash)
        if self._path is not None:
            with contextlib.suppress(InputError):
                write_file_atomically(self._path, encode_session(saved_session), is_private=True)
                self._version = read_file_stamp(self._path)

    def _record_load_failure(self, path: Path, cause: str) -> None:
        self.load_failures.append(f"The session saved in {path} cannot be loaded and is left as it is: {cause}.")

    def release_session_lock(self) -> None:
        """Releases the lock, so that other programs can write the session."""
        if self._lock is not None:
            self._lock.release()
            self._lock = None
        self._path = None

    def _lock_unused_file(self, structure_hash: str) -> None:
        """Locks the first session file that does not exist and that no other program has locked."""
        stem = _session_file_stem(structure_hash)
        names = [stem, *(f"{stem}-{number}" for number in range(2, MAX_SESSIONS))]
        any(
            self._lock_session_file(path, None) is None
            for path in (self.folder / f"{name}.json" for name in names)
            if not path.exists()
        )

    def _lock_session_file(self, path: Path, version: FileStamp | None) -> str | None:
        """Locks a session file for this program. Returns the reason if the file cannot be locked.

        Args:
            version: The version of the file that was read. If it is another one later, the file is not overwritten.

        Returns:
            None if this program can write the file; "" if another program has the file open.
        """
        if path == self._path:
            self._version = version
            return None
        # The lock is acquired in one thread and released in another.
        lock = FileLock(path.with_suffix(".lock"), mode=0o600, thread_local=False)
        try:
            make_private_folder(self.folder)
            lock.acquire(blocking=False)
        except Timeout:
            return ""
        except OSError as error:
            return f"Sessions cannot be saved in {self.folder}: {error.strerror or error}."
        self.release_session_lock()
        self._lock, self._path, self._version, self.name = lock, path, version, path.stem
        return None


def _is_same_file(first_path: str, second_path: str) -> bool:
    """Returns True if two paths lead to the same file."""
    with contextlib.suppress(OSError, ValueError):  # a path with half a character raises ValueError
        return (
            first_path == second_path
            or os.path.realpath(first_path) == os.path.realpath(second_path)
            or os.path.samefile(first_path, second_path)
        )
    return False


def _set_aside_damaged_session(path: Path, error: Exception) -> str:
    """Renames a damaged session file, so that it is neither read nor written again. Returns a message about it."""
    message = f"The session saved in {path} is damaged and cannot be loaded"
    kept_path = rename_damaged_file(path)
    return f"{message}; it is kept as {kept_path.name}: {error}." if kept_path is not None else f"{message}: {error}."


def _session_file_stem(structure_hash: str) -> str:
    return structure_hash[:20]


class SessionWriter:
    """The thread that writes saved sessions. Of several sessions that wait, only the newest is written.

    Python does not exit before the thread has finished. Only a kill loses a session that waits to be written.

    Args:
        session_folder: The folder of saved sessions.
    """

    def __init__(self, session_folder: SessionFolder) -> None:
        self._session_folder = session_folder
        self._executor = ThreadPoolExecutor(1, "saving")
        self._writes: list[Future[None]] = []

    def save_session(self, structure_hash: str, make_saved_session: Callable[[], SavedSession]) -> None:
        """Requests that a session is written by the thread.

        Args:
            make_saved_session: Builds the session. It is called in the thread, so it must not read shared state.

        Raises:
            Exception: The error of the previous write.
        """
        begun = [write for write in self._writes if not write.cancel()]
        ended = [write for write in begun if write.done()]
        self._writes = [write for write in begun if write not in ended]
        self._writes.append(
            self._executor.submit(lambda: self._session_folder.save_session(structure_hash, make_saved_session()))
        )
        for write in ended:
            write.result()

    def flush(self) -> None:
        """Waits until all requested sessions are on disk. Raises the errors of `save_session`."""
        writes, self._writes = self._writes, []
        for write in writes:
            write.result()

    def close(self) -> None:
        """Writes all waiting sessions and releases the lock of the session file."""
        try:
            self.flush()
        finally:
            self._session_folder.release_session_lock()
