"""`View.batches` and `View.to_torch`: each row once per epoch, in an order that can be repeated and resumed."""

from __future__ import annotations

import dataclasses
import json
import pickle
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from object_store import upload
from vector_tables import random_vectors, written

import layerbeam
from layerbeam.pipeline.dataset.view import View as ReadView
from layerbeam.transforms.parts import parquet

SIZES = (30, 1, 0, 44, 25)
VECTORS = random_vectors(1, sum(SIZES))
ROW_GROUP = 11  # rows


@pytest.fixture(scope="module")
def view(tmp_path_factory: pytest.TempPathFactory) -> ReadView:
    """100 rows in five parts, with row groups of up to 11 rows. `line` is the number of a row."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(parquet, "ROW_GROUP_BYTES", ROW_GROUP * 2 * 12 * 4)
        return written(tmp_path_factory.mktemp("batches") / "out", SIZES)


def lines(batches: Iterable[dict[str, np.ndarray]]) -> list[list[int]]:
    return [batch["line"].tolist() for batch in batches]


def of(view: ReadView, batch_size: int = 7, **settings: Any) -> Any:
    given = {"layer": 2, "columns": ["line"], "buffer_rows": 30}
    return view.batches(batch_size, **given | settings)


def assert_same(one: dict[str, np.ndarray], other: dict[str, np.ndarray]) -> None:
    assert list(one) == list(other)
    for name, values in one.items():
        np.testing.assert_array_equal(values, other[name], strict=True)


# --- rows ---


def test_the_case_has_several_row_groups(view):
    with view.open(view.parts[3]) as file:
        assert parquet.pq.read_metadata(file).num_row_groups == 4


@pytest.mark.parametrize("world_size", [1, 3, 7, 103])
@pytest.mark.parametrize("shuffle", [True, False])
def test_the_ranks_give_each_row_once(view, world_size, shuffle):
    ranks = [of(view, rank=rank, world_size=world_size, shuffle=shuffle) for rank in range(world_size)]
    lengths = [len(rank) for rank in ranks]
    given = [lines(rank) for rank in ranks]
    assert sorted(line for rank in given for batch in rank for line in batch) == list(range(100))
    assert [len(rank) for rank in given] == lengths
    sizes = [sum(map(len, rank)) for rank in given]
    assert max(sizes) - min(sizes) <= 1
    assert all(len(batch) == 7 for rank in given for batch in rank[:-1])


def test_rows_belong_together(view):
    for batch in of(view, columns=["line", "text", "party", "year"]):
        assert list(batch) == ["layer_2", "line", "text", "party", "year"]
        assert batch["layer_2"].dtype == np.float32
        np.testing.assert_array_equal(batch["layer_2"], VECTORS[batch["line"]])
        assert batch["text"].tolist() == [f"text {line}" for line in batch["line"]]
        assert [party is None for party in batch["party"]] == [line % 5 == 0 for line in batch["line"]]
        assert batch["year"].tolist() == [1990 + line % 7 for line in batch["line"]]


def test_several_layers_of_the_same_rows(view):
    for given in ({"layer": [2, 1]}, {"layer": 2, "columns": ["layer_1", "line"]}):
        batches = list(of(view, **given))
        assert list(batches[0]) == ["layer_2", "layer_1", "line"]
        assert lines(batches) == lines(of(view))
        for layer in (1, 2):
            alone = of(view, layer=layer)
            for batch, single in zip(batches, alone, strict=True):
                np.testing.assert_array_equal(batch[f"layer_{layer}"], single[f"layer_{layer}"])
                assert batch[f"layer_{layer}"].shape == (len(batch["line"]), 12)


def test_a_buffer_of_so_many_bytes(view):
    """A row has 12 values of 4 bytes in each layer; with two layers the same bytes hold half of the rows."""
    for layer, rows in ((2, 40), ([1, 2], 20)):
        given = of(view, layer=layer, buffer_rows=None, buffer_bytes=40 * 12 * 4)
        assert given.state()["buffer_rows"] == rows
        assert lines(given) == lines(of(view, layer=layer, buffer_rows=rows))
    assert of(view, buffer_rows=None).state()["buffer_rows"] == (1 << 30) // 48


def test_without_shuffle_the_rows_are_in_order(view):
    assert lines(of(view, 30, shuffle=False)) == [
        [*range(30)], [*range(30, 60)], [*range(60, 90)], [*range(90, 100)]
    ]  # fmt: skip


def test_a_smaller_last_batch_can_be_left_out(view):
    whole = lines(of(view))
    assert [len(batch) for batch in whole] == [7] * 14 + [2]
    assert lines(of(view, drop_last=True)) == whole[:-1]
    assert len(of(view, drop_last=True)) == 14
    assert lines(of(view, 101, drop_last=True)) == []


# --- order ---


def test_the_order_is_that_of_the_arguments(view):
    first = lines(of(view))
    for threads in (1, 2, 5):
        assert lines(of(view, threads=threads)) == first
    others = [lines(of(view, **other)) for other in ({"seed": 1}, {"epoch": 1}, {"seed": 1, "epoch": 1})]
    assert all(one != other for n, one in enumerate([first, *others]) for other in [first, *others][:n])


def test_the_order_stays_the_same_in_later_versions(view):
    assert lines(of(view))[0] == [63, 72, 67, 54, 66, 59, 31]


def test_batches_are_mixed(view):
    parts = np.repeat(np.arange(5), SIZES)
    mixed = [len(set(parts[batch].tolist())) for batch in lines(of(view, buffer_rows=50))]
    assert np.mean(mixed[:-1]) > 2
    assert max(lines(of(view, 50))[0]) - min(lines(of(view, 50))[0]) > 55, "row groups are in a random order"


@pytest.mark.parametrize("buffer_rows", [1, 10, 30, 1000])
def test_the_buffer_is_bounded(view, buffer_rows):
    batches = of(view, buffer_rows=buffer_rows)
    held = [batches.rows_held for _ in batches]
    assert max(held) < max(buffer_rows, 14) + ROW_GROUP
    assert (max(held) == 100) == (buffer_rows == 1000)
    assert batches.rows_held == 0


# --- position ---


@pytest.mark.parametrize("settings", [{}, {"shuffle": False}, {"rank": 1, "world_size": 2, "drop_last": True}])
def test_resumed_at_every_batch(view, settings):
    whole = list(of(view, 12, **settings))
    for given in range(len(whole) + 1):
        first = of(view, 12, **settings)
        for _ in range(given):
            next(first)
        state = json.loads(json.dumps(first.state()))
        rest = list(of(view, 12, **settings).resume(state))
        assert len(rest) == len(whole) - given
        for one, other in zip(rest, whole[given:], strict=True):
            assert_same(one, other)
        again = next(first, None)  # the first is not disturbed
        assert again is None if given == len(whole) else assert_same(again, whole[given]) is None


def test_a_resumed_one_can_be_saved_again(view):
    whole, batches = lines(of(view)), of(view)
    for batch in whole:
        batches = of(view).resume(batches.state())
        assert next(batches)["line"].tolist() == batch


def test_a_position_of_other_settings_or_rows(view, tmp_path):
    state = of(view).state()
    with pytest.raises(ValueError, match="state: seed was 0, and is not 3; resume with the settings"):
        of(view, seed=3).resume(state)
    with pytest.raises(ValueError, match="state: columns was "):
        of(view, columns=["line", "year"]).resume(state)
    with pytest.raises(ValueError, match="state: the rows of the view have changed"):
        of(written(tmp_path / "out", (30, 70))).resume(state)
    for given in (-1, 16, "1", None):
        with pytest.raises(ValueError, match=f"state: given is {given}; allowed: 0 to 15"):
            of(view).resume(state | {"given": given})


# --- random cases ---


def judge(sizes: list[int], rank: int, world_size: int) -> tuple[int, int]:
    """The first row of a rank in the sequence of all rows, and the row after its last."""
    total = sum(sizes)
    return total * rank // world_size, total * (rank + 1) // world_size


@pytest.mark.parametrize("case", range(12))
def test_random_cases(tmp_path, case, monkeypatch):
    random = np.random.default_rng(case)
    sizes = random.integers(0, 30, random.integers(0, 5)).tolist()
    monkeypatch.setattr(parquet, "ROW_GROUP_BYTES", int(random.integers(1, 12)) * 2 * 12 * 4)
    format_, dtype = [("parquet", "float32"), ("parquet", "int8"), ("jsonl", "float32"), ("tfrecord", "int8")][case % 4]
    view = written(tmp_path / "out", sizes, format=format_, dtype=dtype)
    world_size, size, buffer_rows = (int(random.integers(1, high)) for high in (5, 12, 60))
    vectors = view.to_numpy("layer_2") if format_ == "parquet" else VECTORS
    seen: list[int] = []
    for rank in range(world_size):
        share = {"rank": rank, "world_size": world_size, "buffer_rows": buffer_rows, "seed": case}
        first, end = judge(sizes, rank, world_size)
        in_order = [line for batch in lines(of(view, size, **share, shuffle=False)) for line in batch]
        assert in_order == list(range(first, end))
        mixed = list(of(view, size, **share))
        assert [len(batch["line"]) for batch in mixed] == [min(size, end - n) for n in range(first, end, size)]
        for batch in mixed:
            error = np.abs(batch["layer_2"] - vectors[batch["line"]])
            assert error.max() <= (0 if format_ == "parquet" else 0.02)
            seen += batch["line"].tolist()
        cut = int(random.integers(0, len(mixed) + 1))
        state = of(view, size, **share).state() | {"given": cut}
        assert lines(of(view, size, **share).resume(state)) == lines(mixed[cut:])
    assert sorted(seen) == list(range(sum(sizes)))


# --- number types, stores, errors ---


def test_number_types(tmp_path):
    half = written(tmp_path / "half", SIZES, dtype="float16")
    assert {batch["layer_2"].dtype.name for batch in of(half)} == {"float32"}
    assert {batch["layer_2"].dtype.name for batch in of(half, codes=True)} == {"float16"}
    codes = written(tmp_path / "codes", SIZES, dtype="int8")
    for stored, decoded in zip(of(codes, codes=True), of(codes), strict=True):
        assert list(stored) == ["layer_2", "layer_2_scale", "line"]
        assert (stored["layer_2"].dtype, decoded["layer_2"].dtype) == (np.int8, np.float32)
        np.testing.assert_array_equal(stored["layer_2"] * stored["layer_2_scale"][:, None], decoded["layer_2"])


def test_an_object_store(view, memory):
    upload(Path(view.path), "memory://bucket/out")
    stored = layerbeam.open_run("memory://bucket/out").view("texts")
    assert lines(of(stored)) == lines(of(view))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"batch_size": 0}, "batch_size is 0; allowed: 1 or more"),
        ({"buffer_rows": 0}, "buffer_rows is 0; allowed: 1 or more"),
        ({"seed": -1}, "seed is -1; allowed: 0 or more"),
        ({"rank": 2, "world_size": 2}, "rank is 2; allowed: 0 to 1, less than world_size"),
        ({"threads": 0}, "threads is 0; allowed: 1 or more"),
        ({"layer": None}, "layer is missing; view texts has layer_1, layer_2"),
        ({"layer": []}, "allowed: at least one layer"),
        ({"layer": [1, 3]}, "layer_3: view texts has no such vectors; it has layer_1, layer_2"),
        ({"buffer_bytes": 0}, "buffer_bytes 0; allowed"),
        ({"columns": ["lin"]}, "'lin': view texts of .* has no such column"),
    ],
)
def test_wrong_arguments(view, settings, message):
    with pytest.raises((ValueError, KeyError), match=message):
        of(view, **settings)


def test_damage(view, tmp_path):
    out = shutil.copytree(view.path, tmp_path / "out")
    copy = layerbeam.open_run(out).view("texts")
    fewer = dataclasses.replace(copy, parts=[dataclasses.replace(copy.parts[0], rows=29), *copy.parts[1:]])
    with pytest.raises(ValueError, match="has 30 rows, not 29 as listed"):
        next(of(fewer))
    Path(copy.paths[0]).unlink()
    with pytest.raises(FileNotFoundError, match="is missing; run the configuration again"):
        next(of(copy))


# --- PyTorch ---


def test_without_torch(view, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ImportError, match=r"to_torch needs PyTorch, .*: pip install torch; batches works without it"):
        view.to_torch(layer=2)


@pytest.mark.parametrize("workers", [0, 1, 2])
def test_the_workers_of_a_loader_share_the_rows(view, workers):
    data = pytest.importorskip("torch.utils.data", reason="PyTorch is not installed")
    seen: list[int] = []
    for rank in range(2):
        dataset = view.to_torch(7, layer=2, columns=["line", "text"], buffer_rows=30, rank=rank, world_size=2)
        for batch in data.DataLoader(dataset, batch_size=None, num_workers=workers):
            np.testing.assert_array_equal(batch["layer_2"].numpy(), VECTORS[batch["line"].numpy()])
            seen += batch["line"].tolist()
    assert sorted(seen) == list(range(100))
    first = lines(dataset)
    dataset.set_epoch(1)
    assert lines(dataset) != first


def test_a_dataset_of_pytorch_is_resumed_in_another_process(view):
    pytest.importorskip("torch.utils.data", reason="PyTorch is not installed")
    settings = {"layer": 2, "columns": ["line"], "buffer_rows": 30}
    whole = view.to_torch(7, **settings)
    whole.set_epoch(3)
    batches = iter(whole)
    for _ in range(5):
        next(batches)
    state = json.loads(json.dumps(whole.state_dict()))
    rest = lines(batches)
    resumed = view.to_torch(7, **settings)
    resumed.load_state_dict(state)
    assert lines(pickle.loads(pickle.dumps(resumed))) == rest
    assert lines(resumed) == rest
    assert len(lines(resumed)) == 15  # the next iteration begins at the start again


def test_workers_are_resumed_by_a_loader_that_saves_them(view):
    pytest.importorskip("torch.utils.data", reason="PyTorch is not installed")
    loaders = pytest.importorskip("torchdata.stateful_dataloader", reason="torchdata is not installed")

    def loader():
        dataset = view.to_torch(7, layer=2, columns=["line"], buffer_rows=30)
        return loaders.StatefulDataLoader(dataset, batch_size=None, num_workers=2)

    whole = loader()
    batches = iter(whole)
    for _ in range(5):
        next(batches)
    state = whole.state_dict()
    resumed = loader()
    resumed.load_state_dict(state)
    assert lines(resumed) == lines(batches)
