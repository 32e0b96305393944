"""Compares the outputs of two versions of layerbeam byte by byte.

    python tools/compare_outputs.py OLD NEW [--rename old=new ...]

OLD and NEW are the `layerbeam` commands of two environments. Each runs the same configurations. --rename old=new names
a setting that was renamed between the two. All files must be equal, except for the fingerprint, which includes the
names of settings, and the hashes of files that contain the fingerprint (a Parquet file's footer).
"""

from __future__ import annotations

import argparse
import io
import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import yaml

ROOT = Path(__file__).resolve().parents[1]
DATA = ROOT / "tests" / "data"
LINES = [
    {"text": "The bank of the river was steep.", "year": 1901, "key": "a"},
    {"text": "She went to the bank. He waited at the bank!", "year": 1902, "key": "b"},
    {"text": "", "year": 1902, "key": "c"},
    {"text": 7, "year": 1903, "key": "d"},
    {"text": "Caf\u00e9 na\u00efve \u65e5\u672c " * 12, "year": None, "key": "a"},
]
RECORDS = {
    "input": {
        "files": ["records.jsonl"],
        "format": "jsonl",
        "unit": "sentence",
        "id_field": "key",
        "keep_fields": {"year": "int64"},
        "max_reject_rate": 1.0,
    },
    "encoder": {"handle": str(DATA / "hf_uncased"), "max_seq_length": 24},
}
CONFIGURATIONS: dict[str, dict[str, Any]] = {
    "demo": yaml.safe_load((ROOT / "configs" / "demo.yaml").read_text()),
    "records": RECORDS
    | {
        "views": {
            "tokens": {"level": "token", "layers": [-1, 0], "combine": "sum", "truncate_dim": 10, "include_text": True},
            "words": {"level": "word", "layers": "all", "pooling": "max", "dtype": "float16"},
            "texts": {"level": "text", "layers": [-2], "pooling": "mean_max", "normalize": True},
            "records": {"level": "record", "layers": [2]},
            "types": {"level": "word_type", "layers": [1, 3], "group_by": ["year"]},
        }
    },
    "formats": RECORDS
    | {
        "views": {
            "records_of_tensorflow": {"level": "token", "layers": [3, 1], "format": "tfrecord"},
            "features": {"level": "token", "layers": [-1], "format": "jsonl", "layer_numbering": "extract_features"},
            "rows": {"level": "word", "layers": [0], "format": "jsonl", "compress": False},
            "types": {"level": "word_type", "layers": [2], "format": "jsonl", "min_count": 2},
        }
    },
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("old")
    parser.add_argument("new")
    parser.add_argument("--rename", metavar="OLD=NEW", action="append", default=[])
    options = parser.parse_args()
    new_to_old = dict(reversed(pair.split("=")) for pair in options.rename)
    with tempfile.TemporaryDirectory() as folder:
        outputs = []
        for name, command, names in (("old", options.old, new_to_old), ("new", options.new, {})):
            # Both run in a folder of the same name: the names of parts hold a hash of the input's path.
            run_all(command, Path(folder) / "run", names)
            outputs.append((Path(folder) / "run").rename(Path(folder) / name) / "out")
        differences = list(compare(*outputs, {old: new for new, old in new_to_old.items()}))
        files = sum(path.is_file() for path in outputs[1].rglob("*"))
    print("\n".join(differences) or f"{files} files are equal")
    return 1 if differences else 0


def run_all(command: str, folder: Path, names: dict[str, str]) -> Path:
    """Run all configurations; returns the folder with their outputs. `names`: old and new names of renamed settings."""
    (folder / "texts").mkdir(parents=True)
    (folder / "configs").symlink_to(ROOT / "configs")
    (folder / "records.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in LINES))
    (folder / "texts" / "one.txt").write_text((DATA / "input.txt").read_text())
    for path in (folder / "records.jsonl", folder / "texts" / "one.txt"):
        os.utime(path, (0, 0))  # times of input files are part of the manifest
    for name, configuration in CONFIGURATIONS.items():
        path = folder / f"{name}.yaml"
        path.write_text(yaml.safe_dump(renamed(configuration | {"output": {"path": f"out/{name}"}}, names)))
        subprocess.run([command, "run", path.name], cwd=folder, check=True, capture_output=True)  # noqa: S603 - chosen by the caller
    features = ["texts", "out/features", "-1,-2,-3", str(DATA / "google_uncased"), "32", "4"]
    subprocess.run([command, "extract-features", *features], cwd=folder, check=True, capture_output=True)  # noqa: S603


def compare(old: Path, new: Path, names: dict[str, str]) -> Any:
    """One line for each difference."""
    paths = {
        folder: {
            str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file() and "_runs" not in path.parts
        }
        for folder in (old, new)
    }
    yield from (f"{path}: only in one output" for path in sorted(paths[old] ^ paths[new]))
    for path in sorted(paths[old] & paths[new]):
        if plain(old / path, names) != plain(new / path, {}):
            yield f"{path}: differs"


def plain(path: Path, names: dict[str, str]) -> Any:
    """The comparable content of a file: without fingerprints, hashes of Parquet files and versions."""
    data = path.read_bytes()
    if path.suffix == ".parquet":
        footer = int.from_bytes(data[-8:-4], "little")
        file = pq.ParquetFile(io.BytesIO(data))
        metadata = dict(file.schema_arrow.metadata)
        metadata.pop(b"layerbeam.fingerprint", None)  # of older versions
        groups = [file.metadata.row_group(index).to_dict() for index in range(file.num_row_groups)]
        return data[: -8 - footer], len(data), file.schema_arrow, metadata, groups
    if path.name == "manifest.json":
        manifest = renamed(json.loads(data), names)
        del manifest["versions"], manifest["fingerprint"]
        return json.dumps(hashless(manifest), sort_keys=True)
    if path.name == "parts.jsonl":
        return [hashless(json.loads(line) | {"fingerprint": ""}) for line in data.splitlines()]
    return data


def hashless(value: Any) -> Any:
    """The value without the hashes of Parquet files."""
    if isinstance(value, list):
        return [hashless(item) for item in value]
    if not isinstance(value, dict):
        return value
    is_parquet = re.search(r"\.parquet$", str(value.get("path", "")))
    return {key: hashless(item) for key, item in value.items() if not (is_parquet and key == "sha256")}


def renamed(value: Any, names: dict[str, str]) -> Any:
    """The value with renamed mapping keys."""
    if isinstance(value, list):
        return [renamed(item, names) for item in value]
    if not isinstance(value, dict):
        return value
    return {names.get(key, key): renamed(item, names) for key, item in value.items()}


if __name__ == "__main__":
    sys.exit(main())
