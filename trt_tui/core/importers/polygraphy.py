"""The importer of Python scripts with the TensorRT API, such as Polygraphy postprocess scripts. Scripts are read as
text and never run.

A script sets ``layer.precision``, ``layer.set_output_type`` and ranges of tensors in loops over the network's layers.
The loops are in the function ``postprocess``. In a script without this function, they are in the module or in any
function, and flags of the builder set the default precisions. The importer parses the script with `ast`. It evaluates
conditions for each node of the network from the node's name and operator. It supports a few kinds of expressions:
comparisons, ``in``, ``startswith``, ``re``, ``any`` and ``all`` over constants. A statement that depends on anything
else (the index of a layer, a function, a computed value) has no effect and is listed as not read, with its line. A
script from trt-tui contains a table, which is read directly.
"""

import ast
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from trt_tui.core.builder_options import OMISSION_MARKER
from trt_tui.core.importers.command_lines import (
    POLYGRAPHY,
    PRECISION_BY_NAME,
    parse_commands,
    refuse_strongly_typed_build,
)
from trt_tui.core.importers.imported_settings import ImportedSettings
from trt_tui.core.importers.python_scripts import (
    UNREADABLE_SCRIPT_ERRORS,
    find_constants,
    iterate_changed_names,
    parse_script,
)
from trt_tui.core.importers.trtexec import apply_precision_flags
from trt_tui.core.network.layers import Layer
from trt_tui.core.network.network import Network
from trt_tui.core.precision import Precision
from trt_tui.core.quantized_types import MAX_AMAX
from trt_tui.errors import InputError
from trt_tui.formatting import name_list_text

_PRECISION_BY_NAME = {**PRECISION_BY_NAME, "FLOAT": Precision.FP32, "HALF": Precision.FP16, "BF16": Precision.BF16,
                      "INT8": Precision.INT8, "FP8": Precision.FP8, "INT4": Precision.INT4}

_OPERATORS_BY_LAYER_TYPE = {
    "CONVOLUTION": ("Conv",), "DECONVOLUTION": ("ConvTranspose",), "SOFTMAX": ("Softmax", "LogSoftmax"),
    "MATRIX_MULTIPLY": ("MatMul", "Gemm", "Einsum"), "FULLY_CONNECTED": ("Gemm",), "EINSUM": ("Einsum",),
    "NORMALIZATION": ("LayerNormalization", "InstanceNormalization", "GroupNormalization", "RMSNormalization"),
    "ELEMENTWISE": ("Add", "Sub", "Mul", "Div", "Pow", "Max", "Min"), "CONCATENATION": ("Concat",),
    "REDUCE": ("ReduceMean", "ReduceSum", "ReduceMax", "ReduceMin", "ReduceProd", "ReduceL2"),
    "ACTIVATION": ("Relu", "Sigmoid", "Tanh", "LeakyRelu", "Elu", "Selu", "Softplus", "HardSigmoid", "Clip"),
    "POOLING": ("MaxPool", "AveragePool", "GlobalAveragePool"), "RESIZE": ("Resize", "Upsample"),
    "UNARY": ("Exp", "Log", "Sqrt", "Abs", "Neg", "Erf", "Reciprocal"), "TOPK": ("TopK",), "GATHER": ("Gather",)}
"""ONNX operators by the ``trt.LayerType`` that TensorRT makes of them. No node matches a type that is not listed."""

_MAX_VALUES = 100_000
"""Maximum number of values in a list that a script builds. Values of inner lists count each time."""

_INTEGER_TYPE_NAMES = frozenset(("int32", "int64", "INT32", "INT64", "bool", "BOOL"))


_SCRIPT_PATTERN = re.compile(r"^def \w+\(|\.precision\s*=|\.set_output_type\(|dynamic_range|\bBuilderFlag\.",
                             re.MULTILINE)

_PRECISION_FLAGS = ("FP16", "BF16", "INT8", "FP8", "INT4")
"""The members of ``trt.BuilderFlag`` that allow a precision."""


