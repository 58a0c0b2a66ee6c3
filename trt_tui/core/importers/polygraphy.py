"""Polygraphy postprocess scripts, read as text and never run.

A script sets ``layer.precision``, ``layer.set_output_type`` and ranges of tensors in loops over the network's layers.
It is parsed with `ast`; conditions are worked out for each node of the network from its name and its operator, by a few
kinds of expressions (comparisons, ``in``, ``startswith``, ``re``, ``any`` and ``all`` over constants). What a statement
depends on beyond that (an index of a layer, a function, a value that is computed) is listed as not read, with its line,
and what it would have set is left out. A script that trt-tui wrote holds a table, which is taken as it is.
"""

import ast
import json
import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from trt_tui.core.codes import MAX_AMAX
from trt_tui.core.importers.asked import Asked
from trt_tui.core.importers.command_lines import POLYGRAPHY, TYPES, commands
from trt_tui.core.network.layers import Layer
from trt_tui.core.network.network import Network
from trt_tui.core.precision import Precision
from trt_tui.core.production import NOT_TOLD
from trt_tui.errors import InputError
from trt_tui.words import first_few

_DATA_TYPES = {**TYPES, "FLOAT": Precision.FP32, "HALF": Precision.FP16, "BF16": Precision.BF16,
               "INT8": Precision.INT8, "FP8": Precision.FP8, "INT4": Precision.INT4}

_OPERATORS = {
    "CONVOLUTION": ("Conv",), "DECONVOLUTION": ("ConvTranspose",), "SOFTMAX": ("Softmax", "LogSoftmax"),
    "MATRIX_MULTIPLY": ("MatMul", "Gemm", "Einsum"), "FULLY_CONNECTED": ("Gemm",), "EINSUM": ("Einsum",),
    "NORMALIZATION": ("LayerNormalization", "InstanceNormalization", "GroupNormalization", "RMSNormalization"),
    "ELEMENTWISE": ("Add", "Sub", "Mul", "Div", "Pow", "Max", "Min"), "CONCATENATION": ("Concat",),
    "REDUCE": ("ReduceMean", "ReduceSum", "ReduceMax", "ReduceMin", "ReduceProd", "ReduceL2"),
    "ACTIVATION": ("Relu", "Sigmoid", "Tanh", "LeakyRelu", "Elu", "Selu", "Softplus", "HardSigmoid", "Clip"),
    "POOLING": ("MaxPool", "AveragePool", "GlobalAveragePool"), "RESIZE": ("Resize", "Upsample"),
    "UNARY": ("Exp", "Log", "Sqrt", "Abs", "Neg", "Erf", "Reciprocal"), "TOPK": ("TopK",), "GATHER": ("Gather",)}
"""ONNX operators by the ``trt.LayerType`` that they become; of the types that are not here scripts ask in vain."""

_MAX_VALUES = 100_000
"""Values of a list that a script makes, those of lists in it counted each time."""

_INTEGERS = frozenset(("int32", "int64", "INT32", "INT64", "bool", "BOOL"))


_FUNCTION = re.compile(r"^def \w+\(", re.MULTILINE)


class _Unreadable(Exception):
    """An expression of another kind; its text says which."""


class _Type(str):
    """A ``trt.LayerType``, by name."""


def is_script(text: str) -> bool:
    """Returns True for Python with a function, such as a postprocess script, whatever its file is called."""
    first = next(iter(text.splitlines()), "")
    if not _FUNCTION.search(text) or first.startswith("#!") and "python" not in first:
        return False
    try:
        return any(isinstance(one, ast.FunctionDef) for one in _parsed(text).body)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return "def postprocess(" in text


