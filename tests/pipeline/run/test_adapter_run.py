"""Runs with a LoRA adapter: recorded, verified, resumed only with the same one."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest
from adapters import TASKS, write_adapter, write_jina
from architectures import write_encoder
from float_bounds import OF_TWO

import layerbeam

MODULES = {
    f"encoder.layer.{index}.attention.self.{part}": (24, 24) for index in range(3) for part in ("query", "value")
}
VIEWS = {"texts": {"level": "text", "layers": [3], "pooling": "mean"}}


@pytest.fixture
def settings(tmp_path: Path) -> dict[str, str]:
    write_encoder(tmp_path / "encoder", "bert")
    write_adapter(tmp_path / "adapter", MODULES)
    return {"handle": str(tmp_path / "encoder"), "adapter": str(tmp_path / "adapter")}


def test_run_and_verify(workplace, tmp_path, settings):
    workplace.finished("a river bank\nthe river\n", encoder=settings, views=VIEWS)
    assert "pass" in workplace.verify().out
    manifest = workplace.manifest()
    assert manifest["settings"]["encoder"]["adapter"] == settings["adapter"]
    assert (manifest["encoder"]["adapter"], manifest["encoder"]["adapted_products"]) == (settings["adapter"], 6)
    write_adapter(tmp_path / "other", MODULES, lora_alpha=9)
    for adapter in (tmp_path / "other", "null"):
        refused = workplace.drive("--set", f"encoder.adapter={adapter}", status=2).err
        assert "encoder.fingerprint: " in refused
    write_adapter(tmp_path / "adapter", MODULES, lora_alpha=7)
    assert "what it was made with has changed:" in workplace.verify(status=2).err


def test_embedding_in_a_program(tmp_path, settings):
    adapted = layerbeam.encode(["a river"], encoder=settings, views=VIEWS)["texts"]["layer_3"]
    plain = layerbeam.encode(["a river"], encoder=settings["handle"], views=VIEWS)["texts"]["layer_3"]
    assert np.abs(adapted - plain).max() > 0.01
    write_adapter(tmp_path / "adapter", MODULES, lora_alpha=40)
    again = layerbeam.encode(["a river"], encoder=settings, views=VIEWS)["texts"]["layer_3"]
    assert np.abs(adapted - again).max() > 0.01


def test_refused(workplace, settings):
    workplace.prepare("a\n", encoder=settings | {"adapter": "nowhere"}, views=VIEWS)
    assert "layerbeam: encoder.adapter: nowhere: there is no such folder" in workplace.drive(status=2).err


def test_an_address_is_fetched_only_if_trusted(workplace, settings):
    workplace.finished("a river\n", encoder=settings, views=VIEWS)
    manifest = workplace.folder / "out" / "manifest.json"
    content = json.loads(manifest.read_text())
    content["settings"]["encoder"]["adapter"] = "hf://somebody/adapter"
    manifest.write_text(json.dumps(content))
    assert "this would fetch the encoder from hf://somebody/adapter" in workplace.verify(status=2).err


def test_the_command(workplace, settings):
    adapter = settings["adapter"]
    out = workplace.encoder(settings["handle"], "--adapter", adapter).out
    assert re.search(rf"^adapter +{adapter}: LoRA of 6 products$", out, re.MULTILINE)
    described = json.loads(workplace.encoder("--json", settings["handle"], "--adapter", adapter).out)
    assert (described["adapter"], described["adapted_products"]) == (adapter, 6)


def test_jinas_own_adapters(workplace, tmp_path):
    folders = write_jina(tmp_path / "jina")
    own = str(folders["own"])
    out = workplace.encoder(own, "--adapter", TASKS[1]).out
    assert re.search(r"^adapters +retrieval\.query, retrieval\.passage, text-matching \(", out, re.MULTILINE)
    assert re.search(r"^adapter +retrieval\.passage: LoRA of 19 products$", out, re.MULTILINE)
    workplace.finished("a river bank\nthe river\n", encoder={"handle": own, "adapter": TASKS[1]}, views=VIEWS)
    assert "pass" in workplace.verify().out
    vectors = layerbeam.open_run(str(workplace.folder / "out"))["texts"].to_numpy("layer_3")
    for name, is_same in {"none": False, TASKS[0]: False, TASKS[1]: True}.items():
        merged = layerbeam.encode(["a river bank", "the river"], encoder=str(folders[name]), views=VIEWS)["texts"]
        assert np.allclose(vectors, np.stack(merged["layer_3"]), atol=OF_TWO) == is_same
