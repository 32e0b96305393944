"""A script that ends right after it has read a run ends well: no thread of Arrow's needs the interpreter any more."""

from __future__ import annotations

import collections
import subprocess
import sys

SCRIPT = "import layerbeam; print(layerbeam.open_run('out').view('s').to_numpy('layer_2').shape)"


def test_a_script_ends_well_right_after_reading(workplace, soak):
    workplace.finished("a bank\n" * 10, views={"s": {"level": "text", "layers": [2]}})
    ends: collections.Counter[tuple[int, str, str]] = collections.Counter()
    for _ in range(200 if soak else 10):
        done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=False)
        ends[done.returncode, done.stdout, done.stderr] += 1
    assert list(ends) == [(0, "(10, 64)\n", "")], ends
