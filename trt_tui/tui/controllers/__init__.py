"""The controllers of the main screen. Each performs the actions of one area, and states why an action is impossible
now.

A new action is a method of a controller below `controller.register_action`. Keys, footer and help page then include it.
"""

from trt_tui.tui.actions import Action
from trt_tui.tui.controllers.application import ApplicationController
from trt_tui.tui.controllers.build import BuildController
from trt_tui.tui.controllers.configs import ConfigController, HistoryController
from trt_tui.tui.controllers.controller import Controller
from trt_tui.tui.controllers.explanation import ExplanationController
from trt_tui.tui.controllers.export import ExportController
from trt_tui.tui.controllers.job import JobController
from trt_tui.tui.controllers.navigation import NavigationController
from trt_tui.tui.controllers.precision import PrecisionController, RuleController
from trt_tui.tui.controllers.ranges import RangeController
from trt_tui.tui.controllers.row_filter import FilterController
from trt_tui.tui.controllers.search import SearchController
from trt_tui.tui.controllers.target import TargetController
from trt_tui.tui.controllers.view import ChartController, ViewController
from trt_tui.tui.controllers.zero_cost_moves import ZeroCostController

CONTROLLERS: tuple[type[Controller],
                   ...] = (NavigationController, FilterController, PrecisionController, RuleController, RangeController,
                           ZeroCostController, HistoryController, ExplanationController, ViewController,
                           ChartController, BuildController, SearchController, JobController, TargetController,
                           ConfigController, ExportController, ApplicationController)
"""All controllers, in the order in which the help page lists their actions."""

ACTIONS: tuple[Action, ...] = tuple(handler.action for kind in CONTROLLERS for handler in kind.action_handlers)
"""The actions of all controllers."""
