"""docs/slurm.md: an array job, as Slurm would start its tasks, one of them killed and started again."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from corpora import random_lines
from repository import ROOT

import layerbeam

PAGE = (ROOT / "docs/slurm.md").read_text()
(ARRAY,) = re.findall(r"^```bash\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
SHARDS, KILLED = 3, 2
VIEWS = {"texts": {"level": "text", "layers": [-1]}, "words": {"level": "word", "layers": [1]}}


def start(folder: Path, loop: str) -> subprocess.Popen[bytes]:
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    return subprocess.Popen(["bash", "-c", loop], cwd=folder, env=os.environ | {"PATH": path}, start_new_session=True)


@pytest.mark.slow
def test_an_array_with_a_killed_task(workplace):
    lines = random_lines(2400)
    corpus = {f"{number}.txt": "\n".join(lines[number * 50 :][:50]) for number in range(48)}
    # Small blocks, so that the killed task has some done and some not.
    workplace.prepare(corpus, views=VIEWS, input={"slice_bytes": 1000})
    workplace.drive("--output", "whole")
    (workplace.folder / "c.yaml").rename(workplace.folder / "corpus.yaml")
    workplace.write("array.sh", ARRAY.replace("$shard/64", f"$shard/{SHARDS}"))
    commits = workplace.folder / f"out/shard-{KILLED}/_commits"

    killed = start(workplace.folder, f"SLURM_ARRAY_TASK_ID={KILLED} bash array.sh")
    while not commits.is_dir() or len(os.listdir(commits)) < 3:
        assert killed.poll() is None
        time.sleep(0.01)
    os.killpg(killed.pid, signal.SIGKILL)
    assert killed.wait() == -signal.SIGKILL
    done_before = set(os.listdir(commits))
    with pytest.raises(ValueError, match="the run is not finished"):
        layerbeam.open_run(workplace.folder / f"out/shard-{KILLED}")

    loop = f"for id in $(seq {SHARDS}); do SLURM_ARRAY_TASK_ID=$id bash array.sh || exit; done"
    assert start(workplace.folder, loop).wait() == 0
    run = layerbeam.open_run(f"{workplace.folder}/out/*")
    assert len(run.members) == SHARDS
    of_killed = run.members[f"{workplace.folder}/out/shard-{KILLED}"]
    assert {f"{block.name}.json" for block in of_killed.blocks()} > done_before
    whole = layerbeam.open_run(workplace.folder / "whole")
    for view in VIEWS:
        rows = run[view].to_arrow().drop_columns("folder").to_pylist()
        assert len(rows) > 2000
        assert sorted(rows, key=repr) == sorted(whole[view].to_arrow().to_pylist(), key=repr)
