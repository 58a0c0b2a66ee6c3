"""Channels that are divided at their producers and multiplied back at their readers: the layers that take part."""

from random import Random

import numpy as np
import onnx_ir as ir
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests import networks
from tests.networks.drawn import drawn_network


def scaled_model(network, rng):
    """The model with random factors at every set of channels that can be scaled, and the number of factors."""
    model, count = network.model.clone(), 0
    nodes = {node.name: node for node in model.graph}
    constants = {}
    for scaling in network.zero_cost_support.channel_scalings.values():
        if scaling.refusal_reason:
            continue
        factors = np.exp(rng.uniform(-1.5, 1.5, scaling.channels)).astype(np.float32)
        count += scaling.channels
        for constant in (*scaling.producers, *scaling.readers):
            value = constants.get(constant.port)
            value = network.constant_value(constant.tensor) if value is None else value
            constants[constant.port] = value / constant.divisors(factors)
    for (layer, index), array in constants.items():
        value = ir.Value(name=f"{layer}/{index}", const_value=ir.Tensor(array.astype(np.float32)),
                         type=ir.TensorType(ir.DataType.FLOAT), shape=ir.Shape(array.shape))
        model.graph.register_initializer(value)
        nodes[layer].replace_input_with(index, value)
    return model, count


def outputs_with_random_factors(network, backend, feeds, seed=0):
    """The outputs of a network before and behind random factors, and their number."""
    model, count = scaled_model(network, np.random.default_rng(seed))
    with backend.load(network.model) as runner:
        plain = runner.run(feeds)
    with backend.load(model) as runner:
        return plain, runner.run(feeds), count


def assert_outputs_stay(plain, scaled):
    for name, array in plain.items():
        finite = np.isfinite(array)
        bound = 1e-3 * max(float(np.abs(array[finite]).max(initial=0)), 1e-6)
        np.testing.assert_allclose(scaled[name][finite], array[finite], rtol=2e-3, atol=bound)


@given(st.integers(0, 1 << 30))
@settings(max_examples=40, deadline=None)
def test_random_factors_leave_the_outputs_of_random_networks(opened, backend, seed):
    model = drawn_network(Random(seed))
    assert_outputs_stay(*outputs_with_random_factors(opened(model), backend, networks.feeds(model, seed), seed)[:2])


@pytest.mark.parametrize(("name", "least"), [("bert", 3 * 128), ("vit", 100), ("decoder", 80), ("small_resnet", 60),
                                             ("mlp", 64), ("chain", 16), ("unet_small", 90)])
def test_random_factors_leave_the_outputs_of_each_architecture(name, least, opened, backend):
    model = getattr(networks, name)()
    plain, scaled, count = outputs_with_random_factors(opened(model), backend, networks.feeds(model, 1))
    assert count >= least
    assert_outputs_stay(plain, scaled)