class _UnsupportedExpression(Exception):
    """The error for an expression that the importer cannot evaluate. Its text states the reason."""


class _LayerType(str):
    """The name of a ``trt.LayerType`` in a script."""


class _LoopBreak(Exception):
    """The signal that a ``break`` in a script ends the current loop."""


class _UnknownValue:
    """The value of a variable that the importer cannot determine."""


def is_tensorrt_script(text: str) -> bool:
    """Returns True if a text is Python with a function, such as a postprocess script, or Python that sets precisions.

    The file name does not matter.
    """
    first_line = next(iter(text.splitlines()), "")
    if not _SCRIPT_PATTERN.search(text) or first_line.startswith("#!") and "python" not in first_line:
        return False
    try:
        tree = parse_script(text)
    except UNREADABLE_SCRIPT_ERRORS:
        return "def postprocess(" in text
    return any(isinstance(statement, ast.FunctionDef) for statement in tree.body) or any(
        _is_precision_setter(node) for node in ast.walk(tree))


def read_tensorrt_script(text: str, network: Network, file: Path, function_name: str = "postprocess", *,
                           must_set: bool = True) -> ImportedSettings:
    """Reads the precisions and ranges that a script sets for the nodes of a network.

    Args:
        function_name: The function that Polygraphy calls. If the script lacks it, the statements of the module and of
            all functions are read.
        must_set: True if a script that sets nothing is refused. If False, it is refused only if parts could not be
            read.

    Raises:
        InputError: The text is not valid Python, sets nothing, or builds a strongly typed network.
    """
    try:
        tree = parse_script(text)
    except UNREADABLE_SCRIPT_ERRORS as error:
        cause = f"line {error.lineno}: {error.msg}" if isinstance(error, SyntaxError) else (
            str(error) or "it is nested too deep")
        raise InputError(f"{file.name} is not readable Python code", cause,
                         "Name a postprocess script, a trtexec line, or a precision.json.") from None
    constants = find_constants(tree.body)
    settings = _read_exported_script(tree, constants, network, file)
    has_flags = False
    if settings is None:
        reader = _ScriptReader(tree, constants, network, function_name)
        settings, has_flags = reader.read_settings(), reader.has_precision_flags
    if not settings.layer_precisions and not settings.ranges and not has_flags and (must_set or settings.unread_lines):
        if any(isinstance(node, ast.Attribute) and node.attr == "STRONGLY_TYPED" for node in ast.walk(tree)):
            refuse_strongly_typed_build(file, "its precisions are in the ONNX file that it reads, not in the script")
        raise InputError(
            f"{file.name} sets no precisions that could be read on {network.name}",
            name_list_text(settings.unread_lines, 3) or "it sets layer.precision of no layer of this network",
            "Name a postprocess script, a trtexec line, or a precision.json.")
    return settings


def _read_exported_script(tree: ast.Module, constants: Mapping[str, Any], network: Network,
                          file: Path) -> ImportedSettings | None:
    """Reads the settings of a script that trt-tui exported; None for any other script.

    The script contains a table of layers. The command in its heading contains the other settings.
    """
    layer_table, flags = constants.get("TOLD"), constants.get("FLAGS")
    settings, heading = ImportedSettings("a Polygraphy script of trt-tui"), ast.get_docstring(tree) or ""
    try:
        command = next((item for item in parse_commands(heading, "") if item.tool == POLYGRAPHY), None)
    except InputError:  # the user edited the script
        command = None
    options = command.options if command is not None else {}
    settings.tf32 = "tf32" in options
    if cache := options.get("calibration-cache"):
        settings.cache_path = file.parent / cache[-1]
    if not isinstance(layer_table, Mapping) or not isinstance(flags, list) or "precisions" not in layer_table:
        return None
    try:
        settings.layer_precisions = {
            str(name): Precision(precision_name)
            for name, precision_name in layer_table["precisions"].items()
        }
        settings.output_precisions = {
            str(name): Precision(precision_name)
            for name, precision_name in layer_table.get("output_types", {}).items()
        }
        settings.ranges = {str(name): abs(float(amax)) for name, amax in layer_table.get("ranges", {}).items()
                           if abs(float(amax)) <= MAX_AMAX}
    except (ValueError, TypeError, AttributeError):  # the user edited the script: it is read like any other
        return None
    float_types = [item for item in (Precision.FP16, Precision.BF16) if item.value in flags]
    settings.other = float_types[0] if float_types else Precision.FP32
    settings.quantized = Precision.INT8 if Precision.INT8.value in flags else settings.other
    settings.restore_omitted_settings(constants.get(OMISSION_MARKER))
    return settings