def read_script(text: str, network: Network, file: Path, function: str = "postprocess", *,
                must_set: bool = True) -> Asked:
    """What a script sets, for the nodes of a network.

    Args:
        function: The function that Polygraphy calls.
        must_set: Refuse a script that sets nothing; else only one of which something could not be read.

    Raises:
        InputError: it is no Python, or sets nothing.
    """
    try:
        tree = _parsed(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        where = f"line {error.lineno}: {error.msg}" if isinstance(error, SyntaxError) else (
            str(error) or "it is nested too deep")
        raise InputError(f"{file.name} is no Python that can be read", where,
                         "Name a postprocess script, a trtexec line, or a precision.json.") from None
    constants = _constants(tree)
    asked = _own(tree, constants, network, file) or _Script(tree, constants, network, function).read()
    if not asked.layers and not asked.ranges and (must_set or asked.unread):
        raise InputError(f"{file.name} sets no precisions that could be read on {network.name}",
                         first_few(asked.unread, 3) or "nothing in it sets layer.precision of a layer that is there",
                         "Name a postprocess script, a trtexec line, or a precision.json.")
    return asked


def _parsed(text: str) -> ast.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of numbers and escapes that newer Pythons refuse
        return ast.parse(text)


def _constants(tree: ast.Module) -> dict[str, Any]:
    """What the module names by literals, and ``json.loads`` of one."""
    found: dict[str, Any] = {}
    for statement in tree.body:
        targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target] if isinstance(
            statement, ast.AnnAssign) else []
        value = statement.value if isinstance(statement, (ast.Assign, ast.AnnAssign)) else None
        if value is None or len(targets) != 1 or not isinstance(targets[0], ast.Name):
            continue
        loads = isinstance(value, ast.Call) and ast.unparse(value.func) == "json.loads" and len(value.args) == 1
        wrapped = isinstance(value, ast.Call) and ast.unparse(value.func) in ("set", "frozenset", "tuple", "list")
        try:
            if loads and isinstance(value, ast.Call):
                found[targets[0].id] = json.loads(ast.literal_eval(value.args[0]))
            elif wrapped and isinstance(value, ast.Call) and len(value.args) == 1:
                found[targets[0].id] = ast.literal_eval(value.args[0])
            else:
                found[targets[0].id] = ast.literal_eval(value)
        except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError):  # computed, not written down
            continue
    return found


def _own(tree: ast.Module, constants: Mapping[str, Any], network: Network, file: Path) -> Asked | None:
    """Returns the config of a script that trt-tui wrote; None for any other script.

    It holds a table of layers. Its heading holds the command that it is for, which says the rest.
    """
    told, flags = constants.get("TOLD"), constants.get("FLAGS")
    asked, heading = Asked("a Polygraphy script of trt-tui"), ast.get_docstring(tree) or ""
    try:
        command = next((one for one in commands(heading, "") if one.tool == POLYGRAPHY), None)
    except InputError:  # edited since
        command = None
    options = command.options if command is not None else {}
    asked.tf32 = "tf32" in options
    if cache := options.get("calibration-cache"):
        asked.cache = file.parent / cache[-1]
    if not isinstance(told, Mapping) or not isinstance(flags, list) or "precisions" not in told:
        return None
    try:
        asked.layers = {str(name): Precision(word) for name, word in told["precisions"].items()}
        asked.outputs = {str(name): Precision(word) for name, word in told.get("output_types", {}).items()}
        asked.ranges = {str(name): abs(float(amax)) for name, amax in told.get("ranges", {}).items()
                        if abs(float(amax)) <= MAX_AMAX}
    except (ValueError, TypeError, AttributeError):  # edited since: read as any other script
        return None
    floats = [one for one in (Precision.FP16, Precision.BF16) if one.value in flags]
    asked.other = floats[0] if floats else Precision.FP32
    asked.quantized = Precision.INT8 if Precision.INT8.value in flags else asked.other
    asked.take_left_out(constants.get(NOT_TOLD))
    return asked


