"""pytorch_model.bin: tensors as PyTorch saves them, and files that would run code, lie about sizes or are damaged."""

from __future__ import annotations

import contextlib
import os
import resource
import shutil
import struct
import zipfile
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pytorch_files import ORDERED_DICT, REBUILD, mapping, save, save_legacy, storage, tensor, value, write
from repository import DATA
from safetensors.numpy import load_file, save_file

from layerbeam.transforms.encoders import EncoderError, load_weights, open_encoder
from layerbeam.transforms.encoders.formats.pytorch_bin import PickledWeights
from layerbeam.transforms.encoders.formats.safetensors_file import SafetensorsFile

FOUR = np.arange(4, dtype="<f4").tobytes()
STORED = storage("FloatStorage", "0", 4)


def tensors_in(path: Path) -> dict[str, np.ndarray]:
    weights = PickledWeights("e", str(path))
    return {name: weights.read(name) for name in weights.tensors()}


def refused(path: Path) -> str:
    with pytest.raises(EncoderError) as error:
        tensors_in(path)
    message = str(error.value)
    assert message.startswith(f"e: {path}")
    return message


def test_what_pytorch_saves():
    weights = PickledWeights("e", str(DATA / "pytorch_tensors.bin"))
    types = {name: (found.dtype, found.shape) for name, found in weights.tensors().items()}
    whole = np.arange(24).reshape(4, 6)
    expected = {
        "a": ("F32", whole),
        "transposed": ("F32", whole.T),
        "part": ("F32", np.arange(10, 16).reshape(2, 3)),
        "half": ("F16", np.array([1.5, -2])),
        "bf": ("BF16", np.array([[1, 3.140625]])),
        "ids": ("I64", np.arange(4)),
        "scalar": ("F32", np.array(7)),
        "empty": ("F32", np.zeros((0, 3))),
        "param": ("F32", np.ones(2)),
        "tied": ("F32", whole),
        "double": ("F64", np.array([0.1])),
    }
    assert types == {name: (dtype, values.shape) for name, (dtype, values) in expected.items()}
    for name, (_, values) in expected.items():
        found = weights.read(name)
        assert found.dtype == np.float32
        np.testing.assert_array_equal(found, values.astype(np.float32))


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_same_weights_as_safetensors(tmp_path, dtype):
    given = load_file(DATA / "hf_uncased/model.safetensors")
    rounded = {name: array.astype(dtype) for name, array in given.items()}
    for name in ("whole", "shards"):
        folder = tmp_path / name
        shutil.copytree(DATA / "hf_uncased", folder, ignore=shutil.ignore_patterns("*.safetensors"))
    save(tmp_path / "whole/pytorch_model.bin", rounded)
    parts = {f"pytorch_model-0000{part}-of-00002.bin": sorted(given)[part - 1 :: 2] for part in (1, 2)}
    for shard, names in parts.items():
        save(tmp_path / "shards" / shard, {name: rounded[name] for name in names})
    files = {name: shard for shard, names in parts.items() for name in names}
    index = str({"weight_map": files}).replace("'", '"')
    (tmp_path / "shards/pytorch_model.bin.index.json").write_text(index)
    shutil.copytree(tmp_path / "whole", tmp_path / "safe", ignore=shutil.ignore_patterns("*.bin"))
    save_file(rounded, tmp_path / "safe/model.safetensors")
    sources = {name: open_encoder(str(tmp_path / name)) for name in ("whole", "shards", "safe")}
    assert len({source.fingerprint for source in sources.values()}) == 1
    expected = load_weights(open_encoder(str(DATA / "hf_uncased")))
    for name in ("whole", "shards"):
        found = load_weights(sources[name])
        assert found.keys() == expected.keys()
        for weight in found:
            np.testing.assert_array_equal(found[weight], expected[weight].astype(dtype).astype(np.float32))


