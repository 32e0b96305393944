"""LoRA adapters, merged into weights."""

from __future__ import annotations

import dataclasses
import math
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from adapters import TASKS, write_adapter, write_jina
from architectures import CONFIGS, write_encoder
from float_bounds import bounded_layers
from object_store import upload
from repository import DATA
from safetensors.numpy import load_file, save_file
from tampering import edit
from tensor_files import file_tensors, joined

from layerbeam.transforms.encoders import AdapterError, EncoderError, load_encoder, load_weights, open_encoder
from layerbeam.transforms.encoders.architectures import read_architecture
from layerbeam.transforms.encoders.config_file import ConfigFile
from layerbeam.transforms.encoders.formats.huggingface import current_names

HIDDEN = (24, 24)
QUERY, VALUE = (f"encoder.layer.1.attention.self.{part}" for part in ("query", "value"))
KERNEL = "bert/encoder/layer_1/attention/self/{}/kernel"


@pytest.fixture(scope="module")
def bert(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_encoder(tmp_path_factory.mktemp("bert") / "encoder", "bert")


def opened(encoder: Path, adapter: Path) -> Any:
    return open_encoder(str(encoder), adapter=str(adapter))


def refused(encoder: Path, adapter: Path) -> str:
    with pytest.raises(AdapterError) as caught:
        opened(encoder, adapter)
    return str(caught.value)


@pytest.mark.usefixtures("threads")
@pytest.mark.parametrize("name", CONFIGS)
def test_every_product_of_every_architecture(tmp_path, name):
    encoder = write_encoder(tmp_path / "encoder", name)
    architecture = read_architecture(ConfigFile("test", encoder / "config.json"))
    kernels = {
        weight: np.zeros(shape, np.float32)
        for weight, shape in architecture.weight_shapes().items()
        if weight.endswith("/kernel") and len(shape) == 2
    }
    names = {weight: architecture.spellings(weight)[0].removesuffix(".weight") for weight in kernels}
    tensors = joined(architecture, file_tensors(architecture, kernels))  # some hold several products
    shapes = {tensor.removesuffix(".weight"): values.shape for tensor, values in tensors.items()}
    products = write_adapter(tmp_path / "adapter", shapes, target_modules="all-linear", lora_alpha=6)
    for module in shapes:
        parts = current_names(architecture, module)
        products |= dict(zip(parts, np.split(products[module], len(parts)), strict=True))
    source = opened(encoder, tmp_path / "adapter")
    before, after = load_weights(open_encoder(str(encoder))), load_weights(source)
    assert list(after) == list(before)
    for weight in before:
        expected = before[weight]
        if weight in names:
            expected = expected + 1.5 * products[names[weight]].T
        np.testing.assert_allclose(after[weight], expected, rtol=0, atol=1e-5)
        assert after[weight].dtype == np.float32
    assert len(source.adapter.kernels) == len(names)


@pytest.mark.usefixtures("threads")
def test_layers_are_those_of_merged_weights(bert, tmp_path):
    products = write_adapter(tmp_path / "adapter", {QUERY: HIDDEN, VALUE: HIDDEN})
    tensors = load_file(bert / "model.safetensors")
    for module, product in products.items():
        tensors[f"{module}.weight"] = (tensors[f"{module}.weight"] + 2 * product).astype(np.float32)
    merged = tmp_path / "merged"
    merged.mkdir()
    for file in bert.iterdir():
        (merged / file.name).write_bytes(file.read_bytes())
    save_file(tensors, merged / "model.safetensors")
    ids, lengths = np.array([[2, 5, 6, 7, 3]], np.int32), np.array([5], np.int32)
    sources = opened(bert, tmp_path / "adapter"), open_encoder(str(merged)), open_encoder(str(bert))
    ours, theirs, without = (
        load_encoder(source, layers=[1, 2, 3], pooler=False)(ids, lengths, np.zeros_like(ids))[0] for source in sources
    )
    bounded, _ = bounded_layers(sources[1].architecture, load_weights(sources[1]), ids, lengths, np.zeros_like(ids))
    for layer in (1, 2, 3):
        bounded[layer]._replace(values=theirs[layer]).assert_allows(ours[layer], computations=2)
    assert np.abs(ours[3] - without[3]).max() > 0.01


@pytest.mark.parametrize(
    ("config", "ranks", "scales"),
    [
        ({"r": 4, "lora_alpha": 8}, {}, (2, 2)),
        ({"r": 4, "lora_alpha": 8, "use_rslora": True}, {}, (4, 4)),
        ({"r": 4, "lora_alpha": 2.5, "rank_pattern": {"query": 2}}, {QUERY: 2}, (1.25, 0.625)),
        ({"r": 4, "lora_alpha": 8, "alpha_pattern": {r".*\.1\..*value": 1}}, {}, (2, 0.25)),
        ({"r": 4, "rank_pattern": {"self": 2, "value": 3}, "use_rslora": True}, {VALUE: 3}, (4, 8 / math.sqrt(3))),
        ({"target_modules": r".*\.(query|value)"}, {}, (2, 2)),
        ({"target_modules": [QUERY, "self.value"], "init_lora_weights": "gaussian"}, {}, (2, 2)),
        ({"layers_to_transform": [1], "exclude_modules": ["key", "output.dense"]}, {}, (2, 2)),
        ({"layers_to_transform": 1, "layers_pattern": "layer"}, {}, (2, 2)),
    ],
)
def test_scales(bert, tmp_path, config, ranks, scales):
    write_adapter(tmp_path, {QUERY: HIDDEN, VALUE: HIDDEN}, ranks=ranks, **config)
    kernels = {kernel.name: kernel.scale for kernel in opened(bert, tmp_path).adapter.kernels}
    assert kernels == {
        KERNEL.format(part): pytest.approx(scale) for part, scale in zip(("query", "value"), scales, strict=True)
    }


def test_names_with_a_head(bert, tmp_path):
    write_adapter(tmp_path / "head", {f"bert.{QUERY}": HIDDEN})
    source = opened(bert, tmp_path / "head")
    assert [kernel.name for kernel in source.adapter.kernels] == [KERNEL.format("query")]
    write_adapter(tmp_path / "plain", {QUERY: HIDDEN})
    assert opened(bert, tmp_path / "plain").fingerprint == source.fingerprint
    write_adapter(tmp_path / "both", {QUERY: HIDDEN, f"bert.{QUERY}": HIDDEN})
    assert f"{QUERY} is no product of this BERT" in refused(bert, tmp_path / "both")


def test_fingerprint_is_of_values_and_scales(bert, tmp_path):
    plain = open_encoder(str(bert))
    write_adapter(tmp_path / "a", {QUERY: HIDDEN})
    first = opened(bert, tmp_path / "a")
    assert first.fingerprint != plain.fingerprint
    assert first.weights_sha256 == plain.weights_sha256
    write_adapter(tmp_path / "b", {QUERY: HIDDEN}, lora_dropout=0.5, base_model_name_or_path="other")
    same = opened(bert, tmp_path / "b")
    assert same.fingerprint == first.fingerprint
    assert pickle.loads(pickle.dumps(same)) == same
    edit(tmp_path / "b" / "adapter_config.json", lora_alpha=9)
    assert opened(bert, tmp_path / "b").fingerprint != first.fingerprint
    edit(tmp_path / "b" / "adapter_config.json", lora_alpha=8)
    file = tmp_path / "b" / "adapter_model.safetensors"
    save_file({name: values * np.float32(1.001) for name, values in load_file(file).items()}, file)
    assert opened(bert, tmp_path / "b").fingerprint != first.fingerprint
    changed = dataclasses.replace(first, adapter=dataclasses.replace(first.adapter, handle=str(tmp_path / "b")))
    with pytest.raises(EncoderError, match="has changed since the run was started"):
        load_encoder(changed, layers=[1], pooler=False)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"peft_type": "IA3"}, 'peft_type is "IA3"; it must be "LORA"'),
        ({"bias": "lora_only"}, 'bias is "lora_only"; it must be "none"'),
        ({"use_dora": True}, "use_dora is true; it must be false, null or empty"),
        ({"modules_to_save": ["classifier"]}, 'modules_to_save is ["classifier"]; it must be'),
        ({"fan_in_fan_out": True}, "fan_in_fan_out is true"),
        ({"lora_bias": True}, "lora_bias is true"),
        ({"trainable_token_indices": [5]}, "trainable_token_indices is [5]"),
        ({"something_new": {"a": 1}}, 'something_new is {"a": 1}; it must be false'),
        ({"init_lora_weights": "pissa_niter_4"}, 'init_lora_weights is "pissa_niter_4"; it must be one of null, true'),
        ({"r": 5}, "has the shapes {'A': (4, 24), 'B': (24, 4)}; by encoder and rank they must be {'A': (5, 24), "),
        ({"r": None}, "r is null; it must be a positive number"),
        ({"r": 4.0}, "r is 4.0; it must be an integer"),
        ({"lora_alpha": "8"}, 'lora_alpha is "8"; it must be a positive number'),
        ({"lora_alpha": math.inf}, "lora_alpha is Infinity; it must be a positive number"),
        ({"rank_pattern": {"query": True}}, "it must be a positive number, as those of rank_pattern"),
        ({"rank_pattern": {"(": 4}}, 'rank_pattern is {"(": 4}; it must be modules and regular expressions that RE2'),
        ({"rank_pattern": {r"((\w|\.)+)+!": 4}, "r": 0}, "r is 0; it must be a positive number"),
        ({"target_modules": r"((\w|\.)+)+!"}, "is not among target_modules"),
        ({"rank_pattern": [4]}, "rank_pattern is [4]; it must be an object"),
        ({"target_modules": ["key"]}, f"{QUERY} is not among target_modules, or left out: peft would not use it"),
        ({"target_modules": ["ry"]}, f"{QUERY} is not among target_modules"),  # the end of a name, and no name
        ({"target_modules": "query"}, "is not among target_modules"),
        ({"target_modules": "("}, 'target_modules is "("; it must be modules and regular expressions that RE2 knows'),
        ({"exclude_modules": ["self.query"]}, f"{QUERY} is not among target_modules, or left out"),
        ({"exclude_modules": r".*\.query"}, "or left out: peft would not use it"),
        ({"layers_to_transform": [0, 2]}, "or left out: peft would not use it"),
        ({"layers_to_transform": 0}, "or left out: peft would not use it"),
        ({"target_modules": None}, "target_modules is null; it must be a list of modules or a regular"),
    ],
)
def test_other_configurations_are_refused(bert, tmp_path, fields, message):
    write_adapter(tmp_path, {QUERY: HIDDEN})
    edit(tmp_path / "adapter_config.json", **fields)
    assert message in refused(bert, tmp_path)


