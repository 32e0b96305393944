"""What only the graph of a TF Hub BERT shows, not its variables: GELU, epsilon, the order of the layers.

Read from the functions in `saved_model.pb`, by the layer names of the official exporter (tf-models-official,
`export_tfhub_lib.py`); nothing is run.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from layerbeam.transforms.encoders.config_file import Activation
from layerbeam.transforms.hardware import tf

_PRODUCTS = ("Einsum", "MatMul", "BatchMatMulV2", "BatchMatMul")
_PASS_ON = ("Identity", "Reshape", "Cast")
_TANH_CONSTANTS = (0.044715, math.sqrt(2 / math.pi))
_ERF_CONSTANTS = (math.sqrt(2), math.sqrt(0.5))


class UnlikeBertError(ValueError):
    """The reason why a graph is not recognized as plain BERT."""


def read_graph(graph: Any, num_layers: int, *, head_size: int, pooler: bool) -> tuple[Activation, float]:
    """(activation, layer norm epsilon) of an encoder of `num_layers` blocks, from its MetaGraphDef.

    UnlikeBertError if they do not show it, do not agree, or are wired differently from BERT.
    """
    last = re.compile(rf"(^|/)transformer/layer_{num_layers - 1}/output_layer_norm/")
    found = set()
    for function in graph.graph_def.library.function:
        nodes = {node.name: node for node in function.node_def}
        is_training = any("RandomUniform" in node.op for node in nodes.values())
        if not is_training and any(last.search(name) for name in nodes):
            found.add(_Function(nodes).read(num_layers, head_size=head_size, pooler=pooler))
    if len(found) != 1:
        what = "no function in its graph shows all blocks" if not found else "functions in its graph differ"
        raise UnlikeBertError(what)
    return found.pop()


def missing_operation(graph: Any) -> str | None:
    """An operation of another library, such as TF Text, with which TensorFlow cannot load the graph; else None."""
    from tensorflow.python.framework import op_def_registry

    functions = graph.graph_def.library.function
    defined = {function.signature.name for function in functions}
    needed = {node.op for function in functions for node in function.node_def} - defined
    return next((name for name in sorted(needed) if op_def_registry.get(name) is None), None)


class _Function:
    """One function: its nodes by name, each with its inputs."""

    def __init__(self, nodes: Mapping[str, Any]) -> None:
        self._nodes = nodes
        self._paths = [(f"/{name}", node) for name, node in nodes.items()]

    def read(self, num_layers: int, *, head_size: int, pooler: bool) -> tuple[Activation, float]:
        norms = ["embeddings/layer_norm"]
        activations = set()
        scale = math.sqrt(head_size)
        for index in range(num_layers):
            block = f"transformer/layer_{index}"
            attention = f"{block}/self_attention"
            for part in ("query", "key", "value"):
                self._check_reads(f"{attention}/{part}", norms[-1])
            if not _has_one_of(self._scope(attention), (scale, 1 / scale)):
                raise UnlikeBertError(f"{attention} does not show the scale 1/sqrt({head_size})")
            norms += [f"{block}/self_attention_layer_norm", f"{block}/output_layer_norm"]
            self._check_reads(f"{block}/intermediate", norms[-2])
            activations.add(self._activation(block))
        if len(activations) != 1:
            raise UnlikeBertError("its blocks have different activations")
        epsilons = {self._epsilon(norm) for norm in norms}
        if len(epsilons) != 1:
            raise UnlikeBertError(f"its layer norms have the epsilons {sorted(epsilons)}, not one")
        if pooler and not any(node.op == "Tanh" for node in self._scope("pooler_transform")):
            raise UnlikeBertError("its pooler has no tanh")
        return activations.pop(), epsilons.pop()

    def _scope(self, scope: str) -> list[Any]:
        wanted = f"/{scope}/"
        return [node for path, node in self._paths if wanted in path]

    def _input_of(self, dense: str) -> str:
        """The node whose output a dense layer multiplies with its weights."""
        products = [node for node in self._scope(dense) if node.op in _PRODUCTS]
        if len(products) != 1:
            raise UnlikeBertError(f"{dense} has {len(products)} matrix products, not 1")
        return _producer(products[0].input[0])

    def _check_reads(self, dense: str, norm: str) -> None:
        """Raises UnlikeBertError unless a dense layer's input is the output of this layer norm, only passed on."""
        name = self._input_of(dense)
        for _ in self._nodes:  # a damaged graph may have cycles
            if name not in self._nodes or self._nodes[name].op not in _PASS_ON:
                break
            name = _producer(self._nodes[name].input[0])
        if not _in_scope(name, norm):
            raise UnlikeBertError(f"{dense} does not read the output of {norm} (layer norm first?)")

    def _activation(self, block: str) -> Activation:
        """The GELU between the two dense layers of a block."""
        between: dict[str, Any] = {}
        waiting = [self._input_of(f"{block}/output")]
        while waiting:
            name = waiting.pop()
            if name in self._nodes and name not in between and not _in_scope(name, f"{block}/intermediate"):
                between[name] = self._nodes[name]
                waiting += [_producer(source) for source in self._nodes[name].input if not source.startswith("^")]
        nodes = list(between.values())
        ops = {node.op for node in nodes}
        if "Tanh" in ops and all(_has_one_of(nodes, [constant]) for constant in _TANH_CONSTANTS):
            return "gelu_tanh"
        if ops & {"Erf", "Erfc"} and _has_one_of(nodes, _ERF_CONSTANTS):
            return "gelu"
        shown = ", ".join(sorted(ops - {"Const", *_PASS_ON})) or "nothing"
        raise UnlikeBertError(f"the activation in {block} is neither GELU (its graph has {shown} there)")

    def _epsilon(self, norm: str) -> float:
        """The constant added to the variance in a layer norm, written out or fused."""
        epsilons = []
        for node in self._scope(norm):
            if node.op == "FusedBatchNormV3":
                epsilons.append(float(node.attr["epsilon"].f))
            elif node.name.endswith("batchnorm/add/y"):
                epsilons += _scalar(node)
        if len(epsilons) != 1:
            raise UnlikeBertError(f"{norm} does not show its epsilon")
        # A float32 in the graph: 9.999999960041972e-13 is 1e-12.
        return float(f"{epsilons[0]:.6g}")


def _in_scope(name: str, scope: str) -> bool:
    return f"/{scope}/" in f"/{name}"


def _producer(name: str) -> str:
    """The node of an input such as `dropout/Identity:output:0`."""
    return name.split(":")[0]


def _has_one_of(nodes: Iterable[Any], constants: Collection[float]) -> bool:
    values = [value for node in nodes for value in _scalar(node)]
    return any(math.isclose(value, constant, rel_tol=1e-5) for value in values for constant in constants)


def _scalar(node: Any) -> list[float]:
    """The value of a node that is a scalar float constant; else empty."""
    if node.op != "Const":
        return []
    value = tf.make_ndarray(node.attr["value"].tensor)
    return [float(value)] if value.ndim == 0 and value.dtype.kind == "f" else []
