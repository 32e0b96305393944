"""Every architecture: the graph against NumPy, the names of the weights, the blocks that are needed, refusals."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
from architectures import CONFIGS, batch_of, write_encoder
from float_bounds import bounded_layers
from tampering import edit
from weights import Weights, in_float64, refused, same_weights

from layerbeam.pipeline.verify.compare import cosines
from layerbeam.transforms.encode.forward import Encoder
from layerbeam.transforms.encoders import EncoderSource, load_encoder, load_weights, open_encoder
from layerbeam.transforms.encoders.architectures import ARCHITECTURES, deberta
from layerbeam.transforms.encoders.architectures.mpnet import distance_buckets
from layerbeam.transforms.encoders.network import Network
from layerbeam.transforms.hardware import tf
from layerbeam.transforms.reference import forward

pytestmark = pytest.mark.usefixtures("threads")


BATCH = batch_of([61, 7, 1], 61)


@pytest.fixture(scope="module", params=CONFIGS)
def source(request, folders) -> EncoderSource:
    return open_encoder(str(folders[request.param]))


@pytest.fixture(scope="module")
def everything(source, threads) -> Encoder:
    """All layers and the pooled output in float32, with oneDNN's kernels."""
    return load_encoder(source, layers=[0, 1, 2, 3], pooler=source.has_pooler)


def assert_agrees_with_numpy(source: EncoderSource, encoder: Encoder) -> None:
    token_ids, lengths, segment_ids = BATCH
    layers, pooled = encoder(token_ids, lengths, segment_ids)
    expected, expected_pooled = bounded_layers(
        source.architecture, load_weights(source), token_ids, lengths, segment_ids * source.has_segments
    )
    assert len(expected) == 4
    for layer, bounded in enumerate(expected):
        bounded.assert_allows(layers[layer])
    if expected_pooled is not None:
        expected_pooled.assert_allows(pooled)
    assert source.has_pooler == (expected_pooled is not None) == (pooled is not None)


def test_every_architecture_has_a_case():
    types = {config["model_type"] for config in CONFIGS.values()}
    assert all(types & set(kind.model_types) for kind in ARCHITECTURES)


def test_agrees_with_numpy(source, everything):
    assert_agrees_with_numpy(source, everything)


@pytest.mark.parametrize(
    ("name", "how"),
    [(name, "public operations") for name in ("modernbert", "gemma3")],
    indirect=["how"],
)
def test_agrees_with_numpy_without_kernels(folders, name, how):
    source = open_encoder(str(folders[name]))
    assert_agrees_with_numpy(source, load_encoder(source, layers=[0, 1, 2, 3], pooler=source.has_pooler, **how))


# Where blocks of queries differ: masks, biases of distance, grouped heads, causal, local, both.
IN_BLOCKS = ("bert", "mpnet", "deberta", "deberta-convolution", "modernbert", "eurobert", "qwen3", "gemma3-causal")


@pytest.fixture(scope="module")
def long_folders(tmp_path_factory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("long")
    return {name: write_encoder(root / name, name, positions=1100) for name in IN_BLOCKS}


def test_long_texts_agree_with_numpy(long_folders):
    """The last block of queries is not full, one text is shorter than a block, and a row has no text."""
    for name, folder in long_folders.items():
        source = open_encoder(str(folder))
        encoder = load_encoder(source, layers=[2, 3], pooler=False)
        token_ids, lengths, segment_ids = batch_of([281, 9, 0], 281)
        layers, _ = encoder(token_ids, lengths, segment_ids)
        batch = (token_ids[:2], lengths[:2], segment_ids[:2] * source.has_segments)
        expected, _ = bounded_layers(source.architecture, load_weights(source), *batch)
        for layer in (2, 3):
            share = expected[layer].share(layers[layer])
            assert share <= 1, f"{name}, layer {layer}: {share} of what float32 may be off"


@pytest.mark.parametrize("name", ["deberta", "gemma3-causal"])
def test_long_texts_with_xla(long_folders, name):
    source = open_encoder(str(long_folders[name]))
    batch = batch_of([1051, 3], 1051)  # of more than a block of queries
    found, expected = (load_encoder(source, layers=[1], pooler=False, xla=xla)(*batch)[0][1] for xla in (True, False))
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-6 * np.abs(expected).max() * np.sqrt(1051))