@pytest.mark.parametrize(
    ("module", "shape", "message"),
    [
        ("encoder.layer.3.attention.self.query", HIDDEN, "query is no product of this BERT, such as encoder.layer.0."),
        ("classifier", (2, 24), "classifier is no product of this BERT"),
        ("embeddings.word_embeddings", (300, 24), "embeddings.word_embeddings is no product"),
        (QUERY, (72, 24), "query has the shapes {'A': (4, 24), 'B': (72, 4)}"),
    ],
)
def test_what_is_not_there_is_refused(bert, tmp_path, module, shape, message):
    write_adapter(tmp_path, {module: shape}, target_modules=[module])
    assert message in refused(bert, tmp_path)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (f"base_model.model.{QUERY}.lora_magnitude_vector", "is no matrix A or B of LoRA"),
        (f"base_model.model.{QUERY}.lora_A.default.weight", "is no matrix A or B of LoRA"),
        ("base_model.model.classifier.weight", "is no matrix A or B of LoRA"),
        (f"base_model.model.{VALUE}.lora_A.weight", "value has the shapes {'A': (4, 24)}; by encoder and rank"),
    ],
)
def test_other_tensors_are_refused(bert, tmp_path, name, message):
    write_adapter(tmp_path, {QUERY: HIDDEN})
    file = tmp_path / "adapter_model.safetensors"
    save_file(load_file(file) | {name: np.zeros((4, 24), np.float32)}, file)
    assert message in refused(bert, tmp_path)


