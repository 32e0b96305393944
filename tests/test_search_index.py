"""docs/search_index.md: after nights of changes an index equals one that is built from scratch."""

from __future__ import annotations

import ast
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from corpora import random_lines
from repository import ROOT
from workplace import Workplace

import layerbeam

PAGE = (ROOT / "docs/search_index.md").read_text()
PROGRAMS = dict(re.findall(r"^```python\n# (faiss|lance)_index\.py\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL))
PROGRAMS["usearch"] = PROGRAMS["faiss"]
for of_faiss, of_usearch in re.findall(r"^\| `(.*faiss.*|index\..*)` \| `(.*)` \|$", PAGE, re.MULTILINE):
    assert of_faiss in PROGRAMS["faiss"]
    PROGRAMS["usearch"] = PROGRAMS["usearch"].replace(of_faiss, of_usearch)
# The last step of each program, before which it is killed once.
LAST_STEP = {"faiss": "keys.commit()", "usearch": "keys.commit()", "lance": "seen.write_text("}
# What prints the rows that the index has.
SHOW = {
    "faiss": """
index = faiss.read_index(f"nightly-{since}.faiss")
vectors = index.index.reconstruct_n(0, index.ntotal)
for number, vector in zip(faiss.vector_to_array(index.id_map).tolist(), vectors.tolist()):
    place = keys.execute("SELECT file, line, sentence FROM rows WHERE id = ?", (number,)).fetchone()
    print(repr((*place, *vector)))
assert keys.execute("SELECT COUNT(*) FROM rows").fetchone() == (index.ntotal,)
""",
    "usearch": """
index = Index.restore(f"nightly-{since}.usearch")
for number in map(int, index.keys):
    place = keys.execute("SELECT file, line, sentence FROM rows WHERE id = ?", (number,)).fetchone()
    print(repr((*place, *index.get(number).tolist())))
assert keys.execute("SELECT COUNT(*) FROM rows").fetchone() == (len(index),)
""",
    "lance": """
for row in table.to_arrow().to_pylist():
    print(repr((row["file"], row["line"], row["sentence"], *row["layer_3"])))
""",
}


def run_program(
    name: str, folder: Path, *, is_killed: bool = False, show: str = ""
) -> subprocess.CompletedProcess[str]:
    program = PROGRAMS[name].replace("out/nightly", "out").replace("layer_6", "layer_3").replace("sys.exit()", "pass")
    if is_killed:
        program = program.replace(LAST_STEP[name], f"import os; os._exit(9)\n{LAST_STEP[name]}")
    if show:
        program = program.partition("for batch" if name == "lance" else "index = ")[0] + show
    return subprocess.run([sys.executable, "-c", program], cwd=folder, capture_output=True, text=True, check=False)


@pytest.mark.parametrize(("name", "package"), [("faiss", "faiss"), ("usearch", "usearch"), ("lance", "lancedb")])
def test_an_index_of_three_nights(name, package, workplace: Workplace):
    pytest.importorskip(package, reason=f"{package} is not installed: make test-readers")
    views = {"sentences": {"level": "text", "layers": [-1]}, "tokens": {"level": "token", "layers": [0]}}
    workplace.configure(views=views, input={"slice_bytes": 1000, "unit": "sentence"})
    corpus, lines = workplace.folder / "corpus", random_lines(300)

    def write(name: str, lines: list[str]) -> None:
        workplace.write(f"corpus/{name}", "".join(f"{line}. And more.\n" for line in lines))

    write("a.txt", lines[:100])
    write("b.txt", lines[100:200])
    write("it's c.txt", lines[200:])
    for night in range(5):
        if night == 1:
            write("a.txt", [*lines[:50], "edited", *lines[51:100]])
            write("b.txt", ["inserted", *lines[100:200]])
        if night == 2:
            (corpus / "a.txt").rename(corpus / "d.txt")
            write("it's c.txt", lines[200:280])
        if night == 3:
            write("b.txt", [*lines[100:110], *lines[120:200], "appended"])
            (corpus / "d.txt").unlink()
            write("e.txt", lines[:30])
        if night == 4:  # other rows under the same number of a run
            shutil.rmtree("out")
            write("b.txt", lines[150:200])
        workplace.drive("--prune-missing")
        if night == 1:
            continue  # the index has missed this night
        assert run_program(name, workplace.folder, is_killed=True).returncode == 9
        done = run_program(name, workplace.folder)
        assert (done.returncode, done.stdout) == (0, ""), done.stderr
        shown = run_program(name, workplace.folder, show=SHOW[name])
        found = sorted(map(ast.literal_eval, shown.stdout.splitlines()))
        rows = layerbeam.open_run(workplace.folder / "out")["sentences"].to_arrow()
        expected = [
            (row["file"], row["line"], row["sentence"], *row["layer_3"])
            for row in rows.select(["file", "line", "sentence", "layer_3"]).to_pylist()
        ]
        assert len(found) > 150, shown.stderr
        assert found == sorted(expected)
