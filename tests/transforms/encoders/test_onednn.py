from __future__ import annotations

import numpy as np
import pytest

from layerbeam.transforms.encoders import onednn
from layerbeam.transforms.hardware import Hardware, instructions, load_tensorflow
from layerbeam.transforms.reference import gelu


@pytest.fixture(autouse=True, scope="module")
def tensorflow():
    tf = load_tensorflow(Hardware(2))
    if not onednn.is_available("float32"):
        pytest.skip("this TensorFlow has no oneDNN kernels")
    return tf


@pytest.mark.parametrize("activation", [None, "GeluExact", "GeluApproximate"])
@pytest.mark.parametrize(("dtype", "off"), [("float32", 2e-5), ("bfloat16", 0.1)])
def test_packed_dense_for_batches_of_any_size(tensorflow, activation, dtype, off):
    if not onednn.is_available(dtype):
        pytest.skip(f"this processor has no oneDNN kernels for {dtype}")
    tf = tensorflow
    random = np.random.default_rng(0)
    kernel, bias = random.normal(size=(48, 40)) * 0.2, random.normal(size=40)
    variables = [tf.Variable(tf.cast(values, dtype)) for values in (kernel, bias)]
    graph = tf.function(
        lambda rows: onednn.packed_dense(rows, *variables, activation),
        input_signature=[tf.TensorSpec([None, 48], dtype)],
        autograph=False,
    )
    for count in (7, 1, 300, 7):
        rows = random.normal(size=(count, 48))
        expected = rows @ kernel + bias
        if activation:
            expected = gelu(expected, "gelu" if activation == "GeluExact" else "gelu_tanh")
        np.testing.assert_allclose(tf.cast(graph(tf.cast(rows, dtype)), tf.float32), expected, rtol=0, atol=off)


def test_layer_norm_and_the_bits_of_a_row(tensorflow):
    tf = tensorflow
    random = np.random.default_rng(0)
    rows, gamma, beta = (random.normal(2, 3, size).astype(np.float32) for size in ((50, 96), 96, 96))
    graph = tf.function(
        lambda values: onednn.layer_norm(values, tf.constant(gamma), tf.constant(beta), 1e-3),
        input_signature=[tf.TensorSpec([None, 96], tf.float32)],
        autograph=False,
    )
    values = rows.astype(np.float64)
    normed = (values - values.mean(axis=1, keepdims=True)) / np.sqrt(values.var(axis=1, keepdims=True) + 1e-3)
    got = graph(tf.constant(rows)).numpy()
    np.testing.assert_allclose(got, normed * gamma + beta, rtol=0, atol=1e-4)  # products reach 30, where eps is 2e-6
    for begin, end in ((0, 1), (3, 20), (49, 50)):
        assert graph(tf.constant(rows[begin:end])).numpy().tobytes() == got[begin:end].tobytes()


def test_bfloat16_only_where_the_processor_has_what_the_kernels_need(tensorflow, monkeypatch):
    """Elsewhere they end the process: no exception can be caught."""
    for known, expected in ((frozenset({"avx", "avx2", "fma"}), False), (None, False), (instructions(), None)):
        monkeypatch.setattr(onednn, "instructions", lambda known=known: known)
        available = onednn.is_available.__wrapped__("bfloat16")
        assert expected is None or available == expected
    monkeypatch.setattr(onednn, "instructions", lambda: frozenset({"avx512f"}))
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", "AVX2")
    assert not onednn.is_available.__wrapped__("bfloat16")


@pytest.mark.parametrize("switch", ["0", "false"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_public_operations_are_used_without_onednn(monkeypatch, dtype, switch):
    monkeypatch.setenv("TF_ENABLE_ONEDNN_OPTS", switch)
    assert not onednn.is_available.__wrapped__(dtype)