class _Script:
    """Works a script's statements out for each node of a network."""

    def __init__(self, tree: ast.Module, constants: Mapping[str, Any], network: Network, function: str) -> None:
        self.tree, self.constants, self.network, self.function = tree, constants, network, function
        self.asked = Asked("a Polygraphy script")
        self._unread: dict[int, str] = {}
        self._name = "network"

    def read(self) -> Asked:
        """What it sets; what the rest runs in follows from what it sets."""
        asked, functions = self.asked, [node for node in self.tree.body if isinstance(node, ast.FunctionDef)]
        for function in [one for one in functions if one.name == self.function] or functions:
            arguments = [one.arg for one in (*function.args.args, *function.args.kwonlyargs)]
            self._name = "network" if "network" in arguments or not arguments else arguments[0]
            self._body(function.body, None, {})
        asked.unread += [f"line {line}: {why}" for line, why in sorted(self._unread.items())]
        kinds = {*asked.layers.values(), *([Precision.INT8] if asked.ranges else [])}
        asked.other = Precision.BF16 if Precision.BF16 in kinds else Precision.FP16
        asked.quantized = Precision.INT8 if Precision.INT8 in kinds else asked.other
        asked.notes.append(f"it says nothing of the rest, which is taken as {asked.quantized.label}"
                           f"{f' in {asked.other.label}' if asked.quantized is not asked.other else ''}; the flags of "
                           "a build command say it (--int8 --fp16)")
        return asked

    # -- statements ---------------------------------------------------------------------------------------------

    def _body(self, body: Sequence[ast.stmt], layer: Layer | None, names: dict[str, Any]) -> bool:
        """Goes through statements; False where the rest of a loop's round is skipped.

        Args:
            layer: The node that the innermost loop is at, None outside of loops over layers.
            names: What the script's variables are.
        """
        for statement in body:
            if isinstance(statement, (ast.Continue, ast.Break, ast.Return)):
                return False
            if not self._statement(statement, layer, names):
                return False
        return True

    def _statement(self, statement: ast.stmt, layer: Layer | None, names: dict[str, Any]) -> bool:
        if isinstance(statement, ast.For):
            self._loop(statement, layer, names)
        elif isinstance(statement, ast.If):
            try:
                branch = statement.body if self._value(statement.test, names) else statement.orelse
            except _Unreadable as error:
                if any(_sets(one) for one in ast.walk(statement)) or _skips(statement):
                    self._unread[statement.lineno] = f"if {ast.unparse(statement.test)[:60]}: {error}"
                return not _skips(statement)
            return self._body(branch, layer, names)
        elif isinstance(statement, (ast.With, ast.Try)):
            return self._body(statement.body, layer, names)
        elif isinstance(statement, ast.Assign) and len(statement.targets) == 1:
            self._assign(statement, statement.targets[0], names)
        elif isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call):
            self._call(statement.value, names)
        elif any(_sets(one) for one in ast.walk(statement)):
            self._unread[statement.lineno] = f"{ast.unparse(statement).splitlines()[0][:60]}: not worked out"
        return True

    def _loop(self, loop: ast.For, layer: Layer | None, names: dict[str, Any]) -> None:
        """A loop over the layers, by themselves or by their number, or over constants."""
        iterated, targets = ast.unparse(loop.iter), ast.unparse(loop.target).strip("()").split(", ")
        known: dict[str, Callable[[Layer], tuple[Any, ...]]] = {
            self._name: lambda one: (one,), f"range({self._name}.num_layers)": lambda one: (_Number(one),),
            f"enumerate({self._name})": lambda one: (_Number(one), one)}
        if (values_of := known.get(iterated)) is not None and len(targets) == 1 + iterated.startswith("enumerate"):
            for one in self.network.layers:
                self._body(loop.body, one, {**names, **dict(zip(targets, values_of(one), strict=True))})
            return
        if isinstance(loop.target, ast.Name):
            try:
                values = self._value(loop.iter, names)
                for value in list(values):
                    self._body(loop.body, layer, {**names, loop.target.id: value})
                return
            except (_Unreadable, TypeError):  # said below, where the loop sets precisions
                pass
        if any(_sets(one) for one in ast.walk(loop)):
            self._unread[loop.lineno] = f"for {ast.unparse(loop.target)} in {iterated[:60]}"

    def _assign(self, statement: ast.Assign, target: ast.expr, names: dict[str, Any]) -> None:
        if isinstance(target, ast.Name):
            try:
                names[target.id] = self._value(statement.value, names)
            except _Unreadable:
                names.pop(target.id, None)
        elif isinstance(target, ast.Attribute) and target.attr in ("precision", "dynamic_range"):
            self._told(statement, target.value, names, lambda layer: self._set(
                target.attr, layer, statement.value, names))

    def _call(self, call: ast.Call, names: dict[str, Any]) -> None:
        if not isinstance(call.func, ast.Attribute):
            for one in call.args:
                try:
                    if isinstance(self._value(one, names), Layer):
                        self._unread[call.lineno] = f"{ast.unparse(call)[:60]}: what a function does is not worked out"
                except _Unreadable:  # no layer that is known here, so nothing is told of it
                    continue
            return
        method, owner = call.func.attr, call.func.value
        if method == "set_output_type" and len(call.args) == 2:
            self._told(call, owner, names, lambda layer: self.asked.outputs.__setitem__(
                layer.name, self._precision(call.args[1])))
        elif method == "set_dynamic_range" and len(call.args) == 2:
            self._told(call, owner, names, lambda layer: self._set("dynamic_range", layer, ast.Tuple(call.args), names))

    def _told(self, node: ast.stmt | ast.expr, owner: ast.expr, names: dict[str, Any],
              act: Callable[[Any], None]) -> None:
        """Does something with what an expression stands for; lists it where that is not known."""
        try:
            act(self._value(owner, names))
        except _Unreadable as error:
            self._unread[node.lineno] = f"{ast.unparse(node)[:60]}: {error}"

    def _set(self, what: str, owner: Any, value: ast.expr, names: dict[str, Any]) -> None:
        if what == "precision" and isinstance(owner, Layer):
            self.asked.layers[owner.name] = self._precision(value)
        elif what == "dynamic_range" and isinstance(owner, _Tensor):
            try:
                low, high = (float(one) for one in self._value(value, names))
            except (TypeError, ValueError, OverflowError):
                raise _Unreadable("no two numbers") from None
            if not (amax := max(abs(low), abs(high))) <= MAX_AMAX:
                raise _Unreadable("a range that FP32 does not hold")
            self.asked.ranges[owner.name] = amax
        else:
            raise _Unreadable(f"of {type(owner).__name__.lstrip('_')}")

    @staticmethod
    def _precision(value: ast.expr) -> Precision:
        word = ast.unparse(value).rpartition(".")[2]
        if word not in _DATA_TYPES:
            raise _Unreadable("integers" if word in _INTEGERS else f"{ast.unparse(value)[:40]} is no precision")
        return _DATA_TYPES[word]

    # -- expressions --------------------------------------------------------------------------------------------

    def _value(self, node: ast.expr, names: Mapping[str, Any]) -> Any:
        """The value of an expression of a kind that is worked out here.

        Raises:
            _Unreadable: it is of another kind, or makes no sense.
        """
        try:
            return self._worked_out(node, names)
        except (TypeError, ValueError, ArithmeticError, re.error, RecursionError) as error:
            raise _Unreadable(f"{type(error).__name__}: {error}") from None

    def _worked_out(self, node: ast.expr, names: Mapping[str, Any]) -> Any:
        if isinstance(node, ast.Constant):
            return node.value
        if isinstance(node, ast.Name):
            if node.id in names:
                return names[node.id]
            if node.id in self.constants:
                return self.constants[node.id]
            raise _Unreadable(f"{node.id} is not known")
        if isinstance(node, (ast.Tuple, ast.List, ast.Set)):
            return _limited([self._value(one, names) for one in node.elts])
        if isinstance(node, ast.Attribute):
            return self._attribute(node, names)
        if isinstance(node, ast.BoolOp):
            values = (self._value(one, names) for one in node.values)
            return all(values) if isinstance(node.op, ast.And) else any(values)
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, (ast.Not, ast.USub)):
            value = self._value(node.operand, names)
            return not value if isinstance(node.op, ast.Not) else -value
        if isinstance(node, ast.Compare):
            return self._compared(node, names)
        if isinstance(node, ast.Call):
            return self._called(node, names)
        if isinstance(node, ast.Subscript):
            return self._item(node, names)
        raise _Unreadable(f"{type(node).__name__} is not worked out")

    def _attribute(self, node: ast.Attribute, names: Mapping[str, Any]) -> Any:
        text = ast.unparse(node)
        if "LayerType." in text:
            return _Type(node.attr)
        owner = self._value(node.value, names)
        if isinstance(owner, (Layer, _Tensor)) and node.attr == "name":
            return owner.name
        if isinstance(owner, Layer) and node.attr == "type":
            return owner
        if isinstance(owner, Layer) and node.attr in ("num_outputs", "num_inputs"):
            return len(owner.outputs if node.attr == "num_outputs" else owner.inputs)
        raise _Unreadable(f"{text[:40]} is not known here")

    def _compared(self, node: ast.Compare, names: Mapping[str, Any]) -> bool:
        if len(node.ops) != 1:
            raise _Unreadable("chained comparisons are not worked out")
        left, operator, right = self._value(node.left, names), node.ops[0], self._value(node.comparators[0], names)
        if isinstance(left, (_Number, _Tensor)) or isinstance(right, (_Number, _Tensor)):
            raise _Unreadable("TensorRT numbers layers in its own way")
        if isinstance(left, Layer) or isinstance(right, Layer):  # of types: a node is what its operator becomes
            kinds = right if isinstance(right, list) else [right]
            same = any(isinstance(kind, _Type) and isinstance(left, Layer) and _becomes(left, kind) for kind in kinds)
            return same is isinstance(operator, (ast.Eq, ast.In, ast.Is))
        if isinstance(operator, (ast.In, ast.NotIn)):
            if not isinstance(right, (str, list, tuple, set, dict)):
                raise _Unreadable("in what is no list")
            return (left in right) is isinstance(operator, ast.In)
        if isinstance(operator, (ast.Eq, ast.Is, ast.NotEq, ast.IsNot)):
            return (left == right) is isinstance(operator, (ast.Eq, ast.Is))
        raise _Unreadable(f"{type(operator).__name__} is not worked out")

    def _called(self, node: ast.Call, names: Mapping[str, Any]) -> Any:
        text = ast.unparse(node.func)
        first = node.args[0] if len(node.args) == 1 else None
        if text in ("any", "all") and isinstance(first, (ast.GeneratorExp, ast.ListComp)):
            return (any if text == "any" else all)(self._generated(first, names))
        if text in ("re.match", "re.search", "re.fullmatch") and len(node.args) == 2:
            pattern, subject = (self._value(one, names) for one in node.args)
            if not isinstance(pattern, str) or not isinstance(subject, str) or len(pattern) > 1000:
                raise _Unreadable("a pattern of something else than texts")
            return bool({"re.match": re.match, "re.search": re.search, "re.fullmatch": re.fullmatch}[text](
                pattern, subject))
        if isinstance(node.func, ast.Attribute):
            of_network = text.startswith(f"{self._name}.")
            owner = None if of_network else self._value(node.func.value, names)
            values = [self._value(one, names) for one in node.args]
            if text == f"{self._name}.get_layer" and len(values) == 1 and isinstance(values[0], _Number):
                return values[0].layer
            method = node.func.attr
            if isinstance(owner, Layer) and method in ("get_output", "get_input") and values and isinstance(
                    values[0], int):
                tensors = owner.outputs if method == "get_output" else owner.inputs
                if 0 <= values[0] < len(tensors):
                    return _Tensor(tensors[values[0]])
            if isinstance(owner, str) and method in ("startswith", "endswith") and len(values) == 1:
                wanted = tuple(values[0]) if isinstance(values[0], list) else values[0]
                return owner.startswith(wanted) if method == "startswith" else owner.endswith(wanted)
            if isinstance(owner, str) and method in ("lower", "upper") and not values:
                return owner.lower() if method == "lower" else owner.upper()
        raise _Unreadable(f"{text[:40]}() is not worked out")

    def _generated(self, node: ast.GeneratorExp | ast.ListComp, names: Mapping[str, Any]) -> list[Any]:
        one = node.generators[0]
        if len(node.generators) != 1 or not isinstance(one.target, ast.Name):
            raise _Unreadable("this any() or all() is not worked out")
        found = []
        for value in list(self._value(one.iter, names)):
            inner = {**names, one.target.id: value}
            if all(self._value(test, inner) for test in one.ifs):
                found.append(self._value(node.elt, inner))
        return _limited(found)

    def _item(self, node: ast.Subscript, names: Mapping[str, Any]) -> Any:
        owner, key = self._value(node.value, names), self._value(node.slice, names)
        try:
            return owner[key]
        except (TypeError, KeyError, IndexError):
            raise _Unreadable(f"{ast.unparse(node)[:40]} is not known") from None