def test_one_other_number_is_another_fingerprint(tmp_path):
    weights = load_file(DATA / "hf_uncased/model.safetensors")
    folder = Path(shutil.copytree(DATA / "hf_uncased", tmp_path / "other"))
    save_file(weights | {"not.of.the.encoder": np.ones(1, np.float32)}, folder / "model.safetensors")
    assert open_encoder(str(folder)).fingerprint == open_encoder(str(DATA / "hf_uncased")).fingerprint
    name = next(name for name in weights if name.endswith("layer.1.output.dense.bias"))
    weights[name][0] = np.nextafter(weights[name][0], np.float32(9))
    save_file(weights, folder / "model.safetensors")
    assert open_encoder(str(folder)).fingerprint != open_encoder(str(DATA / "hf_uncased")).fingerprint


def test_safetensors_are_preferred(tmp_path):
    folder = Path(shutil.copytree(DATA / "hf_uncased", tmp_path / "both"))
    (folder / "pytorch_model.bin").write_bytes(b"nothing")
    assert open_encoder(str(folder)).fingerprint == open_encoder(str(DATA / "hf_uncased")).fingerprint


def test_views_of_one_storage(tmp_path):
    views = {
        "all": (0, (4,), (1,)),
        "turned": (0, (2, 2), (1, 2)),
        "same": (3, (3, 1), (0, 0)),
        "tail": (2, (2,), (1,)),
    }
    pickled = mapping({name: tensor(STORED, *view) for name, view in views.items()})
    found = tensors_in(write(tmp_path / "m.bin", pickled, {"0": FOUR}))
    assert {name: values.tolist() for name, values in found.items()} == {
        "all": [0, 1, 2, 3],
        "turned": [[0, 2], [1, 3]],
        "same": [[3], [3], [3]],
        "tail": [2, 3],
    }


def test_the_other_byte_order(tmp_path):
    values = np.array([1.5, -3], ml_dtypes.bfloat16).view("<u2")
    pickled = mapping({"x": tensor(storage("BFloat16Storage", "0", 2), 0, (2,), (1,))})
    path = write(tmp_path / "m.bin", pickled, {"0": values.astype(">u2").tobytes()}, order="big")
    assert tensors_in(path)["x"].tolist() == [1.5, -3]


TOUCH = value("touch opened")
CALLS = {
    "reduce": b"cos\nsystem\n(" + TOUCH + b"tR",
    "stack global": value("os") + value("system") + b"\x93(" + TOUCH + b"tR",
    "inst": b"(" + TOUCH + b"ios\nsystem\n",
    "obj": b"(cos\nsystem\n" + TOUCH + b"o",
    "new": b"csubprocess\nPopen\n(" + TOUCH + b"t\x81",
    "eval": b"c__builtin__\neval\n(" + value("open('opened', 'w')") + b"tR",
    "getattr": b"cbuiltins\ngetattr\n(" + ORDERED_DICT + value("clear") + b"tR",
    "extension": b"\x82\x01",
    "a name behind a name": b"ccollections\nOrderedDict.fromkeys\n(" + TOUCH + b"tR",
    "another of PyTorch": b"ctorch._utils\n_rebuild_tensor\n)R",
    "a module": b"ctorch.nn.modules.linear\nLinear\n)\x81",
    "a storage that is called": b"ctorch\nFloatStorage\n)R",
    "state of a function": REBUILD + b"}" + value("__call__") + REBUILD + b"sb",
    "attributes of a function": REBUILD + b"N}" + value("__doc__") + TOUCH + b"s\x86b",
    "state of a class": b"ccollections\nOrderedDict\nN}" + value("keys") + REBUILD + b"s\x86b",
    "an id that is text": b"P('storage')\n",
    "an id that is no storage": value(("module", "a", "b", "c", 1)) + b"Q",
    "a storage of another type": storage("ComplexFloatStorage", "0", 4),
    "a type that cannot be a key": value(("storage", value(((),)) + b"\x85", "0", "cpu", 4)) + b"Q",
}


