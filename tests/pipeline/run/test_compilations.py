"""How often XLA compiles in a run: XLA itself writes files for each compilation."""

from __future__ import annotations

import json
import os
import re
import subprocess

import pytest
from corpora import random_lines

BUCKETS = [16, 64]


@pytest.mark.slow
def test_one_compilation_per_bucket(workplace, tmp_path):
    lines = [line[:length] for line in random_lines(150) for length in (6, 25, 60, None)]
    workplace.write("corpus/a.txt", "\n".join(lines))
    workplace.configure(
        input={"slice_bytes": 2000},
        encoder={"xla": True, "length_buckets": BUCKETS, "max_seq_length": 64, "batch_tokens": 256},
    )
    dumped = tmp_path / "xla"
    environment = os.environ | {"XLA_FLAGS": f"--xla_dump_to={dumped} --xla_dump_hlo_as_text"}
    command = workplace.command("run", "c.yaml", "--workers", "2")
    subprocess.run(command, cwd=workplace.folder, env=environment, check=True, capture_output=True)

    programs = [path.read_text() for path in dumped.glob("*.before_optimizations.txt")]
    shapes = [re.search(r"entry_computation_layout=\{\(s32\[(\d+),(\d+)\]", program).groups() for program in programs]
    assert sorted(shapes) == sorted((str(256 // bucket), str(bucket)) for bucket in BUCKETS)
    assert not any("[<=" in program for program in programs)  # XLA's mark of a dynamic size
    counts = json.loads((workplace.folder / "out/_runs/1.json").read_text())["counts"]
    assert counts["padded_tokens"] >= 256 * 10 * len(BUCKETS)  # a batch has 256
    assert len(list((workplace.folder / "out/tokens").iterdir())) > 10  # and a block has several
