"""Finding the fix: starting a search, taking over what it finds, and telling it."""

from collections.abc import Callable, Mapping
from typing import Any

from trt_tui.errors import TrtTuiError
from trt_tui.jobs import events as ev
from trt_tui.jobs import requests as rq
from trt_tui.session.finding import Finding, found_so_far, held_out_words, iteration_table, lowered_table
from trt_tui.tui import known
from trt_tui.tui.controllers.controller import Controller, action
from trt_tui.tui.controllers.desk import Desk
from trt_tui.tui.controllers.target import wrong_target
from trt_tui.tui.keys import key
from trt_tui.tui.screens.dialogs import Question
from trt_tui.tui.screens.find import FindDialog
from trt_tui.tui.state.figures import search_marks
from trt_tui.words import table


class Searches(Controller):
    """See the module's docstring."""

    def __init__(self, desk: Desk) -> None:
        super().__init__(desk)
        self._marks: Mapping[str, str] = {}
        self._told_of: Finding | None = None

    def heeds(self) -> Mapping[type[ev.Event], Callable[[Any], None]]:
        """Handlers that mark what is tried, and tell once what was found."""
        return {ev.SearchProgress: self._progressed, ev.SearchEnded: self._ended,
                ev.Cancelled: self._stopped}

    def _progressed(self, event: ev.SearchProgress) -> None:
        if self.session.searching:
            if (marks := search_marks(self.session)) != self._marks:
                self._marks, self.desk.stale_figures = marks, True

    def _ended(self, event: ev.SearchEnded) -> None:
        self.desk.stale_figures = True
        self._tell()

    def _stopped(self, event: ev.Cancelled) -> None:
        self._tell()

    def cannot_find(self) -> str:
        """Why no search can begin."""
        return "" if self.session.searching else self.cannot_build()

    @action(label="fix", help="Find the fewest layers to raise so that the target is met; again: take the "
            "best so far over", group="Work", disabled=cannot_find, footer=18)
    def find(self) -> None:
        """Asks what to search for; while a search runs, whether to take its best."""
        session = self.session
        if session.searching and session.finding is not None:
            self._ask_to_take(session.finding, "Take the best so far over, and end the search? "
                              f"{found_so_far(session.finding)}.")
            return
        name = known.config_name(session)
        def chosen(answer: tuple[str, rq.FindConfig] | None) -> None:
            if answer is not None:
                tolerance, request = answer
                if session.target is None or tolerance != session.target.text:
                    session.set_target(tolerance)
                self._find(request)

        self.desk.app.push_screen(FindDialog(session, name, lambda text: wrong_target(session, text),
                                            known.is_met(session)), chosen)

    def _find(self, request: rq.FindConfig) -> None:
        try:
            self.session.search(request)
        except TrtTuiError as error:
            self.desk.show_error(error)
        self.desk.draw()

    def _ask_to_take(self, finding: Finding, question: str) -> None:
        """Asks whether what a search found becomes the config; if so, a search that still runs ends."""
        if finding.config is None:
            self.desk.say("nothing was found yet")
            return

        def answered(yes: bool | None) -> None:
            if not yes:
                return
            self._told_of = finding
            if self.session.searching and self.session.finding is finding:
                self.session.stop(self.session.asked.numbers(rq.FindConfig))
            if self.session.take_found():
                self.desk.changed()
            self.desk.say(f"{known.config_name(self.session)}, {key('undo')} takes it back: "
                          f"{found_so_far(finding)}", "")

        self.desk.app.push_screen(Question(question, "take it", "leave it"), answered)

    def _tell(self) -> None:
        """Says once what a search found, and where that is listed; the cursor and the keys stay where they are."""
        session, finding = self.session, self.session.finding
        if finding is None or finding is self._told_of or finding.ended is None and session.searching:
            return
        self._told_of = finding
        if not finding.finished or finding.ended is None:
            if finding.config not in (None, session.config):
                self.desk.say(f"{key('configs')} lists the best of the stopped search as "
                              f"{known.config_name(session, finding.config)}: {found_so_far(finding)}")
            return
        result = finding.ended.result
        session.log.extend(table(iteration_table(finding.ended.evaluations, finding.ended.built,
                                                 session.opened.outline, finding.request,
                                                 session.results.reference), flush_left=4))
        if rows := lowered_table(result.rows, session.opened.outline, finding.request):
            session.log.extend(table(rows, flush_left=3))
        if result.config == session.config:
            if result.config == finding.request.config:
                self.desk.say(f"nothing to do: {result.said}{_not_executed(finding)}", "")
            else:
                self.desk.say(f"{known.config_name(session)}, {key('undo')} takes it back: {result.said}"
                              f"{_not_executed(finding)}", "")
        else:
            exported = finding.ended.exported
            why = "; its engine misses it" if finding.ended.confirmed is False else ""
            why += f"; {exported.text}" if exported is not None and exported.met is not True else ""
            if finding.ended.held_out is not None:
                why += f"; {held_out_words(finding.ended.held_out)}"
            name = known.config_name(session, result.config)
            self.desk.say(f"{key('configs')} lists it as {name}: {result.said}{why}")


def _not_executed(finding: Finding) -> str:
    """The reason why the exported network was not executed, behind what a search found; "" if it was."""
    exported = finding.ended.exported if finding.ended is not None else None
    return f"; PASS?: {exported.text}" if exported is not None and exported.met is None else ""