@pytest.mark.parametrize("name", CALLS)
def test_nothing_is_called(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    path = write(tmp_path / "m.bin", mapping({"x": CALLS[name]}), {"0": FOUR})
    message = refused(path)
    assert f"{path} is not opened: " in message
    compile(message.split("\n")[1], "conversion", "exec")
    assert str(tmp_path / "m.safetensors") in message
    assert os.listdir(tmp_path) == ["m.bin"]


LIES = {
    "behind the storage": tensor(STORED, 0, (5,), (1,)),
    "an offset": tensor(STORED, 1, (4,), (1,)),
    "a stride": tensor(STORED, 0, (2, 2), (3, 1)),
    "negative": tensor(STORED, -1, (2,), (1,)),
    "a negative size": tensor(STORED, 0, (-1,), (1,)),
    "a negative stride": tensor(STORED, 3, (2,), (-1,)),
    "huge": tensor(STORED, 0, (1 << 61, 1 << 61), (0, 0)),
    "too many": tensor(STORED, 0, (1 << 40,), (1,)),
    "a truth value": tensor(STORED, 0, (True,), (1,)),
    "fewer strides": tensor(STORED, 0, (2, 2), (1,)),
    "no shape": tensor(STORED, 0, value("ab"), (1,)),
    "no storage": tensor(value("storage"), 0, (1,), (1,)),
    "a storage with fewer bytes": tensor(storage("FloatStorage", "0", 5), 0, (4,), (1,)),
    "a storage with more bytes": tensor(storage("FloatStorage", "0", 3), 0, (3,), (1,)),
    "a storage that is missing": tensor(storage("FloatStorage", "1", 4), 0, (4,), (1,)),
    "a storage elsewhere": tensor(storage("FloatStorage", "../data.pkl", 4), 0, (4,), (1,)),
}


@pytest.mark.parametrize("name", LIES)
def test_wrong_sizes(tmp_path, name):
    refused(write(tmp_path / "m.bin", mapping({"x": LIES[name]}), {"0": FOUR}))


def nested(op: bytes, times: int) -> bytes:
    return b")" + op * times


BOMBS = {
    "equal tuples in tuples": b"K\x00\x85q\x00" + b"h\x00h\x00\x86q\x00" * 60,
    "deep tuples": nested(b"\x85", 5_000_000),
    "deep tuples as a name": b"}" + nested(b"\x85", 5_000_000) + b"K\x01s",
    "a name that is a number": b"}K\x01K\x01s",
    "many dimensions": tensor(STORED, 0, (1 << 61,) * 100_000, (0,) * 100_000),
    "many marks": b"(" * 10_000_000,
    "many values": b"N" * 10_000_000,
    "a long number": b"\x8b" + struct.pack("<I", 1 << 20) + b"\x7f" * (1 << 20),
    "a long text": b"\x8d" + struct.pack("<Q", 1 << 40) + b"a",
    "a place in the memo that has nothing": b"j" + struct.pack("<I", 1 << 31),
}


@pytest.mark.parametrize("name", BOMBS)
def test_what_would_take_time_or_memory(tmp_path, name):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    path = write(tmp_path / "m.bin", mapping({"x": BOMBS[name]}), {"0": FOUR})
    assert len(refused(path)) < 1000
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 500_000  # kB


def test_a_large_place_in_the_memo_takes_no_memory(tmp_path):
    put = tensor(STORED, 0, (4,), (1,)) + b"r" + struct.pack("<I", (1 << 31) - 1)
    assert list(PickledWeights("e", str(write(tmp_path / "m.bin", mapping({"x": put}), {"0": FOUR}))).tensors()) == [
        "x"
    ]


@pytest.mark.parametrize("opened", [PickledWeights, SafetensorsFile])
def test_a_pipe_is_not_waited_for(tmp_path, opened):
    os.mkfifo(tmp_path / "m.bin")
    with pytest.raises(EncoderError, match=r"m\.bin is missing"):
        opened("e", str(tmp_path / "m.bin"))


def test_other_files(tmp_path):
    path, pickled = tmp_path / "m.bin", mapping({"x": tensor(STORED, 0, (4,), (1,))})
    path.write_bytes(bytes.fromhex("80028a0a6cfc9c46f9206aa850192e"))
    assert "not a complete file of PyTorch (" in refused(path)
    path.write_bytes(b"version https://git-lfs.github.com/spec/v1\n")
    assert "not a complete file of PyTorch (it is no zip; a text of three lines is a Git LFS pointer" in refused(path)
    write(path, b"\x80\x02]." + pickled, {"0": FOUR})
    assert "its pickle has EMPTY_LIST, which PyTorch does not write for weights" in refused(path)
    write(path, b"\x80\x02N." + pickled, {"0": FOUR})
    assert "its pickle lacks a dict that weights have" in refused(path)
    write(path, pickled, {"0": FOUR}, compression=zipfile.ZIP_DEFLATED)
    assert "an entry is compressed, encrypted or there twice" in refused(path)
    with (
        pytest.warns(UserWarning, match="Duplicate name"),
        zipfile.ZipFile(write(path, pickled, {"0": FOUR}), "a") as more,
    ):
        more.writestr("archive/data/0", FOUR)
    assert "an entry is compressed, encrypted or there twice" in refused(path)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("other.txt", "text")
    assert "it has no data.pkl, or several" in refused(path)


def test_a_file_from_before_pytorch_1_6(tmp_path):
    arrays = {"x": np.float32([[1, 2], [3, 4.5]]), "y": np.float16([0.5]), "n": np.array([7, -8])}
    path = save_legacy(tmp_path / "m.bin", arrays)
    found = {name: values.tolist() for name, values in tensors_in(path).items()}
    assert found == {"x": [[1.0, 2.0], [3.0, 4.5]], "y": [0.5], "n": [7.0, -8.0]}
    whole = path.read_bytes()
    for size in range(len(whole)):
        path.write_bytes(whole[:size])
        refused(path)
    assert "its pickle names a storage that is none" in refused(save_legacy(path, arrays, view=("0", 0, 4)))
    assert "no tensor has its storage 9" in refused(save_legacy(path, arrays, keys="9"))
    path.write_bytes(whole.replace(value("little_endian") + b"\x88", value("little_endian") + b"\x89"))
    assert "it was not written on a little-endian machine" in refused(path)


@pytest.mark.parametrize("name", CALLS)
def test_nothing_is_called_in_a_file_from_before_pytorch_1_6(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    refused(save_legacy(tmp_path / "m.bin", {"x": np.float32([1])}, pickled=mapping({"x": CALLS[name]})))
    assert os.listdir(tmp_path) == ["m.bin"]


def test_entries_that_overlap(tmp_path):
    pickled = mapping({"x": tensor(STORED, 0, (4,), (1,))})
    path = write(tmp_path / "m.bin", pickled, {"0": FOUR, "1": FOUR})
    data = bytearray(path.read_bytes())
    places = [place for place in range(len(data)) if data[place : place + 4] == b"PK\x01\x02"]
    first, second = (next(p for p in places if data[p + 46 :].startswith(b"archive/data/%d" % key)) for key in (0, 1))
    data[second + 42 : second + 46] = data[first + 42 : first + 46]  # where its header is
    path.write_bytes(data)
    assert "its entries overlap or end behind the file" in refused(path)
    data[second + 42 : second + 46] = struct.pack("<I", 1 << 20)
    path.write_bytes(data)
    refused(path)


def test_bytes_that_have_changed(tmp_path):
    path = write(tmp_path / "m.bin", mapping({"x": tensor(STORED, 0, (4,), (1,))}), {"0": FOUR})
    path.write_bytes(path.read_bytes().replace(FOUR, FOUR[::-1]))
    assert "the bytes of storage 0 are not those that were written" in refused(path)


def test_every_cut_is_an_error(tmp_path):
    data = (DATA / "pytorch_tensors.bin").read_bytes()
    path = tmp_path / "m.bin"
    for end in range(0, len(data), 7):
        path.write_bytes(data[:end])
        refused(path)


@pytest.fixture(scope="module")
def scratch(tmp_path_factory):
    return tmp_path_factory.mktemp("flipped") / "m.bin"


@given(place=st.integers(0, 4258), byte=st.integers(0, 255))
@settings(max_examples=300)
def test_any_byte_may_be_wrong(scratch, place, byte):
    data = bytearray((DATA / "pytorch_tensors.bin").read_bytes())
    data[place] = byte
    scratch.write_bytes(data)
    with contextlib.suppress(EncoderError):
        tensors_in(scratch)
