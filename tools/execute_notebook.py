"""Execute docs/word_senses.ipynb in a temporary folder and compare the new outputs with the stored ones.

    python tools/execute_notebook.py [--write]

`--write` stores the new outputs instead (`make notebook`). Pictures may differ slightly: another processor's rounding
moves points by invisible amounts.
"""

from __future__ import annotations

import base64
import io
import sys
import tempfile
from pathlib import Path
from typing import Any

import matplotlib.image
import nbclient
import nbformat
import numpy as np

ROOT = Path(__file__).resolve().parents[1]
NOTEBOOK = ROOT / "docs" / "word_senses.ipynb"


def execute(notebook: nbformat.NotebookNode) -> nbformat.NotebookNode:
    """A copy of the notebook with new outputs, without times and standard error."""
    new = nbformat.from_dict(notebook)
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "configs").symlink_to(ROOT / "configs")
        # A busy machine cuts a cell's prints into several outputs.
        resources = {"metadata": {"path": folder}}
        client = nbclient.NotebookClient(new, timeout=300, coalesce_streams=True, resources=resources)
        client.execute()
        for cell in new.cells:
            cell.metadata.pop("execution", None)
            if cell.cell_type == "code":
                cell.outputs = [output for output in cell.outputs if output.get("name") != "stderr"]
    new.metadata = {"language_info": {"name": "python"}}
    return new


def texts(notebook: Any) -> list[str]:
    return [
        output.get("text") or output.data["text/plain"] for cell in notebook.cells for output in cell.get("outputs", ())
    ]


def pictures(notebook: Any) -> list[np.ndarray]:
    return [
        matplotlib.image.imread(io.BytesIO(base64.b64decode(output.data["image/png"])))
        for cell in notebook.cells
        for output in cell.get("outputs", ())
        if "image/png" in output.get("data", {})
    ]


def main() -> int:
    there = nbformat.read(NOTEBOOK, as_version=4)
    new = execute(there)
    if sys.argv[1:] == ["--write"]:
        nbformat.write(new, NOTEBOOK)
        return 0
    old_pictures, new_pictures = pictures(there), pictures(new)
    same = texts(there) == texts(new) and [old.shape for old in old_pictures] == [new.shape for new in new_pictures]
    if not same or any(np.abs(old - new).mean() > 0.01 for old, new in zip(old_pictures, new_pictures, strict=True)):
        print(f"{NOTEBOOK.name}: the outputs have changed; check them, then run: make notebook", file=sys.stderr)
        print("\n".join(texts(new)), file=sys.stderr)
        return 1
    print(f"{NOTEBOOK.name}: {len(texts(new))} outputs, {len(new_pictures)} pictures, as in it")
    return 0


if __name__ == "__main__":
    sys.exit(main())
