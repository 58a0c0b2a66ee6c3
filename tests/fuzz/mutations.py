"""Damage of every kind a file may come with: flipped bits, lost and repeated pieces, fields of the protobuf."""

import functools
import random
from collections.abc import Callable, Iterator

import onnx
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from tests import networks

SEEDS = (
    "mlp",
    "small_resnet",
    "quantized",
    "half",
    "with_if",
    "with_loop",
    "with_local_function",
    "with_sequence",
    "opset7",
    "badly_named",
    "bert",
    "unet_small",
)
"""Functions of `tests.networks` whose files are damaged."""

_NUMBERS = (-1, 0, 1, 2, 3, 7, 16, 99, 255, 2**31 - 1, -(2**31), 2**62, -(2**63))
_REALS = (0.0, -1.0, 1e38, float("inf"), float("nan"))
_TEXTS = ("", "x", "y", "\x1b[2J", "ai.onnx", "a" * 300, "../x", "größe")
_INTEGERS = (
    FieldDescriptor.CPPTYPE_INT32,
    FieldDescriptor.CPPTYPE_INT64,
    FieldDescriptor.CPPTYPE_UINT32,
    FieldDescriptor.CPPTYPE_UINT64,
)


@functools.cache
def whole(seed: str) -> bytes:
    """The file before it is damaged."""
    return getattr(networks, seed)().SerializeToString()


def damaged(case: int) -> tuple[str, bytes]:
    """A description and the content of one damaged file; the same for the same number."""
    rng = random.Random(case)
    seed = rng.choice(SEEDS)
    kind = rng.choice((_bits, _pieces, _fields, _fields, _fields))
    return f"{seed}, {kind.__name__[1:]}", kind(rng, whole(seed))


def _bits(rng: random.Random, data: bytes) -> bytes:
    spoiled = bytearray(data)
    for _ in range(rng.randint(1, 8)):
        spoiled[rng.randrange(len(spoiled))] ^= 1 << rng.randrange(8)
    return bytes(spoiled)


def _pieces(rng: random.Random, data: bytes) -> bytes:
    start = rng.randrange(len(data))
    end = min(len(data), start + rng.choice((1, 4, 50, 1000)))
    return rng.choice(
        (
            data[:start],
            data[:start] + data[end:],
            data[:end] + data[start:],
            data[:start] + rng.randbytes(end - start) + data[end:],
        )
    )


def _fields(rng: random.Random, data: bytes) -> bytes:
    model = onnx.ModelProto.FromString(data)
    for _ in range(rng.choice((1, 1, 2, 4))):
        places = list(_places(model))
        if places:
            message, field = rng.choice(places)
            _spoil(rng, message, field, places)
    return model.SerializeToString()


def _places(message: Message) -> Iterator[tuple[Message, FieldDescriptor]]:
    """Every field that is set, of a message and of those in it."""
    for field, value in message.ListFields():
        yield message, field
        if field.cpp_type == FieldDescriptor.CPPTYPE_MESSAGE:
            for inner in value if _repeated(field) else (value,):
                yield from _places(inner)


def _repeated(field: FieldDescriptor) -> bool:
    return field.is_repeated if hasattr(field, "is_repeated") else field.label == FieldDescriptor.LABEL_REPEATED


def _spoil(
    rng: random.Random, message: Message, field: FieldDescriptor, places: list[tuple[Message, FieldDescriptor]]
) -> None:
    ways: list[Callable[[], object]] = [lambda: message.ClearField(field.name)]
    is_message = field.cpp_type == FieldDescriptor.CPPTYPE_MESSAGE
    if _repeated(field):
        values = getattr(message, field.name)
        if len(values):
            index = rng.randrange(len(values))
            ways.append(lambda: values.__delitem__(index))
            ways.append(lambda: values.append(values[index]))
            if not is_message:
                ways += [lambda: values.__setitem__(index, _value(rng, field, places))] * 3
            else:
                ways.append(lambda: values.add())
    elif is_message:
        ways.append(lambda: getattr(message, field.name).Clear())
    else:
        ways += [lambda: setattr(message, field.name, _value(rng, field, places))] * 4
    try:
        rng.choice(ways)()
    except (ValueError, TypeError):  # a number out of the field's range, an enum's that is not known
        message.ClearField(field.name)


def _value(rng: random.Random, field: FieldDescriptor, places: list[tuple[Message, FieldDescriptor]]) -> object:
    if field.cpp_type in _INTEGERS or field.cpp_type == FieldDescriptor.CPPTYPE_ENUM:
        return rng.choice(_NUMBERS)
    if field.cpp_type in (FieldDescriptor.CPPTYPE_FLOAT, FieldDescriptor.CPPTYPE_DOUBLE):
        return rng.choice(_REALS)
    if field.type == FieldDescriptor.TYPE_BYTES:
        return rng.choice((b"", b"\xff\xfe", rng.randbytes(8), b"nearest", bytes(4096)))
    names = [
        name
        for message, one in rng.sample(places, min(40, len(places)))
        if one.name in ("name", "op_type", "input", "output")
        for name in ([getattr(message, one.name)] if not _repeated(one) else getattr(message, one.name))
    ]
    return rng.choice((*_TEXTS, *names))
