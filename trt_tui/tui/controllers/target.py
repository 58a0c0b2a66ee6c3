"""The target that runs must meet."""

from trt_tui.errors import TrtTuiError
from trt_tui.session.session import Session
from trt_tui.tui.controllers.controller import Controller, action
from trt_tui.tui.screens.dialogs import Prompt
from trt_tui.tui.state.verdict import result_lines


def wrong_target(session: Session, text: str) -> str:
    """What is wrong with a target as it is typed, "" where nothing is."""
    try:
        session.check_targets(text)
    except TrtTuiError as error:
        return f"{error.cause.rstrip('.')}. {error.next_step}"
    return ""


class Targets(Controller):
    """See the module's docstring."""

    @action(label="target", help="Change the target that runs must meet", group="Work",
            disabled=Controller.not_open)
    def target(self) -> None:
        """Asks for a target."""
        session = self.session

        def typed(text: str | None) -> None:
            if text is not None:
                session.set_target(text)
                self.desk.draw()

        note = "sqnr>=20 (dB, worst output), cosine>=0.999, agreement>=0.99"
        if session.results.reference:
            note += ", metric>=base-0.01, metric>=base-1%"
        if len(session.results.reference) > 1:
            part = list(session.results.reference)[1]
            note += f", metric[{part}]>=base-1%, metric[*]>=base-2%"
        note = ". ".join((*result_lines(session), note))
        text = session.targets_text or "sqnr>=20"
        self.desk.app.push_screen(Prompt("Target", text, note, lambda text: wrong_target(session, text)), typed)
