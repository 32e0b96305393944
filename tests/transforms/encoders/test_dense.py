"""Dense modules of sentence-transformers: read from their folders, computed, and refused."""

from __future__ import annotations

import json
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import saved_models
from dense import TANH, dense_in_numpy, encoder_with_dense, write_dense
from pytorch_files import save
from repository import DATA
from safetensors.numpy import load_file, save_file

from layerbeam.transforms.encoders import EncoderError, load_encoder, open_dense, open_encoder, read_dense_weights
from layerbeam.transforms.encoders.dense import Dense, load_dense
from layerbeam.transforms.reference import dense
from layerbeam.transforms.views.view import DenseModule, ViewSpec

WEIGHTS = np.array([[1, 2], [0, -3], [0, 1]], np.float32)  # [in, out]
VECTORS = np.array([[1, 0, 1], [0, 1, 0]], np.float32)


@pytest.fixture
def folder(tmp_path) -> Path:
    """The small encoder with 2_Dense, 64 -> 48 with tanh, and 3_Dense, 48 -> 32 without bias."""
    encoder_with_dense(tmp_path / "encoder")
    return tmp_path / "encoder"


def refused(folder: Path, name: str = "2_Dense") -> str:
    with pytest.raises(EncoderError) as error:
        open_dense(open_encoder(str(folder)), name)
    return str(error.value).replace(f"{folder}/", "").replace(str(folder), "FOLDER")


@pytest.mark.parametrize(
    ("activation", "expected"),
    [
        ("identity", [[1.5, 3], [0.5, -3]]),
        ("relu", [[1.5, 3], [0.5, 0]]),
        ("tanh", [[0.9051483, 0.9950548], [0.4621172, -0.9950548]]),
        ("sigmoid", [[0.8175745, 0.9525741], [0.6224593, 0.0474259]]),
        ("gelu", [[1.3997892, 2.9959503], [0.3457312, -0.0040497]]),
    ],
)
def test_activations(activation, expected):
    bias = np.array([0.5, 0], np.float32)
    np.testing.assert_allclose(Dense(WEIGHTS, bias, activation)(VECTORS), expected, atol=1e-5, rtol=0)
    np.testing.assert_allclose(dense(VECTORS, WEIGHTS, bias, activation), expected, atol=1e-7, rtol=0)


def test_modules_are_read(folder):
    source = open_encoder(str(folder))
    first, second = (open_dense(source, name) for name in ("2_Dense", "3_Dense"))
    assert (first.in_features, first.out_features, first.has_bias, first.activation) == (64, 48, True, "tanh")
    assert second == DenseModule("3_Dense", 48, 32, False, "identity", second.sha256)
    assert len(second.sha256) == 64
    weights, bias = read_dense_weights(source, second)
    assert (weights.shape, bias.tolist()) == ((48, 32), [0] * 32)
    view = ViewSpec(name="a", level="text", layers=(3,), hidden_size=64, dense=["2_Dense"], dense_modules=(first,))
    assert (view.pooled_width, view.full_width, view.width) == (64, 48, 48)
    with pytest.raises(ValueError, match=r"view a: dense is \['2_Dense'\], and dense_modules are \[\]: give the same"):
        ViewSpec(name="a", level="text", layers=(3,), hidden_size=64, dense=["2_Dense"])


def test_files_of_pytorch_give_the_same(folder):
    weights = write_dense(folder, "5_Dense", 64, 7)
    source = open_encoder(str(folder))
    vectors = np.random.default_rng(0).normal(size=(20, 64)).astype(np.float32)
    first = load_dense(source, open_dense(source, "5_Dense"))(vectors)
    (folder / "5_Dense" / "model.safetensors").unlink()
    save(folder / "5_Dense" / "pytorch_model.bin", weights)
    second = load_dense(source, open_dense(source, "5_Dense"))(vectors)
    assert first.tobytes() == second.tobytes()
    np.testing.assert_allclose(first, dense_in_numpy(vectors, weights, "Tanh"), atol=1e-5, rtol=0)


def test_threads_give_equal_bits(folder):
    source = open_encoder(str(folder))
    module = load_dense(source, open_dense(source, "2_Dense"))
    batches = [np.random.default_rng(rows).normal(size=(rows, 64)).astype(np.float32) for rows in range(1, 60)]
    with ThreadPoolExecutor(8) as threads:
        found = list(threads.map(module, batches))
    assert [values.tobytes() for values in found] == [module(batch).tobytes() for batch in batches]