def _limited(values: list[Any]) -> list[Any]:
    """Returns a list whose values can be compared: with those of the lists in it, they are at most `_MAX_VALUES`."""
    count, waiting = 0, [values]
    while waiting:
        inner = waiting.pop()
        count += len(inner)
        if count > _MAX_VALUES:
            raise _Unreadable(f"a list of over {_MAX_VALUES:,} values")
        waiting += [one for one in inner if isinstance(one, list)]
    return values


class _Number:
    """The number of a layer in TensorRT's network, which is known by the layer alone."""

    def __init__(self, layer: Layer) -> None:
        self.layer = layer


class _Tensor:
    """A tensor of a layer."""

    def __init__(self, name: str) -> None:
        self.name = name


def _becomes(layer: Layer, kind: _Type) -> bool:
    return layer.op_type in _OPERATORS.get(kind, ())


def _sets(node: ast.AST) -> bool:
    """Whether a node of a script sets something that is read here."""
    attributes = ("precision", "dynamic_range", "set_output_type", "set_dynamic_range")
    return isinstance(node, ast.Attribute) and node.attr in attributes and (
        isinstance(node.ctx, ast.Store) or node.attr.startswith("set_"))


def _skips(statement: ast.If) -> bool:
    """Whether a condition ends the round of a loop."""
    return any(isinstance(one, (ast.Continue, ast.Break, ast.Return)) for one in ast.walk(statement))
