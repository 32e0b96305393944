"""`layerbeam verify --checksums`: every byte against its hash; the next run rewrites what differs."""

from __future__ import annotations

import json
import os

import pytest
from corpora import random_lines

VIEWS = {
    "tokens": {"level": "token", "layers": [-1]},
    "texts": {"level": "text", "layers": [0], "format": "jsonl"},
    "types": {"level": "word_type", "layers": [1]},
}


@pytest.fixture
def workplace(workplace):
    text = "\n".join([*random_lines(60), "\ud800"]).encode("utf-8", "surrogatepass")
    workplace.finished({"a.txt": text}, views=VIEWS, input={"slice_bytes": 700, "max_reject_rate": 1.0})
    return workplace


def test_untouched_files_pass(workplace):
    done = workplace.verify("--checksums")
    first, last = done.out.splitlines()
    assert first.startswith("out: ")
    assert "each byte against the SHA-256 that was recorded when it was written" in first
    assert last == "pass"
    counted = json.loads(workplace.verify("--checksums", "--json").out)
    parts = [path for path in (workplace.folder / "out").rglob("*") if path.parent.name in {*VIEWS, "rejects"}]
    assert counted["result"] == "pass"
    assert counted["files"] == len(parts) > 10


@pytest.mark.parametrize("folder", ["tokens", "texts", "types", "_word_types/types", "rejects"])
def test_a_flipped_bit_is_found_and_rewritten(workplace, folder):
    files = workplace.files()
    path = min((workplace.folder / "out" / folder).iterdir())
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    name = str(path.relative_to(workplace.folder / "out"))
    assert "nothing to do" in workplace.drive().err  # sizes do not tell
    done = workplace.verify("--checksums", status=1)
    assert f"FAIL      {name} has changed since it was written: its SHA-256 differs" in done.out
    assert "the next run will rewrite 1 file" in done.out
    assert "nothing to do" not in workplace.drive().err
    assert workplace.files() == files
    assert workplace.verify("--checksums").out.endswith("pass\n")
    assert "nothing to do" in workplace.drive().err


def test_a_folder_that_was_restored_is_not_rewritten(workplace):
    files = workplace.files()
    path = min((workplace.folder / "out/tokens").iterdir())
    sound = path.read_bytes()
    path.write_bytes(bytes(len(sound)))
    workplace.verify("--checksums", status=1)
    assert json.loads((workplace.folder / "out/_damaged.json").read_text()) == [f"tokens/{path.name}"]
    path.write_bytes(sound)
    assert workplace.verify("--checksums").out.endswith("pass\n")
    assert workplace.files() == files  # nor is there a list of damaged files
    assert "nothing to do" in workplace.drive().err


def test_a_folder_named_like_a_part_is_none(workplace):
    os.mkdir("out/tokens/b-0123456789abcdef-000000000000-0123456789abcdef.parquet")
    assert "nothing to do" in workplace.drive().err
    assert workplace.verify("--checksums").out.endswith("pass\n")
    workplace.write("corpus/c.txt", "one more file\n")
    workplace.drive()
    assert workplace.verify("--checksums").out.endswith("pass\n")
    assert os.path.isdir("out/tokens/b-0123456789abcdef-000000000000-0123456789abcdef.parquet")


def test_a_damaged_part_of_a_missing_file_is_reported_until_it_is_pruned(workplace):
    workplace.write("corpus/b.txt", "\n".join(random_lines(20, seed=3)))
    workplace.drive()
    part = next((workplace.folder / "out/tokens").glob("b-*"))
    os.unlink("corpus/b.txt")
    part.unlink()
    for _ in range(2):
        done = workplace.drive("--set", "input.max_missing=0", status=3)
        assert "problem   corpus/b.txt: is missing, and so are rows of it, whose part is damaged" in done.out
    workplace.drive("--prune-missing")
    assert workplace.manifest()["complete"]
    assert "nothing to do" in workplace.drive().err


def test_what_is_missing_short_longer_or_not_listed_is_found(workplace):
    tokens = sorted((workplace.folder / "out/tokens").iterdir())
    files = workplace.files()
    tokens[0].unlink()
    tokens[1].write_bytes(tokens[1].read_bytes()[:-1])
    (workplace.folder / "out/tokens/copy.parquet").write_bytes(tokens[2].read_bytes())
    size = tokens[3].stat().st_size
    tokens[3].write_bytes(tokens[3].read_bytes() + b"\n")
    out = workplace.verify("--checksums", status=1).out
    assert f"FAIL      tokens/{tokens[0].name} is missing" in out
    assert f"FAIL      tokens/{tokens[1].name} has " in out
    assert f"FAIL      tokens/{tokens[3].name} has {size + 1:,} bytes, not {size:,}" in out
    assert "FAIL      tokens/copy.parquet is there and not listed in parts.jsonl" in out
    os.unlink("out/tokens/copy.parquet")
    workplace.drive()
    assert workplace.files() == files


def test_a_changed_manifest_is_found(workplace):
    manifest = workplace.manifest()
    manifest["views"]["tokens"]["rows"] += 1
    manifest["counts"]["embedded"] += 1
    workplace.write("out/manifest.json", json.dumps(manifest))
    out = workplace.verify("--checksums", status=1).out
    assert "FAIL      tokens: parts.jsonl lists " in out
    assert "FAIL      embedded: " in out


@pytest.mark.parametrize("manifest", [{}, {"views": []}, {"views": {"tokens": {"level": "token"}}}])
def test_an_invalid_manifest_is_refused_and_rewritten(workplace, manifest):
    files = workplace.files()
    whole = workplace.manifest() if manifest else {}
    workplace.write("out/manifest.json", json.dumps(whole | manifest))
    for more in ((), ("--checksums",)):
        err = workplace.verify(*more, status=2).err
        assert "out: manifest.json is not a manifest of layerbeam: it has no " in err
    workplace.drive()
    assert workplace.files() == files


def test_an_unfinished_run_cannot_be_verified(workplace):
    os.unlink("out/_SUCCESS")
    assert "a later run has begun here and not ended" in workplace.verify("--checksums", status=2).err


def test_the_next_run_rewrites_what_is_missing_or_short(workplace):
    files = workplace.files()
    os.unlink("out/types/word_types.parquet")
    missing, short = sorted((workplace.folder / "out/tokens").iterdir())[1:3]
    missing.unlink()
    short.write_bytes(short.read_bytes()[:-1])
    workplace.drive()
    assert workplace.files() == files