@pytest.mark.parametrize(
    ("name", "how"),
    [
        *((name, "kernels") for name in ("albert", "mpnet", "deberta", "modernbert", "gemma3")),
        ("bert", "xla"),
    ],
    indirect=["how"],
)
def test_bfloat16_is_near(folders, name, how):
    source = open_encoder(str(folders[name]))
    last = 1 if how["xla"] else 3  # XLA takes a second for each block
    encoder = load_encoder(source, layers=[0, last], pooler=False, compute_dtype="bfloat16", **how)
    token_ids, lengths, segment_ids = batch_of([61, 7, 20], 61)
    coarse = encoder(token_ids, lengths, segment_ids)[0][last]
    weights = in_float64(load_weights(source))
    exact = np.concatenate(
        [
            forward(source.architecture, weights, ids[:length], segments[:length] * source.has_segments)[0][last]
            for ids, length, segments in zip(token_ids, lengths, segment_ids, strict=True)
        ]
    )
    assert coarse.dtype == np.float32
    assert np.abs(coarse - exact).max() > 1e-4
    # Of a gated layer's random products few tokens have small sums, whose directions depend on the rounding. Sums in
    # bfloat16 give 1 - 0.0018 and 1 - 0.0005, those in float32 less; allowed is three times as much of an error.
    near = cosines(coarse, exact)
    assert (np.quantile(near, 0.1) > 0.98, np.median(near) > 0.995) == (True, True)


def first_blocks(source: EncoderSource, num_blocks: int) -> Weights:
    """The weights that a network without the later blocks has."""
    weights = load_weights(source)
    return {name: weights[name] for name in source.architecture.weight_shapes(num_blocks=num_blocks, pooler=False)}


def test_xla_takes_all_operations_in_bfloat16(source, threads):
    """It does not compile them, which takes seconds: that is done for BERT, above."""
    network = Network(source.architecture, first_blocks(source, 1), layers=[1], compute_dtype="bfloat16", xla=True)
    inputs = [tf.constant(values) for values in batch_of([9, 5], 9)]
    assert "HloModule" in network._graph.experimental_get_compiler_ir(*inputs)(stage="hlo")


def test_only_the_blocks_that_the_layers_take(source, everything):
    """Where blocks differ or share weights, also with one block."""
    batch = batch_of([9, 5], 9)
    expected, _ = everything(*batch)
    kind = source.describe()["architecture"]
    for layers in ([0], [1, 0])[: 2 if kind in ("Albert", "Deberta", "Gemma3") else 1]:
        weights = first_blocks(source, layers[0])
        network = Network(source.architecture, weights, layers=layers, has_segments=source.has_segments)
        found, _ = network(*batch)
        assert list(found) == layers
        for layer in layers:
            np.testing.assert_array_equal(found[layer], expected[layer])
    shapes = source.architecture.weight_shapes
    assert shapes(num_blocks=3, pooler=source.has_pooler) == shapes(pooler=source.has_pooler)


def test_padding_and_neighbours_have_no_influence(source, everything):
    token_ids, lengths, segment_ids = batch_of([20, 7], 40)
    together, _ = everything(token_ids, lengths, segment_ids)
    short = token_ids[1:, :7], lengths[1:], segment_ids[1:, :7] * source.has_segments
    alone, _ = everything(*short)
    (*_, last), _ = bounded_layers(source.architecture, load_weights(source), *short)
    last._replace(values=alone[3]).assert_allows(together[3][20:], computations=2)


@pytest.mark.parametrize("name", CONFIGS)
def test_names_of_a_model_with_a_head(folders, name, tmp_path):
    assert same_weights(write_encoder(tmp_path / "with a head", name, prefixed=True), folders[name])


def test_the_fingerprint_tells_architectures_apart(folders):
    sources = [open_encoder(str(folder)) for folder in folders.values()]
    assert len({source.fingerprint for source in sources}) == len(CONFIGS)
    assert {source.describe()["architecture"] for source in sources} == {kind.__name__ for kind in ARCHITECTURES}


def test_positions_counted_from_the_padding_leave_fewer_tokens(folders):
    lengths = {name: open_encoder(str(folder)).max_position_embeddings for name, folder in folders.items()}
    assert (lengths["bert"], lengths["roberta"], lengths["mpnet"]) == (64, 62, 62)
    encoder = load_encoder(open_encoder(str(folders["roberta"])), layers=[0], pooler=False)
    assert encoder(*batch_of([62], 62))[0][0].shape == (62, 24)
    with pytest.raises(ValueError, match="rows of 63 tokens; the encoder has 62 positions"):
        encoder(*batch_of([63], 63))