def test_incomplete_adapters(bert, tmp_path):
    assert "there is no such folder" in refused(bert, tmp_path / "nowhere")
    (tmp_path / "empty").mkdir()
    assert "adapter_config.json is missing; an adapter is a folder that peft has saved" in refused(
        bert, tmp_path / "empty"
    )
    write_adapter(tmp_path / "a", {QUERY: HIDDEN})
    file = tmp_path / "a" / "adapter_model.safetensors"
    file.write_bytes(file.read_bytes()[:-8])
    assert "not a complete safetensors file" in refused(bert, tmp_path / "a")
    file.unlink()
    assert "adapter_model.safetensors is missing" in refused(bert, tmp_path / "a")
    write_adapter(tmp_path / "b", {})
    assert "holds no tensor" in refused(bert, tmp_path / "b")
    (tmp_path / "b" / "adapter_config.json").write_text("[]")
    assert "is []; it must be an object: download it again" in refused(bert, tmp_path / "b")


def test_encoders_without_adapters(bert, tmp_path):
    write_adapter(tmp_path, {QUERY: HIDDEN})
    assert "an adapter needs an encoder as Hugging Face or Google release it" in refused(
        DATA / "tfhub_uncased", tmp_path
    )
    with pytest.raises(EncoderError, match=r"is an adapter, not an encoder: give it as encoder\.adapter"):
        open_encoder(str(tmp_path))