class _ScriptReader:
    """An interpreter of a script's statements, which evaluates them for each node of a network."""

    def __init__(self, tree: ast.Module, constants: Mapping[str, Any], network: Network, function_name: str) -> None:
        self.tree, self.constants, self.network, self.function_name = tree, constants, network, function_name
        self.settings = ImportedSettings("a Polygraphy script")
        self.builder_flags: dict[str, bool] = {}
        self._unread_by_line: dict[int, str] = {}
        self._network_texts = _find_network_expressions(tree)

    def read_settings(self) -> ImportedSettings:
        """Interprets the script and returns its settings.

        The default precisions follow from the precisions that the script sets.
        """
        settings = self.settings
        functions = [node for node in ast.walk(self.tree) if isinstance(node, ast.FunctionDef)]
        if called_functions := [item for item in functions if item.name == self.function_name]:
            functions = called_functions
        else:
            settings.tool = "a TensorRT script"
            self._interpret_statements(self.tree.body, None, {})
        module_networks = self._network_texts
        for function in functions:
            arguments = [item.arg for item in (*function.args.args, *function.args.kwonlyargs)]
            self._network_texts = module_networks if "network" in arguments or not arguments else {
                *module_networks, arguments[0]}
            self._interpret_statements(function.body, None, dict.fromkeys(arguments, _UnknownValue()))
        settings.unread_lines += [f"line {line}: {reason}" for line, reason in sorted(self._unread_by_line.items())]
        if self.has_precision_flags:
            self._apply_builder_flags()
        else:
            self._choose_default_precisions()
        return settings

    @property
    def has_precision_flags(self) -> bool:
        """True if the script sets or clears a flag of the builder that allows a precision."""
        return not self.builder_flags.keys().isdisjoint(_PRECISION_FLAGS)

    def _choose_default_precisions(self) -> None:
        """Sets the default precisions from the precisions that the script sets for layers."""
        settings = self.settings
        precisions = {*settings.layer_precisions.values(), *([Precision.INT8] if settings.ranges else [])}
        settings.other = Precision.BF16 if Precision.BF16 in precisions else Precision.FP16
        settings.quantized = Precision.INT8 if Precision.INT8 in precisions else settings.other
        other_text = f" in {settings.other.label}" if settings.quantized is not settings.other else ""
        settings.notes.append(
            f"it does not set the other layers, which are read as {settings.quantized.label}{other_text}; "
            "the flags of a build command set them (--int8 --fp16)")

    def _apply_builder_flags(self) -> None:
        """Sets the default precisions from the flags of the builder."""
        settings, flags = self.settings, [name for name, is_set in self.builder_flags.items() if is_set]
        apply_precision_flags(settings, [name.lower() for name in ("FP16", "BF16") if name in flags],
                              [name.lower() for name in ("INT8", "FP8", "INT4") if name in flags])
        settings.tf32 = self.builder_flags.get("TF32", True)
        if settings.tf32:
            settings.notes.append("FP32 layers may use TF32, which TensorRT allows unless the script clears "
                                  "BuilderFlag.TF32")
        if settings.layer_precisions and not {"OBEY_PRECISION_CONSTRAINTS", "PREFER_PRECISION_CONSTRAINTS",
                                              "STRICT_TYPES"}.intersection(flags):
            settings.notes.append("TensorRT applies layer.precision only with BuilderFlag.OBEY_PRECISION_CONSTRAINTS "
                                  "or PREFER_PRECISION_CONSTRAINTS, which is missing; here the precisions are applied")

    # -- statements ---------------------------------------------------------------------------------------------

    def _interpret_statements(self, body: Sequence[ast.stmt], layer: Layer | None, variables: dict[str, Any]) -> bool:
        """Interprets a list of statements. Returns False if the rest of the current loop iteration is skipped.

        Args:
            layer: The node of the innermost loop over layers; None outside such loops.
            variables: The values of the script's variables.
        """
        for statement in body:
            if isinstance(statement, (ast.Continue, ast.Return)):
                return False
            if isinstance(statement, ast.Break):
                raise _LoopBreak
            if not self._interpret_statement(statement, layer, variables):
                return False
        return True

    def _interpret_statement(self, statement: ast.stmt, layer: Layer | None, variables: dict[str, Any]) -> bool:
        if isinstance(statement, ast.For):
            self._interpret_loop(statement, layer, variables)
        elif isinstance(statement, ast.If):
            try:
                branch = statement.body if self._evaluate_expression(statement.test, variables) else statement.orelse
            except _UnsupportedExpression as error:
                if any(_is_precision_setter(node) for node in ast.walk(statement)) or _has_loop_exit(statement):
                    self._unread_by_line[statement.lineno] = f"if {ast.unparse(statement.test)[:60]}: {error}"
                _forget_changed_variables(statement, variables)
                return layer is None or not _has_loop_exit(statement)
            return self._interpret_statements(branch, layer, variables)
        elif isinstance(statement, (ast.With, ast.Try)):
            return self._interpret_statements(statement.body, layer, variables)
        elif isinstance(statement, ast.Assign) and len(statement.targets) == 1:
            self._interpret_assignment(statement, statement.targets[0], variables)
        elif isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call):
            self._interpret_call(statement.value, variables)
        elif isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            pass  # its statements are interpreted on their own
        elif isinstance(statement, ast.AugAssign) and (flags := _list_flag_names(statement.value)):
            self.builder_flags.update(dict.fromkeys(flags, isinstance(statement.op, ast.BitOr)))
        elif any(_is_precision_setter(node) for node in ast.walk(statement)):
            first_line = ast.unparse(statement).splitlines()[0][:60]
            self._unread_by_line[statement.lineno] = f"{first_line}: cannot be evaluated"
        else:
            _forget_changed_variables(statement, variables)
        return True

    def _interpret_loop(self, loop: ast.For, layer: Layer | None, variables: dict[str, Any]) -> None:
        """Interprets a loop over the network's layers, over their indices, or over constants."""
        iterable_text, targets = ast.unparse(loop.iter), ast.unparse(loop.target).strip("()").split(", ")
        layer_values: dict[str, Callable[[Layer], tuple[Any, ...]]] = {}
        for network_text in self._network_texts:
            layer_values |= {
                network_text: lambda item: (item, ),
                f"range({network_text}.num_layers)": lambda item: (_LayerIndex(item), ),
                f"range(0, {network_text}.num_layers)": lambda item: (_LayerIndex(item), ),
                f"range(len({network_text}))": lambda item: (_LayerIndex(item), ),
                f"enumerate({network_text})": lambda item: (_LayerIndex(item), item)
            }
        if (get_values := layer_values.get(iterable_text)
            ) is not None and len(targets) == 1 + iterable_text.startswith("enumerate"):
            _forget_changed_variables(loop, variables)  # their values depend on the layers before
            for item in self.network.layers:
                try:
                    self._interpret_statements(loop.body, item,
                                               {**variables, **dict(zip(targets, get_values(item), strict=True))})
                except _LoopBreak:
                    self.settings.notes.append(f"the loop in line {loop.lineno} ends at {item.name}; its layers are "
                                               "read in the order of the network's nodes")
                    break
            return
        if isinstance(loop.target, ast.Name):
            try:
                values = self._evaluate_expression(loop.iter, variables)
                for value in list(values):
                    variables[loop.target.id] = value
                    self._interpret_statements(loop.body, layer, variables)
                return
            except _LoopBreak:
                return
            except (_UnsupportedExpression, TypeError):  # listed below if the loop sets precisions
                pass
        _forget_changed_variables(loop, variables)
        if any(_is_precision_setter(item) for item in ast.walk(loop)):
            self._unread_by_line[loop.lineno] = f"for {ast.unparse(loop.target)} in {iterable_text[:60]}"

    def _interpret_assignment(self, statement: ast.Assign, target: ast.expr, variables: dict[str, Any]) -> None:
        if isinstance(target, ast.Name):
            try:
                variables[target.id] = self._evaluate_expression(statement.value, variables)
            except _UnsupportedExpression:
                variables[target.id] = _UnknownValue()
        elif isinstance(target, ast.Attribute) and target.attr == "flags" and (
                flags := _list_flag_names(statement.value)):
            self.builder_flags.update(dict.fromkeys(flags, True))
        elif isinstance(target, ast.Attribute) and target.attr in ("precision", "dynamic_range"):
            self._apply_action_to_value(statement, target.value, variables, lambda layer: self._set_layer_attribute(
                target.attr, layer, statement.value, variables))
        else:
            _forget_changed_variables(target, variables)

    def _interpret_call(self, call: ast.Call, variables: dict[str, Any]) -> None:
        if not isinstance(call.func, ast.Attribute):
            for argument in call.args:
                try:
                    if isinstance(self._evaluate_expression(argument, variables), Layer) and (
                            ast.unparse(call.func) != "print"):
                        self._unread_by_line[
                            call.lineno] = f"{ast.unparse(call)[:60]}: the effect of a function cannot be evaluated"
                except _UnsupportedExpression:  # no layer that is known here, so nothing is told of it
                    continue
            return
        method, owner = call.func.attr, call.func.value
        if method == "set_output_type" and len(call.args) == 2:
            self._apply_action_to_value(
                call, owner, variables, lambda layer: self.settings.output_precisions.__setitem__(
                    layer.name, self._parse_precision(call.args[1])))
        elif method == "set_dynamic_range" and len(call.args) == 2:
            self._apply_action_to_value(
                call, owner, variables,
                lambda layer: self._set_layer_attribute("dynamic_range", layer, ast.Tuple(call.args), variables))
        elif method in ("set_flag", "clear_flag") and len(call.args) == 1:
            self.builder_flags.update(dict.fromkeys(_list_flag_names(call.args[0]), method == "set_flag"))
        else:
            _forget_changed_variables(call, variables)

    def _apply_action_to_value(self, node: ast.stmt | ast.expr, owner_expression: ast.expr, variables: dict[str, Any],
                               action: Callable[[Any], None]) -> None:
        """Applies an action to the value of an expression. If the expression is not supported, its line is listed as
        not read."""
        try:
            action(self._evaluate_expression(owner_expression, variables))
        except _UnsupportedExpression as error:
            self._unread_by_line[node.lineno] = f"{ast.unparse(node)[:60]}: {error}"

    def _set_layer_attribute(self, attribute: str, owner: Any, value: ast.expr, variables: dict[str, Any]) -> None:
        if attribute == "precision" and isinstance(owner, Layer):
            self.settings.layer_precisions[owner.name] = self._parse_precision(value)
        elif attribute == "dynamic_range" and isinstance(owner, _LayerTensor):
            try:
                low, high = (float(number) for number in self._evaluate_expression(value, variables))
            except (TypeError, ValueError, OverflowError):
                raise _UnsupportedExpression("no two numbers") from None
            if not (amax := max(abs(low), abs(high))) <= MAX_AMAX:
                raise _UnsupportedExpression("a range outside FP32")
            self.settings.ranges[owner.name] = amax
        else:
            raise _UnsupportedExpression(f"of {type(owner).__name__.lstrip('_')}")

    @staticmethod
    def _parse_precision(value: ast.expr) -> Precision:
        type_name = ast.unparse(value).rpartition(".")[2]
        if type_name not in _PRECISION_BY_NAME:
            raise _UnsupportedExpression("integers" if type_name in
                                         _INTEGER_TYPE_NAMES else f"{ast.unparse(value)[:40]} is not a precision")
        return _PRECISION_BY_NAME[type_name]

    # -- expressions --------------------------------------------------------------------------------------------

    def _evaluate_expression(self, node: ast.expr, variables: Mapping[str, Any]) -> Any:
        """Returns the value of an expression in the script.

        Raises:
            _UnsupportedExpression: The expression is of an unsupported kind, or its evaluation fails.
        """
        try:
            return self._evaluate_known_expression(node, variables)
        except (TypeError, ValueError, ArithmeticError, re.error, RecursionError) as error:
            raise _UnsupportedExpression(f"{type(error).__name__}: {error}") from None

    def _evaluate_known_expression(self, node: ast.expr, variables: Mapping[str, Any]) -> Any:
        if isinstance(node, ast.Constant):
            return node.value
        if isinstance(node, ast.Name):
            if node.id in variables:
                if isinstance(variables[node.id], _UnknownValue):
                    raise _UnsupportedExpression(f"{node.id} is not known")
                return variables[node.id]
            if node.id in self.constants:
                return self.constants[node.id]
            raise _UnsupportedExpression(f"{node.id} is not known")
        if isinstance(node, (ast.Tuple, ast.List, ast.Set)):
            return _check_list_size([self._evaluate_expression(operand, variables) for operand in node.elts])
        if isinstance(node, ast.Attribute):
            return self._evaluate_attribute(node, variables)
        if isinstance(node, ast.BoolOp):
            value = None
            for operand in node.values:
                value = self._evaluate_expression(operand, variables)
                if bool(value) is isinstance(node.op, ast.Or):
                    break
            return value
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, (ast.Not, ast.USub)):
            value = self._evaluate_expression(node.operand, variables)
            return not value if isinstance(node.op, ast.Not) else -value
        if isinstance(node, ast.Compare):
            return self._evaluate_comparison(node, variables)
        if isinstance(node, ast.Call):
            return self._evaluate_call(node, variables)
        if isinstance(node, ast.Subscript):
            return self._evaluate_subscript(node, variables)
        raise _UnsupportedExpression(f"{type(node).__name__} cannot be evaluated")

    def _evaluate_attribute(self, node: ast.Attribute, variables: Mapping[str, Any]) -> Any:
        text = ast.unparse(node)
        if "LayerType." in text:
            return _LayerType(node.attr)
        if node.attr.startswith("platform_has_fast_"):
            return True
        owner = self._evaluate_expression(node.value, variables)
        if isinstance(owner, (Layer, _LayerTensor)) and node.attr == "name":
            return owner.name
        if isinstance(owner, Layer) and node.attr == "type":
            return owner
        if isinstance(owner, Layer) and node.attr in ("num_outputs", "num_inputs"):
            return len(owner.outputs if node.attr == "num_outputs" else owner.inputs)
        raise _UnsupportedExpression(f"{text[:40]} is not known here")

    def _evaluate_comparison(self, node: ast.Compare, variables: Mapping[str, Any]) -> bool:
        if len(node.ops) != 1:
            raise _UnsupportedExpression("chained comparisons cannot be evaluated")
        first, operator, second = self._evaluate_expression(node.left,
                                                            variables), node.ops[0], self._evaluate_expression(
                                                                node.comparators[0], variables)
        if isinstance(first, (_LayerIndex, _LayerTensor)) or isinstance(second, (_LayerIndex, _LayerTensor)):
            raise _UnsupportedExpression("TensorRT numbers layers differently")
        # A comparison of layer types: the type of a node follows from its operator.
        if isinstance(first, Layer) or isinstance(second, Layer):  # of types: a node is what its operator becomes
            layer_types = second if isinstance(second, list) else [second]
            is_same = any(
                isinstance(layer_type, _LayerType) and isinstance(first, Layer) and _has_layer_type(first, layer_type)
                for layer_type in layer_types)
            return is_same is isinstance(operator, (ast.Eq, ast.In, ast.Is))
        if isinstance(operator, (ast.In, ast.NotIn)):
            if not isinstance(second, (str, list, tuple, set, dict)):
                raise _UnsupportedExpression("in a value that is not a list")
            return (first in second) is isinstance(operator, ast.In)
        if isinstance(operator, (ast.Eq, ast.Is, ast.NotEq, ast.IsNot)):
            return (first == second) is isinstance(operator, (ast.Eq, ast.Is))
        raise _UnsupportedExpression(f"{type(operator).__name__} cannot be evaluated")

    def _evaluate_call(self, node: ast.Call, variables: Mapping[str, Any]) -> Any:
        function_text = ast.unparse(node.func)
        only_argument = node.args[0] if len(node.args) == 1 else None
        if function_text in ("any", "all") and isinstance(only_argument, (ast.GeneratorExp, ast.ListComp)):
            return (any if function_text == "any" else all)(self._evaluate_comprehension(only_argument, variables))
        if function_text in ("re.match", "re.search", "re.fullmatch") and len(node.args) == 2:
            pattern, searched_text = (self._evaluate_expression(argument, variables) for argument in node.args)
            if not isinstance(pattern, str) or not isinstance(searched_text, str) or len(pattern) > 1000:
                raise _UnsupportedExpression("a pattern of something else than texts")
            return bool({"re.match": re.match, "re.search": re.search, "re.fullmatch": re.fullmatch}[function_text](
                pattern, searched_text))
        if function_text == "range" and only_argument is not None:
            count = self._evaluate_expression(only_argument, variables)
            if not isinstance(count, int) or count > _MAX_VALUES:
                raise _UnsupportedExpression("range() of something else than a small number")
            return list(range(count))
        if isinstance(node.func, ast.Attribute):
            owner_text, method = ast.unparse(node.func.value), node.func.attr
            is_network_method = owner_text in self._network_texts
            owner = None if is_network_method else self._evaluate_expression(node.func.value, variables)
            values = [self._evaluate_expression(argument, variables) for argument in node.args]
            if is_network_method and method == "get_layer" and len(values) == 1 and isinstance(
                    values[0], _LayerIndex):
                return values[0].layer
            if isinstance(owner, Layer) and method in ("get_output", "get_input") and values and isinstance(
                    values[0], int):
                tensors = owner.outputs if method == "get_output" else owner.inputs
                if 0 <= values[0] < len(tensors):
                    return _LayerTensor(tensors[values[0]])
            if isinstance(owner, str) and method in ("startswith", "endswith") and len(values) == 1:
                affixes = tuple(values[0]) if isinstance(values[0], list) else values[0]
                return owner.startswith(affixes) if method == "startswith" else owner.endswith(affixes)
            if isinstance(owner, str) and method in ("lower", "upper") and not values:
                return owner.lower() if method == "lower" else owner.upper()
        raise _UnsupportedExpression(f"{function_text[:40]}() cannot be evaluated")

    def _evaluate_comprehension(self, node: ast.GeneratorExp | ast.ListComp, variables: Mapping[str, Any]) -> list[Any]:
        generator = node.generators[0]
        if len(node.generators) != 1 or not isinstance(generator.target, ast.Name):
            raise _UnsupportedExpression("this any() or all() cannot be evaluated")
        values = []
        for value in list(self._evaluate_expression(generator.iter, variables)):
            inner_variables = {**variables, generator.target.id: value}
            if all(self._evaluate_expression(test, inner_variables) for test in generator.ifs):
                values.append(self._evaluate_expression(node.elt, inner_variables))
        return _check_list_size(values)

    def _evaluate_subscript(self, node: ast.Subscript, variables: Mapping[str, Any]) -> Any:
        if ast.unparse(node.value) in self._network_texts:
            if isinstance(index := self._evaluate_expression(node.slice, variables), _LayerIndex):
                return index.layer
            raise _UnsupportedExpression("TensorRT numbers layers differently")
        owner, key = self._evaluate_expression(node.value, variables), self._evaluate_expression(node.slice, variables)
        try:
            return owner[key]
        except (TypeError, KeyError, IndexError):
            raise _UnsupportedExpression(f"{ast.unparse(node)[:40]} is not known") from None