def test_second_text_is_a_segment_if_encoder_has_segments(folders):
    has_segments = {name: open_encoder(str(folder)).has_segments for name, folder in folders.items()}
    with_segments = {"bert", "albert", "electra", "electra-wide", "deberta-convolution", "nomic"}
    assert {name for name, has in has_segments.items() if has} == with_segments


def test_distances_share_buckets():
    buckets = distance_buckets(512)
    assert (buckets.min(), buckets.max(), buckets[511]) == (0, 31, 0)
    assert np.flatnonzero(np.diff(buckets[511:])).tolist()[:10] == [0, 1, 2, 3, 4, 5, 6, 7, 11, 15]


def test_distances_of_deberta_share_buckets_beyond_half_of_their_number():
    buckets = deberta.distance_buckets(np.arange(512), 256, 512)
    assert buckets[:131].tolist() == [*range(129), 129, 130]
    # ceil(127 ln(distance / 128) / ln(511 / 128)) + 128, as transformers computes it
    assert buckets[[140, 200, 256, 300, 400, 510, 511]].tolist() == [137, 169, 192, 207, 233, 255, 255]
    np.testing.assert_array_equal(deberta.distance_buckets(-np.arange(512), 256, 512), -buckets)


@pytest.mark.parametrize(
    ("name", "fields", "message"),
    [
        ("distilbert", {"n_heads": 5}, "dim is 24; it must be a multiple of n_heads, 5"),
        ("distilbert", {"activation": "relu"}, 'activation is "relu"; it must be one of gelu,'),
        ("albert", {"num_hidden_groups": 0}, "num_hidden_groups is 0; it must be a positive integer"),
        ("albert", {"num_hidden_groups": 99}, "says 67 blocks with weights of their own, and the weights have no more"),
        ("albert", {"inner_group_num": 500}, "num_hidden_layers is 3; it must be at most 1,000 when multiplied by"),
        ("electra", {"embedding_size": None}, "embedding_size is null; it must be a positive integer"),
        ("roberta", {"pad_token_id": -1}, "pad_token_id is -1; it must be an integer from 0"),
        ("roberta", {"max_position_embeddings": 4}, "max_position_embeddings is 4; it must be at least pad"),
        ("roberta", {"is_decoder": True}, "is_decoder is true; it must be false"),
        ("mpnet", {"relative_attention_num_buckets": 64}, "relative_attention_num_buckets is 64; it must be 32"),
        ("mpnet", {"pad_token_id": 0}, "pad_token_id is 0; it must be 1"),
        ("deberta", {"relative_attention": False}, "relative_attention is false; it must be true"),
        ("deberta", {"pos_att_type": "p2p|c2p"}, 'pos_att_type is "p2p|c2p"; it must be "c2p", "p2c" or "p2c|c2p"'),
        ("deberta", {"pos_att_type": []}, "pos_att_type is []; it must be"),
        ("deberta", {"pos_att_type": [["c2p"]]}, 'pos_att_type is [["c2p"]]; it must be'),
        ("deberta", {"position_buckets": 1}, "position_buckets is 1; it must be -1, or from 2 to 125 by max_relative"),
        ("deberta", {"position_buckets": 126}, "position_buckets is 126; it must be -1, or from 2 to 125"),
        ("deberta", {"position_buckets": 2.5}, "position_buckets is 2.5; it must be a positive integer"),
        ("deberta", {"max_position_embeddings": 10**9}, "max_position_embeddings is 1000000000; it must be at most 10"),
        ("deberta", {"max_relative_positions": 10**9}, "max_relative_positions is 1000000000; it must be at most 100,"),
        ("deberta", {"norm_rel_ebd": "batch_norm"}, 'norm_rel_ebd is "batch_norm"; it must be "none" or "layer_norm"'),
        ("deberta", {"type_vocab_size": -1}, "type_vocab_size is -1; it must be an integer from 0"),
        ("deberta", {"attention_head_size": 16}, "attention_head_size is 16; it must be 8"),
        ("deberta", {"conv_kernel_size": 3, "conv_act": "tanh"}, 'conv_act is "tanh"; it must be one of gelu,'),
        ("deberta", {"conv_kernel_size": 3, "conv_act": "gelu_new"}, "it must be the same form of GELU as hidden_act"),
        ("deberta-convolution", {"conv_kernel_size": 4}, "conv_kernel_size is 4; it must be odd"),
        ("deberta-convolution", {"conv_groups": 2}, "conv_groups is 2; it must be 1"),
        ("deberta", {"share_att_key": False}, "no tensor encoder.layer.0.attention.self.pos_key_proj.weight among"),
        ("modernbert", {"layer_types": ["full_attention"]}, "layer_types is"),
        ("modernbert", {"layer_types": ["full_attention", "other", "x"]}, "a list of full_attention or sliding"),
        ("modernbert", {"global_attn_every_n_layers": 0}, "global_attn_every_n_layers is 0; it must be a positive"),
        ("modernbert", {"rope_scaling": {"type": "yarn"}}, "rope_scaling is"),
        ("modernbert", {"global_rope_theta": "1"}, "global_rope_theta is"),
        ("modernbert", {"norm_bias": 1}, "norm_bias is 1; it must be false or true"),
        ("modernbert", {"num_attention_heads": 8}, "hidden_size is 24; it must be num_attention_heads times an even"),
        ("modernbert-biases", {"rope_parameters": {"full_attention": 3}}, "rope_parameters is"),
        ("modernbert-biases", {"rope_parameters": {"rope_theta": 3.0}}, "an object with full_attention and sliding"),
        ("modernbert-biases", {"rope_parameters": {"full_attention": {"rope_type": "yarn"}}}, '"default" or "linear"'),
        ("nomic", {"rope_parameters": {"rope_type": "default", "rope_theta": 0}}, "rope_parameters is"),
        ("nomic", {"rope_parameters": {"rope_type": "linear", "factor": "2"}}, "rope_parameters is"),
        ("nomic", {"n_embd": 24, "prenorm": True}, "prenorm is true; it must be false"),
        ("nomic", {"hidden_act": "relu"}, 'hidden_act is "relu"; it must be one of gelu,'),
        ("gte", {"layer_norm_type": "rms_norm"}, 'layer_norm_type is "rms_norm"; it must be "layer_norm"'),
        ("gte-new", {"rope_scaling": {"type": "ntk", "factor": 0.5}}, "of type ntk, with a factor from 1 and without"),
        ("gte-new", {"rope_scaling": {"type": "dynamic", "factor": 2}}, "rope_scaling is"),
        ("gte-new", {"logn_attention_scale": True}, "logn_attention_scale is true; it must be false"),
        ("eurobert", {"num_key_value_heads": 4}, "num_key_value_heads is 4; it must be a divisor of num_attention_he"),
        ("qwen3", {"use_sliding_window": True}, "use_sliding_window is true; it must be false"),
        ("qwen3", {"layer_types": ["sliding_attention"] * 3}, "it must be full_attention for each block"),
        ("qwen3", {"head_dim": 7}, "head_dim is 7; it must be even"),
        ("gemma3", {"attn_logit_softcapping": 50.0}, "attn_logit_softcapping is 50.0; it must be null"),
        ("gemma3", {"sliding_window_pattern": 0}, "sliding_window_pattern is 0; it must be a positive integer"),
        ("gemma3", {"use_bidirectional_attention": "all"}, "use_bidirectional_attention is"),
    ],
)  # fmt: skip
def test_configurations_that_compute_something_else(folders, name, fields, message, tmp_path):
    folder = Path(shutil.copytree(folders[name], tmp_path / "encoder"))
    edit(folder / "config.json", **fields)
    if fields == {"embedding_size": None}:
        message = "embedding_size is missing"
    assert message in refused(folder)


@pytest.mark.parametrize("name", ["albert", "roberta", "mpnet", "deberta", "modernbert"])
def test_a_missing_tokenizer_is_named_with_the_way_to_make_it(folders, name, tmp_path):
    folder = Path(shutil.copytree(folders[name], tmp_path / "encoder"))
    (folder / "tokenizer.json").unlink()
    assert refused(folder) == (
        f"{folder}: {folder}/tokenizer.json is missing; it holds the tokenizer: download it too, or make it where "
        "transformers is installed: transformers.AutoTokenizer.from_pretrained(folder).save_pretrained(folder)"
    )
    for other in ("spm.model", "spiece.model", "merges.txt"):
        (folder / other).write_bytes(b"x")
        assert f"it holds the tokenizer, which is not read from {other}: download it too, or make" in refused(folder)
        assert "make it where transformers and sentencepiece are installed: " in refused(folder)
        (folder / other).unlink()