def test_an_adapter_of_googles_checkpoint(tmp_path):
    write_adapter(tmp_path, {QUERY: (64, 64)})
    source = open_encoder(str(DATA / "google_uncased"), adapter=str(tmp_path))
    plain = load_weights(open_encoder(str(DATA / "google_uncased")))
    assert not np.allclose(load_weights(source)[KERNEL.format("query")], plain[KERNEL.format("query")])


@pytest.mark.usefixtures("cache")
def test_an_adapter_in_a_store(bert, tmp_path, memory):
    write_adapter(tmp_path, {QUERY: HIDDEN})
    upload(tmp_path, "memory://bucket/adapter")
    memory.stored["memory://bucket/adapter/optimizer.pt"] = (0.0, b"some bytes")
    source = open_encoder(str(bert), adapter="memory://bucket/adapter")
    assert source.fingerprint == opened(bert, tmp_path).fingerprint
    assert "memory://bucket/adapter/optimizer.pt" not in memory.opened


@pytest.mark.usefixtures("cache")
def test_an_adapter_next_to_pickled_weights_does_not_hide_them(memory):
    for name in ("config.json", "pytorch_model.bin", "adapter_model.safetensors"):
        memory.stored[f"memory://bucket/e/{name}"] = (0.0, b"{}")
    with pytest.raises(EncoderError):
        open_encoder("memory://bucket/e")
    assert "memory://bucket/e/pytorch_model.bin" in memory.opened


@pytest.fixture(scope="module")
def jina(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return write_jina(tmp_path_factory.mktemp("jina"))


@pytest.mark.parametrize("task", [None, *TASKS])
def test_adapters_in_the_files_of_jina(jina, task):
    source = open_encoder(str(jina["own"]), adapter=task)
    merged = open_encoder(str(jina[task or "none"]))
    assert dataclasses.asdict(source.architecture) == dataclasses.asdict(merged.architecture)
    assert source.weights_sha256 == open_encoder(str(jina["none"])).weights_sha256
    ours, expected = load_weights(source), load_weights(merged)
    assert list(ours) == list(expected)
    for name in expected:
        np.testing.assert_allclose(ours[name], expected[name], rtol=0, atol=1e-5)
        assert ours[name].dtype == np.float32


def test_each_of_jinas_adapters_has_a_fingerprint(jina):
    prints = {open_encoder(str(jina["own"]), adapter=task).fingerprint for task in (None, *TASKS)}
    assert len(prints) == 4


def test_what_jinas_files_do_not_hold(jina, tmp_path):
    own = jina["own"]
    message = refused(own, Path("separation"))
    assert "separation: there is no such folder" in message
    assert message.endswith("; the encoder's own adapters are retrieval.query, retrieval.passage, text-matching")
    for file in own.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    edit(tmp_path / "config.json", lora_rank=3)
    assert "has the shapes {'A': (1, 4), 'B': (4, 24)}; by encoder and rank they must be {'A': (1, 3), " in refused(
        tmp_path, Path(TASKS[0])
    )
    edit(tmp_path / "config.json", lora_adaptations=TASKS[:2], lora_rank=4)
    assert "lora_A does not hold 2 matrices in " in refused(tmp_path, Path(TASKS[0]))
    save_file(load_file(jina["none"] / "model.safetensors"), tmp_path / "model.safetensors")
    assert "model.safetensors: it holds no tensor of an adapter" in refused(tmp_path, Path(TASKS[0]))
