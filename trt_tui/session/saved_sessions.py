"""The form of saved sessions in their files: the history of configs, their names, and the target."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec

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
from trt_tui.files.reading import MAX_TEXT_BYTES, read_bytes
from trt_tui.session.history import ChangeHistory, ConfigNames, SearchDoubt, UserState

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
        doubt, doubt_targets: The reason for doubt that a search found in the config, and the targets of that search.
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
    doubt: str = ""
    doubt_targets: str = ""

    @classmethod
    def from_user_state(cls, state: UserState, session_target: str) -> StoredConfig:
        """Builds the stored form of a state of the history. Names and filters are not part of it."""
        return msgspec.structs.replace(cls.from_precision_config(state.config),
                                       target_text=None if state.target_text == session_target else state.target_text)

    def to_user_state(self, session: SavedSession, config_names: ConfigNames) -> UserState:
        """Returns the state of the history, with the current names of the saved session."""
        target_text = session.target if self.target_text is None else self.target_text
        return UserState(self.to_precision_config(), target_text, "", config_names.chosen_names)

    @classmethod
    def from_precision_config(cls, config: PrecisionConfig, name: str = "", exported: bool = False,
                              doubt: SearchDoubt | None = None) -> StoredConfig:
        """Builds the stored form of a config. Only listed configs have names, exports and doubts."""
        moves = [{"target": subject, **encode_move(move)} for (_, subject), move in config.moves.items()]
        doubt = doubt or SearchDoubt("", "")
        return cls(config.quantized, config.other, config.tf32, moves, name, exported=exported, doubt=doubt.text,
                   doubt_targets=doubt.targets)

    def to_precision_config(self) -> PrecisionConfig:
        """Returns the config.

        Raises:
            UnknownMoveKindError: A move has an unknown kind.
            ValueError: A move is damaged.
        """
        entries = [
            *({"target": subject, **entry, "kind": PrecisionMove.kind} for subject, entry in self.groups.items()),
            *({"target": subject, **entry, "kind": RangeMove.kind} for subject, entry in self.ranges.items()),
            *self.moves
        ]
        moves = [(msgspec.convert(entry.get("target"), str), decode_move(entry)) for entry in entries]
        return PrecisionConfig(self.quantized, self.other, self.tf32,
                               {(move.kind, subject): move for subject, move in moves})


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
    def from_state(cls, outline: NetworkOutline, history: ChangeHistory, config_names: ConfigNames, target: str,
                   sha256: str = "", outcome: str = "", samples: str = "") -> SavedSession:
        """Builds a saved session with at most `MAX_STORED_CONFIGS` configs of each kind."""
        past, current, future = history.snapshot()
        current = replace(current, target_text=target)
        past_states, future_states = _list_distinct_states(past, current), _list_distinct_states(future, current)
        return cls(FORMAT, VERSION, os.path.realpath(outline.path),
                   [StoredConfig.from_user_state(state, target) for state in past_states[-MAX_STORED_CONFIGS:]],
                   StoredConfig.from_user_state(current, target),
                   [StoredConfig.from_user_state(state, target) for state in future_states[-MAX_STORED_CONFIGS:]], [
                       StoredConfig.from_precision_config(config, name, config in config_names.exported_configs,
                                                          config_names.search_doubts.get(config))
                       for config, name in list(config_names.items())[-MAX_STORED_CONFIGS:]
                   ], target, sha256=sha256, outcome=outcome, samples=samples)

    def to_change_history(self) -> ChangeHistory:
        """Returns the history, in which all states have the names of the saved session."""
        names = self.to_config_names()
        past, (current,), future = ([stored_config.to_user_state(self, names) for stored_config in stored_configs]
                                    for stored_configs in (self.past, [self.current], self.future))
        return ChangeHistory.from_snapshot(past, current, future)

    def to_config_names(self) -> ConfigNames:
        """Returns the names, exports and doubts of the configs in the saved session."""
        stored = [(stored_config.to_precision_config(), stored_config) for stored_config in self.named_configs]
        return ConfigNames(
            ((config, stored_config.name) for config, stored_config in stored),
            (config for config, stored_config in stored if stored_config.exported),
            {config: SearchDoubt(stored_config.doubt, stored_config.doubt_targets)
             for config, stored_config in stored if stored_config.doubt})

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
                if not move.subject_kind.has_subject_name(network, subject) or move.subject_kind.find_move_subject(
                        network, subject) != subject:
                    return f"the network has no {move.subject_kind.subject_noun} {subject}"
                if refusal := move.refusal_reason(network, subject):
                    return f"{subject} cannot {move.action_text}: {refusal}"
        return ""


def _list_distinct_states(states: list[UserState], current: UserState) -> list[UserState]:
    """Returns the states that lead to the current one without those that changed only names or filters."""
    return [state for state, next_state in pairwise([*states, current])
            if (state.config, state.target_text) != (next_state.config, next_state.target_text)]


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