def _check_list_size(values: list[Any]) -> list[Any]:
    """Returns the list if it has at most `_MAX_VALUES` values, including those of inner lists, so that comparisons are
    fast."""
    count, pending = 0, [values]
    while pending:
        inner = pending.pop()
        count += len(inner)
        if count > _MAX_VALUES:
            raise _UnsupportedExpression(f"a list of over {_MAX_VALUES:,} values")
        pending += [value for value in inner if isinstance(value, list)]
    return values


class _LayerIndex:
    """The index of a layer in a script's loop. TensorRT's number is unknown, so the object stores the layer itself."""

    def __init__(self, layer: Layer) -> None:
        self.layer = layer


class _LayerTensor:
    """An input or output tensor of a layer in a script."""

    def __init__(self, name: str) -> None:
        self.name = name


def _has_layer_type(layer: Layer, layer_type: _LayerType) -> bool:
    return layer.op_type in _OPERATORS_BY_LAYER_TYPE.get(layer_type, ())


def _is_precision_setter(node: ast.AST) -> bool:
    """Returns True if a syntax node of a script sets a precision, output type or range, or a flag that allows one."""
    if isinstance(node, ast.Attribute) and node.attr in _PRECISION_FLAGS:
        return ast.unparse(node.value).endswith("BuilderFlag")
    attributes = ("precision", "dynamic_range", "set_output_type", "set_dynamic_range")
    return isinstance(node, ast.Attribute) and node.attr in attributes and (
        isinstance(node.ctx, ast.Store) or node.attr.startswith("set_"))


