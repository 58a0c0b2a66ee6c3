"""A block of a language model, as PyTorch's TorchScript exporter writes one."""

from collections.abc import Sequence

import numpy as np
import onnx
from onnx import TensorProto, helper

from .build import Builder, floats

LENGTH, WIDTH, HEADS = 8, 32, 4
LOWEST = float(np.finfo(np.float32).min)


def decoder(seed: int = 0) -> onnx.ModelProto:
    """RMSNorm, rotary embedding, attention with a mask and a guard against NaN, SiLU-gated MLP, GELU head; opset 17.

    Inputs ``hidden`` float32 (batch, 8, 32) and ``attention_mask`` int64 (batch, 8); output ``logits`` float32
    (batch, 8, 16). Every operator is taken apart.
    """
    b = Builder(seed)
    angles = np.arange(LENGTH)[:, None] * 10.0 ** -np.arange(WIDTH // HEADS // 2)
    cos, sin = (
        b.weight(name, np.tile(of(angles), 2).astype(np.float32)) for name, of in (("cos", np.cos), ("sin", np.sin))
    )
    x = rms_norm(b, "hidden", "/norm")
    q, k, v = (_heads(b, x, f"/attn/{name}") for name in ("q", "k", "v"))
    q, k = (rotary(b, one, cos, sin, f"/attn/{name}") for one, name in ((q, "q_rotary"), (k, "k_rotary")))
    k = b.node("Transpose", [k], "/attn/turn", perm=[0, 1, 3, 2])
    seen = b.node("Cast", ["attention_mask"], "/mask", to=TensorProto.BOOL)
    seen = b.node("Unsqueeze", [seen, b.weight("mask_axes", np.array([1, 2]))], "/mask")
    x = b.node("Transpose", [attention(b, q, k, v, seen)], "/attn/merge", perm=[0, 2, 1, 3])
    x = _linear(b, b.node("Reshape", [x, b.weight("merged", np.array([0, 0, WIDTH]))], "/attn/merge"), "/attn/o")
    x = b.node("Add", [x, "hidden"], "/attn/residual")
    y = rms_norm(b, x, "/norm2")
    gate = _linear(b, y, "/mlp/gate")
    gate = b.node("Mul", [gate, b.node("Sigmoid", [gate], "/mlp/act")], "/mlp/act")
    y = _linear(b, b.node("Mul", [gate, _linear(b, y, "/mlp/up")], "/mlp"), "/mlp/down")
    x = b.node("Add", [y, x], "/residual")
    x = b.node("Reshape", [_linear(b, x, "/fc"), b.weight("flat", np.array([-1, WIDTH]))], "/fc")
    x = b.node("Reshape", [gelu(b, x, "/gelu"), b.weight("back", np.array([-1, LENGTH, WIDTH]))], "/gelu")
    b.node("MatMul", [x, b.kernel("head", (WIDTH, 16), WIDTH)], "/head", output="logits")
    mask = helper.make_tensor_value_info("attention_mask", TensorProto.INT64, ["batch", LENGTH])
    return b.model(
        [floats("hidden", "batch", LENGTH, WIDTH), mask], [floats("logits", "batch", LENGTH, 16)], name="decoder"
    )


def rms_norm(b: Builder, x: str, scope: str) -> str:
    """``1 / sqrt(mean(x²) + eps)``, times x, times gamma."""
    mean = b.node("ReduceMean", [b.node("Pow", [x, _number(b, 2)], scope)], scope, axes=[-1])
    root = b.node("Sqrt", [b.node("Add", [mean, _number(b, 1e-6)], scope)], scope)
    x = b.node("Mul", [x, b.node("Div", [_number(b, 1), root], scope)], scope)
    return b.node("Mul", [b.vector(f"{scope}.gamma", WIDTH, 1.0), x], f"{scope}/scale")


def rotary(b: Builder, x: str, cos: str, sin: str, scope: str, halves: Sequence[int] = (0, 1)) -> str:
    """``x · cos + (-x₂, x₁) · sin``."""
    half = WIDTH // HEADS // 2
    plain = b.node("Mul", [x, cos], scope)
    first, second = (
        b.node(
            "Slice",
            [
                x,
                *(
                    b.weight(f"{scope}.{part}.{name}", np.array([value]))
                    for name, value in (("from", part * half), ("to", (part + 1) * half), ("axis", 3))
                ),
            ],
            f"{scope}/{part}",
        )
        for part in halves
    )
    turned = b.node("Concat", [b.node("Neg", [second], scope), first], scope, axis=-1)
    return b.node("Add", [plain, b.node("Mul", [turned, sin], f"{scope}/turned")], scope)


def attention(
    b: Builder,
    q: str,
    k: str,
    v: str,
    seen: str,
    *,
    masked: str = "added",
    guarded: bool = True,
    between: Sequence[str] = (),
    scope: str = "/attn",
) -> str:
    """Softmax(q · k) · v, operands scaled.

    Args:
        seen: Boolean, false where a key does not count.
        masked: "added" to the scores, "chosen" in their place, or "" for no mask.
        between: An operator between the Softmax and the product with v, and what else it reads.
    """
    root = (WIDTH / HEADS) ** -0.25
    x = b.node(
        "MatMul",
        [
            b.node("Mul", [q, _number(b, root)], f"{scope}/scale_q"),
            b.node("Mul", [k, _number(b, root)], f"{scope}/scale_k"),
        ],
        f"{scope}/scores",
    )
    if masked == "added":
        mask = b.node("Where", [seen, _number(b, 0), _number(b, LOWEST)], f"{scope}/mask")
        x = b.node("Add", [x, mask], f"{scope}/mask")
    elif masked:
        x = b.node("Where", [seen, x, _number(b, -1e9)], f"{scope}/mask")
    x = b.node("Softmax", [x], scope, axis=-1)
    if guarded:
        x = b.node("Where", [b.node("IsNaN", [x], f"{scope}/guard"), _number(b, 0), x], f"{scope}/guard")
    if between:
        x = b.node(between[0], [x, *between[1:]], f"{scope}/between")
    return b.node("MatMul", [x, v], f"{scope}/values")


def gelu(b: Builder, x: str, scope: str) -> str:
    """By tanh; the tensor is read three times."""
    cube = b.node("Mul", [b.node("Pow", [x, _number(b, 3)], scope), _number(b, 0.044715)], f"{scope}/cube")
    curve = b.node("Mul", [b.node("Add", [x, cube], scope), _number(b, 0.7978846)], f"{scope}/curve")
    gate = b.node("Add", [b.node("Tanh", [curve], scope), _number(b, 1)], f"{scope}/gate")
    return b.node("Mul", [b.node("Mul", [x, _number(b, 0.5)], f"{scope}/half"), gate], scope)


def _linear(b: Builder, x: str, scope: str) -> str:
    return b.node("MatMul", [x, b.kernel(f"{scope}.weight", (WIDTH, WIDTH), WIDTH, 1.0)], scope)


def _heads(b: Builder, x: str, scope: str) -> str:
    to = b.weight(f"{scope}.heads", np.array([0, 0, HEADS, WIDTH // HEADS]))
    x = b.node("Reshape", [_linear(b, x, scope), to], scope)
    return b.node("Transpose", [x], scope, perm=[0, 2, 1, 3])


def _number(b: Builder, value: float) -> str:
    return b.weight(f"number_{len(b.weights)}", np.float32(value))
