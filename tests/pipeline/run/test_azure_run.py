"""Runs with paths on az://, through obstore, against Azurite on a loopback address."""

from __future__ import annotations

import json

import pytest
from corpora import random_lines
from repository import DATA
from workplace import SMALL_BLOCKS

import layerbeam
from layerbeam.transforms import storage


def put(path: str, data: bytes) -> None:
    with storage.write_atomically(path) as file:
        file.write(data)


def tree(folder: str) -> dict[str, bytes]:
    """The files of a folder without the records of single runs, which contain times."""
    names = sorted(name for name in storage.list_tree(folder) if not name.startswith("_runs/"))
    return {name: storage.read_bytes(f"{folder}/{name}") for name in names}


@pytest.fixture
def lines(workplace, azure) -> list[str]:
    """A corpus, local and under az://out/in, that gives several blocks; one line is invalid."""
    lines = random_lines(120)
    data = "\n".join(lines).encode() + b"\n\xff\n"
    workplace.write("corpus/a.txt", data)
    put("az://out/in/a.txt", data)
    workplace.configure(**SMALL_BLOCKS)
    return lines


def test_run_on_az_writes_files_of_local_run(workplace, lines):
    workplace.drive()
    local = {name: (workplace.folder / "out" / name).read_bytes() for name in workplace.files()}
    workplace.run("--output", "az://out/v")
    written = tree("az://out/v")
    assert written == local
    parts = sorted(name for name in written if name.startswith("tokens/"))
    assert len(parts) > 5
    assert "nothing to do" in workplace.drive("--output", "az://out/v").err

    version = {name: storage.stat_file(f"az://out/v/{name}").version for name in parts}
    storage.delete_files("az://out/v", parts[:1])
    workplace.drive("--output", "az://out/v")
    assert tree("az://out/v") == local
    assert {name: storage.stat_file(f"az://out/v/{name}").version for name in parts[1:]} == {
        name: version[name] for name in parts[1:]
    }

    here, there = layerbeam.open_run("out")["tokens"], layerbeam.open_run("az://out/v")["tokens"]
    assert there.to_arrow().equals(here.to_arrow())
    assert there.dataset().to_table().equals(here.to_arrow())
    assert there.dataset().count_rows() == here.num_rows > 1000
    workplace._call("verify", "az://out/v", "--checksums", status=0)


def test_input_and_encoder_on_az(workplace, lines):
    for path in (DATA / "hf_uncased").iterdir():
        put(f"az://out/encoder/{path.name}", path.read_bytes())
    workplace.drive()
    workplace.drive(
        "--input", "az://out/i*/*.txt", "--output", "az://out/v", "--set", "encoder.handle=az://out/encoder"
    )
    here, there = workplace.rows(), layerbeam.open_run("az://out/v")["tokens"].to_arrow()
    there = there.sort_by([(name, "ascending") for name in ("file", "line", "token_index")])
    assert there["file"].unique().to_pylist() == ["az://out/in/a.txt"]
    assert there.drop_columns("file").equals(here.drop_columns("file"))


def test_second_run_in_same_folder_is_refused(workplace, lines):
    elsewhere = {"run": 1, "state": "started", "owner": {"host": "another machine", "pid": 1, "token": "x"}}
    put("az://out/v/_runs/1.json", json.dumps(elsewhere).encode())
    done = workplace.run("--output", "az://out/v", status=4)
    assert done.err.startswith("layerbeam: az://out/v: another run is active in this folder, on another machine")


def test_missing_container_or_credentials(workplace, lines, monkeypatch):
    done = workplace.run("--output", "az://nowhere/v", status=2)
    assert "cannot write to az://nowhere/v: The specified container does not exist" in done.err
    monkeypatch.delenv("AZURE_STORAGE_USE_EMULATOR")
    done = workplace.run("--output", "az://out/v", status=2)
    assert "az://out/v: az:// cannot be opened here: the storage account is not given; name it in" in done.err
