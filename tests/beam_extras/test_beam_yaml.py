"""configs/beam_yaml with Beam's own YAML runner; needs what requirements.txt names. `make test-beam-extras`."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys

import numpy as np
import pyarrow.parquet as pq
import pytest
from float_bounds import OF_TWO
from repository import ROOT

import layerbeam


@pytest.fixture
def folder(tmp_path):
    shutil.copytree(ROOT / "configs/beam_yaml", tmp_path / "configs/beam_yaml")
    return tmp_path


def run(folder):
    command = [sys.executable, "-m", "apache_beam.yaml.main", "--runner=FnApiRunner"]
    command.append("--yaml_pipeline_file=configs/beam_yaml/embed_csv.yaml")
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)


def test_the_example_writes_the_vectors_of_the_column(folder):
    done = run(folder)
    assert done.returncode == 0, done.stderr
    written = pq.read_table(next((folder / "out/beam_yaml").glob("reviews-*")))
    assert written.column_names == ["id", "stars", "review", "vector"]
    rows = sorted(written.to_pylist(), key=lambda row: row["id"])
    assert [(row["id"], row["stars"]) for row in rows] == [(1, 5), (2, 2), (4, 1)]
    expected = layerbeam.encode([row["review"] for row in rows])
    np.testing.assert_allclose([row["vector"] for row in rows], expected, rtol=0, atol=OF_TWO)
    rejected = next((folder / "out/beam_yaml").glob("rejected-*")).read_text()
    assert json.loads(rejected) == {"element": [3, 4, None], "msg": "the text is null"}


def test_a_wrong_column_is_named(folder):
    example = folder / "configs/beam_yaml/embed_csv.yaml"
    example.write_text(example.read_text().replace("column: review", "column: body"))
    done = run(folder)
    assert done.returncode == 1
    assert "EmbedRows: the rows have no field body; they have id, stars, review: set `column`" in done.stderr
