"""Controllers: each owns the actions of one concern, does them, and says why they cannot be done now.

A new key is a method in one of them, with `controller.action` above it; keys, footer, help and palette follow.
"""

from trt_tui.jobs import events as ev
from trt_tui.tui.actions import Action
from trt_tui.tui.controllers.application import Application
from trt_tui.tui.controllers.build import Builds
from trt_tui.tui.controllers.configs import Configs
from trt_tui.tui.controllers.controller import Controller
from trt_tui.tui.controllers.export import Exports
from trt_tui.tui.controllers.filtering import Filtering
from trt_tui.tui.controllers.free import FreeMoves
from trt_tui.tui.controllers.history import Changes
from trt_tui.tui.controllers.job import Jobs
from trt_tui.tui.controllers.navigate import Navigate
from trt_tui.tui.controllers.pictures import Pictures
from trt_tui.tui.controllers.precision import Precisions
from trt_tui.tui.controllers.ranges import Ranges
from trt_tui.tui.controllers.rules import Rules
from trt_tui.tui.controllers.search import Searches
from trt_tui.tui.controllers.target import Targets
from trt_tui.tui.controllers.view import Looks

CONTROLLERS: tuple[type[Controller], ...] = (
    Navigate, Filtering, Precisions, Rules, Ranges, FreeMoves, Changes, Looks, Pictures, Builds, Searches, Jobs,
    Targets, Configs, Exports, Application)
"""All of them; help and palette list their actions in this order."""

ACTIONS: tuple[Action, ...] = tuple(handler.action for kind in CONTROLLERS for handler in kind.handlers)
"""All actions."""

DRAWN_ONLY = (ev.Previewed, ev.Begun, ev.Recalled, ev.Progress, ev.Calibrated, ev.FactsMeasured, ev.Note,
              ev.RunsAt, ev.EngineWritten, ev.ConfigRead, ev.EngineRead, ev.DumpsCompared, ev.StageMeasured,
              ev.SamplesMeasured, ev.SampleJudged)
"""Events that no controller handles: the screen is drawn anew, as after every event, and nothing else."""