def test_loaded_with_the_encoder(folder):
    source = open_encoder(str(folder))
    modules = [open_dense(source, name) for name in ("2_Dense", "3_Dense")]
    assert list(load_encoder(source, layers=[1], pooler=False, dense=modules).dense_modules) == modules
    config = folder / "2_Dense" / "config.json"
    config.write_text(config.read_text().replace("Tanh", "ReLU"))
    with pytest.raises(EncoderError, match="2_Dense has changed since the run was started; start it again"):
        load_encoder(source, layers=[1], pooler=False, dense=modules)


def test_a_module_next_to_a_checkpoint_or_a_saved_model(tmp_path):
    shutil.copytree(DATA / "google_uncased", tmp_path / "google")
    saved_models.save(tmp_path / "toy")
    for name, engine, hidden_size in (("google", "native", 64), ("toy", "savedmodel", 6)):
        write_dense(tmp_path / name, "2_Dense", hidden_size, 3)
        source = open_encoder(str(tmp_path / name))
        assert source.engine == engine
        encoder = load_encoder(source, layers=[1], pooler=False, dense=[open_dense(source, "2_Dense")])
        (module,) = encoder.dense_modules.values()
        assert module(np.ones((2, hidden_size), np.float32)).shape == (2, 3)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (
            {"activation_function": "torch.nn.modules.activation.SiLU"},
            '2_Dense/config.json: activation_function is "torch.nn.modules.activation.SiLU"; it must be Identity, '
            "Tanh, ReLU, GELU or Sigmoid of torch.nn: take another encoder",
        ),
        ({"activation_function": "my_code.Tanh"}, 'activation_function is "my_code.Tanh"; it must be Identity, Tanh'),
        ({"activation_function": None}, "activation_function is null; it must be Identity"),
        ({"use_residual": True}, "use_residual is true; it must be false"),
        ({"bias": 1}, "bias is 1; it must be true or false"),
        ({"in_features": "64"}, 'in_features is "64"; it must be a positive integer'),
        (
            {"out_features": 49},
            "2_Dense/model.safetensors: linear.weight is F32 [48, 64]; by FOLDER/2_Dense/config.json it must be one of "
            "F32, F16, BF16, F64 [49, 64]: download both again",
        ),
    ],
)
def test_modules_that_compute_something_else(folder, change, reason):
    config = folder / "2_Dense" / "config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | change))
    assert reason.replace("FOLDER/", "") in refused(folder)


def test_missing_and_damaged_files(folder):
    assert refused(folder, "9_Dense") == (
        "FOLDER: 9_Dense/config.json is missing; a Dense module is a folder next to the encoder's own files (there: "
        "2_Dense, 3_Dense)"
    )
    (folder / "2_Dense" / "model.safetensors").write_bytes(b"x")
    assert "2_Dense/model.safetensors: not a complete safetensors file" in refused(folder)
    (folder / "2_Dense" / "model.safetensors").unlink()
    assert "2_Dense/model.safetensors is missing; it holds the weights" in refused(folder)
    save_file({"linear.weight": np.ones((48, 64), np.float32)}, folder / "2_Dense" / "model.safetensors")
    assert "linear.bias is missing among linear.weight; by 2_Dense/config.json it must be one of" in refused(folder)
    (folder / "3_Dense" / "config.json").write_text("[")
    assert "3_Dense/config.json: is not JSON" in refused(folder, "3_Dense")


def test_weights_that_are_not_finite(folder):
    save_file({"linear.weight": np.full((32, 48), np.nan, np.float32)}, folder / "3_Dense" / "model.safetensors")
    source = open_encoder(str(folder))
    with pytest.raises(EncoderError, match="3_Dense: the weights hold NaN or infinite values; download them again"):
        load_dense(source, open_dense(source, "3_Dense"))


def test_default_activation_is_tanh(folder):
    config = folder / "2_Dense" / "config.json"
    config.write_text(json.dumps({"in_features": 64, "out_features": 48}))
    assert open_dense(open_encoder(str(folder)), "2_Dense").activation == TANH.rpartition(".")[2].lower()


@pytest.mark.parametrize("shape", [(0, 64), (8, 0), (0, 0)])
def test_a_module_without_numbers_is_none(folder, shape):
    saved = load_file(folder / "model.safetensors")
    save_file(saved | {"linear.weight": np.zeros(shape, np.float32)}, folder / "model.safetensors")
    assert "has no matrix linear.weight next to the encoder's weights" in refused(folder, ".")
