"""The base of all controllers: actions beside their handlers and reasons, and the events that they handle."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, ClassVar, Generic, Protocol, TypeVar

from trt_tui.core.network.hierarchy import LayerRow
from trt_tui.jobs import events as ev
from trt_tui.tui.actions import Action, BoundAction
from trt_tui.tui.controllers.desk import Desk
from trt_tui.tui.keys import key

C = TypeVar("C", bound="Controller")


class Handler(Generic[C]):
    """An action with the method that does it and the one that says why it cannot be done now; see `action`."""

    def __init__(self, make: Callable[[str], Action], do: Callable[[C], None], disabled: Callable[[C], str]) -> None:
        self._make, self._do, self._disabled = make, do, disabled

    def __set_name__(self, owner: type[C], name: str) -> None:
        self.action = self._make(name)

    def offer(self, controller: C) -> BoundAction:
        """The action, done by a controller."""
        return BoundAction(self.action, partial(self._do, controller), partial(self._disabled, controller))


class Controller:
    """One concern of the main screen.

    Attributes:
        handlers: Its actions, in the order of their methods.
    """

    handlers: ClassVar[tuple[Handler[Any], ...]] = ()

    def __init_subclass__(cls) -> None:
        cls.handlers = tuple(one for one in vars(cls).values() if isinstance(one, Handler))

    def __init__(self, desk: Desk) -> None:
        self.desk = desk
        self.session = desk.session
        self.listing = desk.listing
        self.status = desk.status

    def offers(self) -> list[BoundAction]:
        """What it can do."""
        return [handler.offer(self) for handler in self.handlers]

    def heeds(self) -> Mapping[type[ev.Event], Callable[[Any], None]]:
        """Handlers by type of event; the session has applied the event before, and all is drawn soon after."""
        return {}

    # -- reasons ------------------------------------------------------------------------------------------------

    def never(self) -> str:
        """For actions that can always be done."""
        return ""

    def not_open(self) -> str:
        """For actions on a network."""
        return "" if self.listing.is_open else "the network is not open yet"

    def no_groups(self) -> str:
        """For actions on groups."""
        if reason := self.not_open():
            return reason
        if self.desk.chosen_groups():
            return ""
        line = self.desk.current_line
        row = line.row if line is not None else None
        return (row.refused if isinstance(row, LayerRow) else "") or "this row has no precision to choose"

    def no_row(self) -> str:
        """For actions on a row."""
        return self.not_open() or ("" if self.desk.current_line is not None else "no row is chosen")

    def nothing_to_ask(self) -> str:
        """For actions that run the network."""
        if reason := self.not_open():
            return reason
        return "no samples: reopen with --data" if self.session.data is None else ""

    def cannot_build(self) -> str:
        """For actions that build."""
        if reason := self.nothing_to_ask():
            return reason
        if self.session.searching and self.session.builder is not None:
            return f"a search is going on, which builds too: {key('stop')} stops it"
        return f"a build is going on: {key('stop')} stops it" if self.session.building else ""


class Declaring(Protocol):
    """What `action` returns: a decorator that names the action after the method below it."""

    def __call__(self, do: Callable[[C], None]) -> Handler[C]:
        """The method as the handler of its action."""


def action(*, label: str, help: str, group: str, disabled: Callable[[Any], str] = Controller.never,
           footer: int | None = None) -> Declaring:
    """Makes a method do the action of its name, whose keys stand in `trt_tui.tui.keys.KEYS`; see `Action`.

    Args:
        disabled: The method that gives the reason why it cannot be done now, "" where it can.
    """
    def make(name: str) -> Action:
        return Action(name, label, help, group, footer)

    return lambda do: Handler(make, do, disabled)
