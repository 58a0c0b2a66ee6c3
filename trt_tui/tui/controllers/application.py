"""The actions on the application itself: log, help page, close and quit."""

from trt_tui.core.report.glossary import Term
from trt_tui.tui.controllers.controller import Controller, register_action
from trt_tui.tui.screens.explanation import ExplanationDialog
from trt_tui.tui.screens.help import HelpPage
from trt_tui.tui.screens.log import LogPage
from trt_tui.tui.state.explanations import explain_term, list_explained_terms
from trt_tui.tui.state.tree import View


class ApplicationController(Controller):
    """The controller of the log, the help page, closing and quitting."""

    @register_action(label="log", help="Show why a job failed, then the log; at its end the reasons "
                     "for PASS? and FAIL? in full", group="Files")
    def log(self) -> None:
        """Shows the newest failure if the user has not seen it yet, else the log."""
        if (unread := self.status.unread_failure) is not None:
            self.status.unread_failure = None
            self.presenter.draw_status_lines()
            self.presenter.show_failure_dialog(unread.title, unread.cause, unread.next_step)
            return
        self.open_dialog(LogPage(self.session))

    @register_action(label="keys", help="All keys, actions, words and marks: type to find one, enter runs or explains "
                     "it", group="Application", footer=0)
    def help(self) -> None:
        """Shows the help page, and performs the action or explains the word that the user chooses there."""
        def apply_choice(choice: str | Term) -> None:
            if isinstance(choice, Term):
                self.open_dialog(ExplanationDialog(lambda: explain_term(choice)))
            else:
                self.presenter.perform_action(choice)

        self.open_dialog(HelpPage(self.presenter.actions.values(), list_explained_terms()), apply_choice)

    @register_action(label="close", help="Close the topmost dialog or pane", group="Application")
    def close(self) -> None:
        """Closes the failure line, else the filter, else an enlarged pane. If none is open, the tree gets the focus."""
        presenter, screen, layer_list = self.presenter, self.presenter.screen, self.layer_list
        if self.status.unread_failure is not None:
            self.status.unread_failure = None
            presenter.draw_status_lines()
        elif layer_list.matches is not None or screen.has_class("-filtering"):
            presenter.clear_filter()
            presenter.layer_tree.focus()
            line = presenter.layer_tree.current_row
            group = presenter.current_group
            if group is not None:
                layer_list.reveal_group(group.name)
            presenter.draw_layer_tree(line.key if line is not None else None)
        elif presenter.zoomed_pane_name:
            presenter.zoom_pane("")
        elif (self.status.message is None and screen.focused is not presenter.layer_tree
              and layer_list.view is not View.BLOCKS):
            presenter.layer_tree.focus()

    @register_action(label="quit", help="Save and quit", group="Application", footer=70)
    def quit(self) -> None:
        self.presenter.quit_app()
