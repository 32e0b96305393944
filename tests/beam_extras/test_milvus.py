"""The program of docs/in_beam.md that fills Milvus, with a server of milvus-lite. `make test-beam-extras`."""

from __future__ import annotations

import re
import subprocess
import sys

import numpy as np
import pytest
from float_bounds import OF_TWO
from ports import free_port, wait_until_open
from pymilvus import MilvusClient
from repository import ROOT

import layerbeam

PAGE = (ROOT / "docs/in_beam.md").read_text()
(PROGRAM,) = re.findall(r"^```python\n# Milvus\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
REVIEWS = ["The river bank is quiet.", "The bank charged me twice.", "Loud, dirty, far from the water."]


@pytest.fixture
def port(tmp_path):
    port = free_port()
    command = [sys.executable, "-m", "milvus_lite", "server", "--data-dir", str(tmp_path / "data"), "--port", str(port)]
    log = tmp_path / "server.log"
    with open(log, "wb") as file, subprocess.Popen(command, stdout=file, stderr=subprocess.STDOUT) as server:
        wait_until_open(port, server, log)
        yield port
        server.terminate()


def test_the_collection_has_the_vectors(port, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    exec(PROGRAM.replace("19530", str(port)), {"__name__": "page"})
    assert capsys.readouterr().out.splitlines()[-1] == "The bank charged me twice."
    client = MilvusClient(f"http://localhost:{port}")
    rows = client.query("reviews", filter='id != ""', output_fields=["id", "content", "embedding"], limit=10)
    rows.sort(key=lambda row: row["id"])
    assert [(row["id"], row["content"]) for row in rows] == [(str(n), text) for n, text in enumerate(REVIEWS)]
    np.testing.assert_allclose([row["embedding"] for row in rows], layerbeam.encode(REVIEWS), rtol=0, atol=OF_TWO)
