"""docs/tables.md: a view as a Delta and an Iceberg table shows the rows of the last run."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest
from corpora import random_lines
from repository import ROOT
from workplace import Workplace

import layerbeam

PAGE = (ROOT / "docs/tables.md").read_text()
PROGRAMS = dict(re.findall(r"^```python\n# (delta|iceberg)_table\.py\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL))


def register(name: str, workplace: Workplace) -> None:
    program = PROGRAMS[name].replace("out/nightly", "out")
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, cwd=workplace.folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def rows_of_delta() -> list[dict[str, object]]:
    from deltalake import DeltaTable

    return DeltaTable("out/sentences").to_pyarrow_dataset().to_table().to_pylist()


def rows_of_iceberg() -> list[dict[str, object]]:
    from pyiceberg.catalog.sql import SqlCatalog

    table = SqlCatalog("local", uri="sqlite:///catalog.db").load_table("nightly.sentences")
    return table.scan().to_arrow().to_pylist()


# PyIceberg leaves SQLite's connection to the garbage collection.
@pytest.mark.filterwarnings("ignore:unclosed database:ResourceWarning")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_tables_show_the_last_run(workplace: Workplace, monkeypatch):
    for package in ("deltalake", "pyiceberg"):
        pytest.importorskip(package, reason=f"{package} is not installed: make test-readers")
    monkeypatch.chdir(workplace.folder)
    lines, stray = random_lines(100), workplace.folder / "out/sentences/stray.parquet"
    workplace.configure(views={"sentences": {"level": "text", "layers": [-1]}}, input={"slice_bytes": 1000})

    def in_order(rows: list[dict[str, object]]) -> list[dict[str, object]]:
        return sorted(rows, key=lambda row: row["line"])

    for text in (lines[:60], lines[20:]):
        workplace.write("corpus/a.txt", "\n".join(text))
        workplace.drive()
        register("delta", workplace)
        register("iceberg", workplace)
        stray.write_bytes(b"no part")
        view = layerbeam.open_run("out")["sentences"]
        assert len(view.parts) > 1
        expected = in_order(view.to_arrow().to_pylist())
        assert in_order(rows_of_delta()) == expected
        assert in_order(rows_of_iceberg()) == expected
    register("delta", workplace)  # the same run again
    stray.unlink()
    assert "nothing to do" in workplace.drive().err
    workplace.verify("--checksums")
    assert in_order(rows_of_delta()) == expected
