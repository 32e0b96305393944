"""What only the graph of a TF Hub BERT shows, not its variables: GELU, epsilon, the order of the layers.

Read from the functions in `saved_model.pb`, by the layer names of the official exporter (tf-models-official,
`export_tfhub_lib.py`); nothing is run.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any

from layerbeam.transforms.encoders.bert import Activation

_PRODUCTS = ("Einsum", "MatMul", "BatchMatMulV2", "BatchMatMul")
_PASS_ON = ("Identity", "Reshape", "Cast")
_TANH_CONSTANTS = (0.044715, math.sqrt(2 / math.pi))
_ERF_CONSTANTS = (math.sqrt(2), math.sqrt(0.5))


class UnlikeBertError(ValueError):
    """The reason why a graph is not recognized as plain BERT."""


def read_graph(functions: Iterable[Any], num_layers: int, *, head_size: int, pooler: bool) -> tuple[Activation, float]:
    """(activation, layer norm epsilon) of an encoder of `num_layers` blocks, from its FunctionDefs.

    UnlikeBertError if they do not show it, do not agree, or are wired differently from BERT.
    """
    last = re.compile(rf"(^|/)transformer/layer_{num_layers - 1}/output_layer_norm/")
    found = set()
    for function in functions:
        nodes = {node.name: node for node in function.node_def}
        is_training = any("RandomUniform" in node.op for node in nodes.values())
        if not is_training and any(last.search(name) for name in nodes):
            found.add(_Function(nodes).read(num_layers, head_size=head_size, pooler=pooler))
    if len(found) != 1:
        what = "no function in its graph shows all blocks" if not found else "functions in its graph differ"
        raise UnlikeBertError(what)
    return found.pop()


def missing_operation(functions: Collection[Any]) -> str | None:
    """An operation of another library, such as TF Text, with which TensorFlow cannot load the graph; else None."""
    from tensorflow.python.framework import op_def_registry

    defined = {function.signature.name for function in functions}
    needed = {node.op for function in functions for node in function.node_def} - defined
    return next((name for name in sorted(needed) if op_def_registry.get(name) is None), None)


class _Function:
    """One function: its nodes by name, each with its inputs."""

    def __init__(self, nodes: Mapping[str, Any]) -> None:
        self._nodes = nodes

    def read(self, num_layers: int, *, head_size: int, pooler: bool) -> tuple[Activation, float]:
        norms = ["embeddings/layer_norm"]
        activations = set()
        for index in range(num_layers):
            block = f"transformer/layer_{index}"
            for part in ("query", "key", "value"):
                self._check_reads(f"{block}/self_attention/{part}", norms[-1])
            self._check_scale(f"{block}/self_attention", head_size)
            norms += [f"{block}/self_attention_layer_norm", f"{block}/output_layer_norm"]
            self._check_reads(f"{block}/intermediate", norms[-2])
            activations.add(self._activation(block))
        if len(activations) != 1:
            raise UnlikeBertError("its blocks have different activations")
        epsilons = {epsilon for norm in norms for epsilon in self._epsilons(norm)}
        if len(epsilons) != 1:
            raise UnlikeBertError(f"its layer norms have the epsilons {sorted(epsilons)}, not one")
        if pooler and not any(node.op == "Tanh" for node in self._scope("pooler_transform")):
            raise UnlikeBertError("its pooler has no tanh")
        return activations.pop(), epsilons.pop()

    def _scope(self, scope: str) -> Iterator[Any]:
        return (node for name, node in self._nodes.items() if self._in_scope(name, scope))

    @staticmethod
    def _in_scope(name: str, scope: str) -> bool:
        return re.search(rf"(^|/){re.escape(scope)}/", name) is not None

    def _product(self, scope: str) -> Any:
        """The product with the weights of a dense layer."""
        products = [node for node in self._scope(scope) if node.op in _PRODUCTS]
        if len(products) != 1:
            raise UnlikeBertError(f"{scope} has {len(products)} matrix products, not 1")
        return products[0]

    def _skip(self, name: str) -> str:
        """The node that computes this input; nodes that only pass it on are skipped."""
        name = _producer(name)
        for _ in self._nodes:  # a damaged graph may have cycles
            if name not in self._nodes or self._nodes[name].op not in _PASS_ON:
                break
            name = _producer(self._nodes[name].input[0])
        return name

    def _check_reads(self, dense: str, norm: str) -> None:
        """Raises UnlikeBertError unless a dense layer's input is the output of this layer norm."""
        if not self._in_scope(self._skip(self._product(dense).input[0]), norm):
            raise UnlikeBertError(f"{dense} does not read the output of {norm} (layer norm first?)")

    def _check_scale(self, attention: str, head_size: int) -> None:
        """Raises UnlikeBertError unless the attention holds 1/sqrt(head_size) or its inverse."""
        scale = math.sqrt(head_size)
        constants = [value for node in self._scope(attention) for value in _scalars(node)]
        if not any(math.isclose(value, wanted, rel_tol=1e-5) for value in constants for wanted in (scale, 1 / scale)):
            raise UnlikeBertError(f"{attention} does not show the scale 1/sqrt({head_size})")

    def _activation(self, block: str) -> Activation:
        """The GELU between the two dense layers of a block."""
        ops, constants = set(), []
        waiting = [_producer(self._product(f"{block}/output").input[0])]
        seen = set()
        while waiting:
            name = waiting.pop()
            if name in seen or name not in self._nodes or self._in_scope(name, f"{block}/intermediate"):
                continue
            seen.add(name)
            node = self._nodes[name]
            ops.add(node.op)
            constants += _scalars(node)
            waiting += [_producer(source) for source in node.input if not source.startswith("^")]

        def has(constant: float) -> bool:
            return any(math.isclose(value, constant, rel_tol=1e-5) for value in constants)

        if "Tanh" in ops and all(has(constant) for constant in _TANH_CONSTANTS):
            return "gelu_tanh"
        if ops & {"Erf", "Erfc"} and any(has(constant) for constant in _ERF_CONSTANTS):
            return "gelu"
        shown = ", ".join(sorted(ops - {"Const", *_PASS_ON})) or "nothing"
        raise UnlikeBertError(f"the activation in {block} is neither GELU (its graph has {shown} there)")

    def _epsilons(self, norm: str) -> list[float]:
        """The constants added to the variance in a layer norm, written out or fused."""
        epsilons = []
        for node in self._scope(norm):
            if node.op == "FusedBatchNormV3":
                epsilons.append(float(node.attr["epsilon"].f))
            elif node.name.endswith("batchnorm/add/y"):
                epsilons += _scalars(node)
        if len(epsilons) != 1:
            raise UnlikeBertError(f"{norm} does not show its epsilon")
        # A float32 in the graph: 9.999999960041972e-13 is 1e-12.
        return [float(f"{epsilons[0]:.6g}")]


def _producer(name: str) -> str:
    """The node of an input such as `dropout/Identity:output:0`."""
    return name.split(":")[0]


def _scalars(node: Any) -> list[float]:
    """The value of a node that is a scalar float constant; else empty."""
    from tensorflow import make_ndarray

    if node.op != "Const":
        return []
    value = make_ndarray(node.attr["value"].tensor)
    return [float(value)] if value.ndim == 0 and value.dtype.kind == "f" else []
