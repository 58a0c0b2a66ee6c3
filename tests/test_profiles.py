"""The profiles of engines, as trtexec writes them, and the graphs beside them."""

import json

import onnx
import pytest

from tests import networks
from trt_tui.core.engines.inspector import read_layer_profile, read_profile_report
from trt_tui.core.network.network import open_network
from trt_tui.core.precision import Precision
from trt_tui.errors import InputError


def as_trtexec(ms_by_layer, has_median=True):
    """The text that `Profiler::exportJSONProfile` of trtexec writes, in release 10 and 8.6 or before."""
    total = sum(ms_by_layer.values())
    text = '[\n  { "count" : 10 }\n'
    for name, ms in ms_by_layer.items():
        median = f', "medianMs" : {ms:g}' if has_median else ""
        text += (f', {{ "name" : "{name}", "timeMs" : {ms * 10:g}, "averageMs" : {ms:g}{median}, '
                 f'"percentage" : {100 * ms / total:g} }}\n')
    return text + "]\n"


@pytest.mark.parametrize("text", [as_trtexec({"a + b": 0.625, "c\x1e": 0.375}),
                                  as_trtexec({"a + b": 0.625, "c\x1e": 0.375}, has_median=False)])
def test_profiles_of_every_release_are_read(tmp_path, text):
    path = tmp_path / "p.json"
    path.write_text(text)
    assert read_layer_profile(path) == {"a + b": 0.625, "c\x1e": 0.375}


def test_times_of_one_name_are_added(tmp_path):
    path = tmp_path / "p.json"
    path.write_text('[{"count": 1}, {"name": "a", "averageMs": 1}, {"name": "a", "averageMs": 2.5}]')
    assert read_layer_profile(path) == {"a": 3.5}


@pytest.mark.parametrize(("text", "cause"), [
    ("", "Expecting value"), ("{}", "not a list"), ('{"Layers": []}', "not a list"), ("[1]", "not an object"),
    ("[" * 5000 + "]" * 5000, "too deep"), ("[]", "no engine layer takes any time"),
    ('[{"count": 3}]', "no engine layer takes any time"), ('[{"averageMs": 1}]', "entry 0 has no name"),
    ('[{"count": 3}, {"count": 3}]', "entry 1 has no name"), ('[{"name": 1, "averageMs": 1}]', "has no name"),
    ('[{"name": "a", "averageMs": 0}]', "no engine layer takes any time"),
    *((f'[{{"name": "a", "averageMs": {value}}}]', "not a time in milliseconds")
      for value in ("NaN", "Infinity", "-0.1", "1e300", "true", '"1"', "null", "[]", "1" + "0" * 400)),
    ('[{"name": "a"}]', "not a time in milliseconds"), ("1" * 5000, "Exceeds the limit"), ("\xff", "")])
def test_what_is_no_profile_is_refused(tmp_path, text, cause):
    path = tmp_path / "p.json"
    path.write_bytes(text.encode("latin1"))
    with pytest.raises(InputError) as error:
        read_layer_profile(path)
    assert cause in error.value.cause and "p.json" in error.value.title and error.value.next_step


def test_the_graph_beside_a_profile_tells_the_nodes(tmp_path):
    onnx.save(networks.small_resnet(), tmp_path / "resnet.onnx")
    network, profile = open_network(tmp_path / "resnet.onnx").build_outline(), tmp_path / "e.profile.json"
    profile.write_text(as_trtexec({"__myl_a_myl0_0": 1.0, "/layer1/conv1/Conv": 3.0}))

    def read_layers():
        return {layer.name: layer for layer in read_profile_report(profile, network).layers}

    assert {name: layer.ms for name, layer in read_layers().items()} == {"__myl_a_myl0_0": 1.0,
                                                                         "/layer1/conv1/Conv": 3.0}
    assert [layer.network_layers for layer in read_layers().values()] == [(), ("/layer1/conv1/Conv",)]
    tensor = {"Name": "image", "Format/Datatype": "Row major linear FP32"}
    (tmp_path / "e.graph.json").write_text(json.dumps({"Layers": [
        {"Name": "__myl_a_myl0_0", "LayerType": "CaskConvolution", "Inputs": [tensor], "Outputs": [tensor],
         "Metadata": "[ONNX Layer: /conv1/Conv]"}]}))
    shown = read_layers()["__myl_a_myl0_0"]
    assert (shown.ms, shown.network_layers, shown.precision) == (1.0, ("/conv1/Conv",), Precision.FP32)
    (tmp_path / "e.graph.json").write_text("[]")
    with pytest.raises(InputError, match="not the layer information"):
        read_layers()