def _list_flag_names(expression: ast.expr) -> list[str]:
    """Returns the names of the members of ``trt.BuilderFlag`` in an expression."""
    return [node.attr for node in ast.walk(expression) if isinstance(node, ast.Attribute)
            and isinstance(node.value, (ast.Name, ast.Attribute)) and ast.unparse(node.value).endswith("BuilderFlag")]


def _find_network_expressions(tree: ast.Module) -> set[str]:
    """Finds the variables and attributes of a script that contain the network, as their source text.

    They are ``network`` and those that are assigned the result of ``create_network``.
    """
    texts = {"network"}
    for node in ast.walk(tree):
        value = node.value if isinstance(node, ast.Assign) else node.context_expr if isinstance(
            node, ast.withitem) else None
        if isinstance(value, ast.Call) and ast.unparse(value.func).endswith("create_network"):
            targets = node.targets if isinstance(node, ast.Assign) else [node.optional_vars]  # type: ignore[attr-defined]
            texts |= {ast.unparse(target) for target in targets if isinstance(target, (ast.Name, ast.Attribute))}
    return texts


def _forget_changed_variables(tree: ast.AST, variables: dict[str, Any]) -> None:
    """Marks all variables that a statement may change as unknown."""
    variables.update(dict.fromkeys(iterate_changed_names(tree), _UnknownValue()))


def _has_loop_exit(statement: ast.If) -> bool:
    """Returns True if a branch of an ``if`` statement ends the current loop iteration."""
    return any(isinstance(node, (ast.Continue, ast.Break, ast.Return)) for node in ast.walk(statement))
