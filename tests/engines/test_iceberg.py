"""The program of docs/in_beam.md that fills an Iceberg table, with Beam's expansion service. `make test-iceberg`."""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from cluster import ENGINE_FILES, JARS, JAVA
from float_bounds import OF_TWO
from ports import free_port, wait_until_open
from pyiceberg.table import StaticTable
from repository import ROOT

import layerbeam

PAGE = (ROOT / "docs/in_beam.md").read_text()
(PROGRAM,) = re.findall(r"^```python\n# Iceberg\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
# By Beam's own name for it; in place of the jar that Beam would download.
SERVICE = "sdks:java:io:expansion-service:shadowJar"


@contextlib.contextmanager
def service(folder: Path) -> Iterator[str]:
    """Beam's expansion service, as a value of BEAM_SERVICE_OVERRIDES. A second pipeline on it waits for ever."""
    port, log, jars = free_port(), folder / "service.log", ENGINE_FILES / "iceberg" / JARS
    (staged,) = jars.glob("beam-sdks-java-managed-*.jar")  # one must be named; no worker needs it
    command = [*JAVA, "-cp", f"{jars}/*", "org.apache.beam.sdk.expansion.service.ExpansionService", str(port)]
    # As Beam starts its own jar: Java's steps run in the service.
    command += ["--alsoStartLoopbackWorker", f"--filesToStage={staged}"]
    with open(log, "wb") as file, subprocess.Popen(command, stdout=file, stderr=subprocess.STDOUT) as server:
        try:
            wait_until_open(port, server, log)
            yield json.dumps({SERVICE: f"localhost:{port}"})
        finally:
            server.kill()


def run_program(folder: Path) -> None:
    with service(folder) as overrides:
        environment = os.environ | {"BEAM_SERVICE_OVERRIDES": overrides}
        command = [sys.executable, "-c", PROGRAM]
        done = subprocess.run(
            command, cwd=folder, env=environment, capture_output=True, text=True, timeout=300, check=False
        )
    assert done.returncode == 0, done.stderr


def rows_of(table: Path) -> list[dict[str, object]]:
    """The rows of the table's current version, in the order of their stars."""
    version = int((table / "metadata/version-hint.text").read_text())
    found = StaticTable.from_metadata(f"{table}/metadata/v{version}.metadata.json").scan().to_arrow()
    return sorted(found.to_pylist(), key=lambda row: row["stars"])


def test_table_has_the_rows_and_their_vectors(tmp_path):
    table = tmp_path / "warehouse/shop/reviews"
    reviews = [(1, "Loud, dirty, far from the water."), (5, "The river bank is quiet.")]
    expected = layerbeam.encode([review for _, review in reviews])
    for times in (1, 2):  # a second pipeline appends
        run_program(tmp_path)
        rows = rows_of(table)
        assert [(row["stars"], row["review"]) for row in rows] == [row for row in reviews for _ in range(times)]
        vectors = [row["vector"] for row in rows]
        np.testing.assert_allclose(vectors, np.repeat(expected, times, axis=0), rtol=0, atol=OF_TWO)
