"""SavedModels for the tests: a toy with any interface, and plain BERT with chosen differences."""

from __future__ import annotations

import math
import pickle
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from float_bounds import bounded_layers
from repository import DATA

from layerbeam.transforms.encoders import EncoderSource, load_encoder, load_weights, open_encoder
from layerbeam.transforms.hardware import import_tensorflow

tf = import_tensorflow()

UNCASED = DATA / "tfhub_uncased"
CASED = DATA / "tfhub_cased"

INPUTS = ("input_word_ids", "input_mask", "input_type_ids")
WORDS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "b", "c", "##d", "e")


def batch(lengths: Sequence[int], *, longest: int, vocab_size: int, seed: int = 0) -> tuple[np.ndarray, ...]:
    """Random token ids [B, S], lengths [B], and segment ids [B, S] that are 1 in the second half.

    The padding is 3, and tokens may be 0, so only the lengths show which tokens are real.
    """
    random = np.random.default_rng(seed)
    real = np.arange(longest) < np.array(lengths)[:, None]
    second = np.arange(longest) >= (np.array(lengths) // 2)[:, None]
    token_ids = np.where(real, random.integers(0, vocab_size, real.shape), 3)
    token_ids[0, 0] = 0
    return token_ids.astype(np.int32), np.array(lengths, np.int32), (second & real).astype(np.int32)


def assert_engines_agree(folder: Path, *, pooler: bool = True) -> None:
    """Both engines give the same layers and pooled output, to rounding."""
    native, called = (open_encoder(str(folder), engine=engine) for engine in ("native", "savedmodel"))
    assert (native.engine, called.engine) == ("native", "savedmodel")
    layers = range(1, native.num_hidden_layers + 1)
    assert called.layers == tuple(layers)
    one, other = (load_encoder(source, layers=layers, pooler=pooler) for source in (native, called))
    for lengths, longest in (([3, 12, 1, 9], 12), ([5, 2], 16)):
        inputs = batch(lengths, longest=longest, vocab_size=len(native.vocabulary))
        (expected, pooled), (got, got_pooled) = one(*inputs), other(*inputs)
        assert list(got) == list(layers)
        bounded, bounded_pooled = bounded_layers(native.architecture, load_weights(native), *inputs)
        for layer in layers:
            assert got[layer].dtype == np.float32
            assert got[layer].shape == (sum(lengths), native.hidden_size)
            bounded[layer]._replace(values=expected[layer]).assert_allows(got[layer], computations=2)
        if pooler:
            assert got_pooled.shape == (len(lengths), native.hidden_size)
            bounded_pooled._replace(values=pooled).assert_allows(got_pooled, computations=2)
        else:
            assert (pooled, got_pooled) == (None, None)


# Other SavedModels: a small module with its own formula, called as it is.

HIDDEN = 6
BLOCKS = 3
TABLE = np.random.default_rng(1).normal(0, 1, (len(WORDS), HIDDEN)).astype(np.float32)
TYPES = np.random.default_rng(2).normal(0, 1, (2, HIDDEN)).astype(np.float32)
KERNEL = np.random.default_rng(3).normal(0, 1, (HIDDEN, HIDDEN)).astype(np.float32)


def spec(name: str | None, dtype: str = "int32") -> Any:
    return tf.TensorSpec([None, None], dtype, name=name)


BY_NAME = [{name: spec(name) for name in INPUTS}]


class Toy(tf.Module):
    """A toy encoder with formulas.

    Layer k is tanh(k * (word + type) + mean over the real tokens). The pooled output is the last layer's first token @
    kernel.
    """

    def __init__(self, *, blocks: int = BLOCKS, table_name: str = "table") -> None:
        super().__init__()
        self.blocks = blocks
        self.table = tf.Variable(TABLE, name=table_name)
        self.types = tf.Variable(TYPES, name="types")
        self.kernel = tf.Variable(KERNEL, name="kernel")

    def layers(self, inputs: dict[str, Any]) -> list[Any]:
        words, mask, types = (inputs[name] for name in INPUTS)
        both = tf.gather(self.table, words) + tf.gather(self.types, types)
        real = tf.cast(mask, tf.float32)[:, :, None]
        mean = tf.reduce_sum(both * real, 1, keepdims=True) / tf.reduce_sum(real, 1, keepdims=True)
        return [tf.tanh(index * both + mean) for index in range(1, self.blocks + 1)]

    def pool(self, layers: list[Any]) -> Any:
        return layers[-1][:, 0] @ self.kernel


def expected_layer(number: int, token_ids: np.ndarray, segment_ids: np.ndarray) -> np.ndarray:
    both = TABLE[token_ids] + TYPES[segment_ids]
    return np.tanh(number * both + both.mean(0))


def named(toy: Toy, inputs: dict[str, Any], encoder_outputs: Callable[[list[Any]], Any] = list) -> dict[str, Any]:
    layers = toy.layers(inputs)
    return {
        "sequence_output": layers[-1],
        "pooled_output": toy.pool(layers),
        "default": toy.pool(layers),
        "encoder_outputs": encoder_outputs(layers),
    }


def save(
    folder: Path,
    call: Callable[..., Any] = named,
    signature: Sequence[Any] = BY_NAME,
    *,
    toy: Toy | None = None,
    lower_case: bool | None = True,
    vocabulary: str | None = "vocab_file",
    traced_with: Sequence[dict[str, Any]] = (),
    only_signature: bool = False,
) -> Path:
    """Write a SavedModel whose call is `call(toy, *inputs)`.

    `traced_with`: keyword arguments for which it is traced, in this order, instead of a fixed signature.
    """
    toy = toy or Toy()

    def bound(*inputs: Any) -> Any:
        return call(toy, *inputs)

    # Traced with its own parameters: TensorFlow names unnamed inputs after them.
    own = call.__get__(toy) if traced_with or len(signature) > 1 else bound
    function = tf.function(own, input_signature=None if traced_with else signature, autograph=False)
    for arguments in traced_with:
        function.get_concrete_function(*signature, **arguments)
    if vocabulary is not None:
        path = folder.parent / ("vocab.txt" if vocabulary == "vocab_file" else "30k-clean.model")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("\n".join(WORDS))
        setattr(toy, vocabulary, tf.saved_model.Asset(str(path)))
    if lower_case is not None:
        toy.do_lower_case = tf.Variable(lower_case, trainable=False, name="do_lower_case")
    if not only_signature:
        toy.__call__ = function
    signatures: Any = {"serving_default": function.get_concrete_function()} if only_signature else None
    if isinstance(toy, PlainBert):
        signatures = {}  # TensorFlow would trace the call again for one
    tf.saved_model.save(toy, str(folder), signatures=signatures)
    return folder


def assert_runs(folder: Path, *, layers: Sequence[int] = (1, 2, 3), pooler: bool = True) -> EncoderSource:
    """The model is used as it is and gives the values of the formula, whatever the padding."""
    source = open_encoder(str(folder))
    assert (source.kind, source.engine, source.architecture) == ("savedmodel", "savedmodel", None)
    assert source.layers == tuple(layers)
    assert (source.hidden_size, source.num_hidden_layers) == (HIDDEN, max(layers))
    assert source.has_pooler == pooler
    assert source.vocabulary == WORDS
    assert pickle.loads(pickle.dumps(source)) == source
    wanted = list(reversed(layers))
    encoder = load_encoder(source, layers=wanted, pooler=pooler)
    assert encoder.pad_id == 0
    for lengths, longest in (([4], 4), ([3, 1, 6], 6), ([3, 1, 6], 20)):
        token_ids, sizes, segment_ids = batch(lengths, longest=longest, vocab_size=len(WORDS))
        rows = list(zip(token_ids, segment_ids, lengths, strict=True))
        assert any(segments.any() for _, segments, _ in rows)
        given, pooled = encoder(token_ids, sizes, segment_ids)
        assert list(given) == wanted
        for layer, got in given.items():
            number = BLOCKS if source.layers == (source.num_hidden_layers,) else layer
            exact = np.concatenate([expected_layer(number, ids[:n], segments[:n]) for ids, segments, n in rows])
            assert (got.dtype, got.shape) == (np.float32, exact.shape)
            np.testing.assert_allclose(got, exact, rtol=0, atol=1e-5)
        if not pooler:
            assert pooled is None
            continue
        last = max(layers) if len(layers) > 1 else BLOCKS
        firsts = np.stack([expected_layer(last, ids[:n], segments[:n])[0] for ids, segments, n in rows])
        assert (pooled.dtype, pooled.shape) == (np.float32, (len(rows), HIDDEN))
        np.testing.assert_allclose(pooled, firsts @ KERNEL, rtol=0, atol=1e-5)
    return source


# A plain BERT in TensorFlow, with the exporter's names for variables and nodes, and options to deviate from it.

SIZE, HEADS, INNER, POSITIONS = 16, 2, 24, 32


class PlainBert(tf.Module):
    """Source: Devlin et al., https://arxiv.org/abs/1810.04805. Each argument adds one deviation."""

    def __init__(
        self,
        *,
        activations: Sequence[Callable[[Any], Any]],
        epsilons: Sequence[float] = (1e-12,),
        fused: bool = False,
        norm_first: bool = False,
        scale: float = 1 / math.sqrt(SIZE // HEADS),
        pooler: Callable[[Any], Any] | None = tf.tanh,
        relative: bool = False,
        heads: bool = False,
    ) -> None:
        super().__init__()
        self._activations, self._epsilons, self._fused = activations, list(epsilons), fused
        self._norm_first, self._scale, self._pooler = norm_first, scale, pooler
        random = np.random.default_rng(4)
        self.weights = {}
        per_head = SIZE // HEADS

        def add(name: str, *shape: int, around: float = 0.0) -> None:
            values = random.normal(around, 0.3, shape).astype(np.float32)
            self.weights[name] = tf.Variable(values, name=name)

        add("word_embeddings/embeddings", len(WORDS), SIZE)
        add("position_embedding/embeddings", POSITIONS, SIZE)
        add("type_embeddings/embeddings", 2, SIZE)
        norms = ["embeddings/layer_norm"]
        for index in range(len(activations)):
            block = f"transformer/layer_{index}"
            for part in ("query", "key", "value"):
                add(f"{block}/self_attention/{part}/kernel", SIZE, HEADS, per_head)
                add(f"{block}/self_attention/{part}/bias", HEADS, per_head)
            add(f"{block}/self_attention/attention_output/kernel", HEADS, per_head, SIZE)
            add(f"{block}/self_attention/attention_output/bias", SIZE)
            add(f"{block}/intermediate/kernel", SIZE, INNER)
            add(f"{block}/intermediate/bias", INNER)
            add(f"{block}/output/kernel", INNER, SIZE)
            add(f"{block}/output/bias", SIZE)
            norms += [f"{block}/self_attention_layer_norm", f"{block}/output_layer_norm"]
        for norm in norms:
            add(f"{norm}/gamma", SIZE, around=1.0)
            add(f"{norm}/beta", SIZE)
        if pooler:
            add("pooler_transform/kernel", SIZE, SIZE)
            add("pooler_transform/bias", SIZE)
        if relative:
            add("relative_attention_bias", HEADS, 1, 1)
        if heads:
            # Belongs to another task, not to the encoder.
            add("predictions/transform/kernel", SIZE, SIZE)
        self._epsilon_of = {norm: self._epsilons[index % len(self._epsilons)] for index, norm in enumerate(norms)}

    def _dense(self, name: str, equation: str, x: Any) -> Any:
        with tf.name_scope(f"{name}/"):
            return tf.einsum(equation, x, self.weights[f"{name}/kernel"]) + self.weights[f"{name}/bias"]

    def _norm(self, name: str, x: Any) -> Any:
        gamma, beta = self.weights[f"{name}/gamma"], self.weights[f"{name}/beta"]
        epsilon = self._epsilon_of[name]
        with tf.name_scope(f"{name}/"):
            if self._fused:
                rows = tf.reshape(x, [1, -1, SIZE, 1])
                ones = tf.ones([tf.shape(rows)[1]])
                normal, *_ = tf.compat.v1.nn.fused_batch_norm(
                    rows, ones, tf.zeros_like(ones), epsilon=epsilon, data_format="NCHW"
                )
                return tf.reshape(normal, tf.shape(x)) * gamma + beta
            mean, variance = tf.nn.moments(x, [-1], keepdims=True)
            return tf.nn.batch_normalization(x, mean, variance, beta, gamma, epsilon)

    def _attend(self, attention: str, x: Any, mask: Any) -> Any:
        query, key, value = (
            self._dense(f"{attention}/{part}", "bsh,hnd->bsnd", x) for part in ("query", "key", "value")
        )
        with tf.name_scope(f"{attention}/"):
            scores = tf.einsum("bsnd,btnd->bnst", query * self._scale, key) + (1 - mask)[:, None, None] * -1e9
            if "relative_attention_bias" in self.weights:
                scores += self.weights["relative_attention_bias"] * tf.range(tf.shape(x)[1], dtype=tf.float32)
            context = tf.einsum("bnst,btnd->bsnd", tf.nn.softmax(scores), value)
        return self._dense(f"{attention}/attention_output", "bsnd,ndh->bsh", context)

    def _block(self, index: int, x: Any, mask: Any) -> Any:
        block = f"transformer/layer_{index}"

        def feed(x: Any) -> Any:
            inner = self._dense(f"{block}/intermediate", "bsh,hi->bsi", x)
            with tf.name_scope(f"{block}/activation/"):
                inner = self._activations[index](inner)
            return self._dense(f"{block}/output", "bsi,ih->bsh", inner)

        if self._norm_first:
            x += self._attend(f"{block}/self_attention", self._norm(f"{block}/self_attention_layer_norm", x), mask)
            return x + feed(self._norm(f"{block}/output_layer_norm", x))
        attended = self._attend(f"{block}/self_attention", x, mask)
        x = self._norm(f"{block}/self_attention_layer_norm", x + attended)
        return self._norm(f"{block}/output_layer_norm", x + feed(x))

    def call(self, inputs: dict[str, Any]) -> dict[str, Any]:
        words, mask, types = (inputs[name] for name in INPUTS)
        x = tf.gather(self.weights["word_embeddings/embeddings"], words)
        x += tf.gather(self.weights["type_embeddings/embeddings"], types)
        x += self.weights["position_embedding/embeddings"][: tf.shape(words)[1]]
        layers = [self._norm("embeddings/layer_norm", x)]
        for index in range(len(self._activations)):
            layers.append(self._block(index, layers[-1], tf.cast(mask, tf.float32)))
        outputs = {"sequence_output": layers[-1], "encoder_outputs": layers[1:]}
        if self._pooler:
            pooled = self._dense("pooler_transform", "bh,hk->bk", layers[-1][:, 0])
            with tf.name_scope("pooler_transform/"):
                outputs["pooled_output"] = self._pooler(pooled)
        return outputs


def gelu(x: Any) -> Any:
    return tf.nn.gelu(x, approximate=False)


def gelu_tanh(x: Any) -> Any:
    return tf.nn.gelu(x, approximate=True)


def quick_gelu(x: Any) -> Any:
    return x * tf.sigmoid(1.702 * x)


def save_bert(folder: Path, **differences: Any) -> Path:
    bert = PlainBert(**{"activations": [gelu, gelu]} | differences)
    return save(folder, lambda bert, inputs: bert.call(inputs), toy=bert)
