"""The earlier run in an output folder: whether this one may go on with it, and whether it left anything to do."""

from __future__ import annotations

import os
from collections.abc import Sequence

from layerbeam.pipeline.errors import UsageError
from layerbeam.pipeline.output.commits import PARTS, load_commits, load_damaged
from layerbeam.pipeline.output.integrity import missing_tables
from layerbeam.pipeline.output.lock import LOCK, WRITER
from layerbeam.pipeline.output.manifest import MANIFEST, SUCCESS, RunIdentity, differences, load_manifest
from layerbeam.pipeline.output.run_log import RUNS, load_runs
from layerbeam.pipeline.report import REPORT
from layerbeam.transforms import storage
from layerbeam.transforms.parts import part_folder
from layerbeam.transforms.views import View
from layerbeam.transforms.write.block import COMMITS, REJECTS, TEMPORARY


def check_output(path: str, views: Sequence[View], head: RunIdentity) -> None:
    """UsageError where the folder holds something else, or a run with other settings."""
    runs = load_runs(path)
    before = runs[-1] if runs else load_manifest(path)
    if before is None:
        # A first start may have died, on a full disk, say, before or while it said what it was.
        names = set(os.listdir(path)) if storage.is_local(path) and os.path.isdir(path) else set()
        ours = {LOCK, WRITER, TEMPORARY, RUNS}
        if RUNS in names and all(commit.fingerprint == head.fingerprint for commit in load_commits(path)):
            # Its record is lost: what is committed has these settings all the same.
            ours |= {COMMITS, REJECTS, PARTS, MANIFEST, REPORT}
            ours |= {name for view in views for name in (view.name, part_folder(view).split("/")[0])}
        foreign = sorted(names - ours)
        if foreign:
            raise UsageError(
                f"output.path: {path} is not empty and holds no layerbeam run ({', '.join(foreign[:3])}); "
                "give a new folder"
            )
        return
    if before["fingerprint"] != head.fingerprint:
        changed = differences(before["identity"], head.identity)
        raise UsageError(
            f"output.path: {path} holds a run with other settings, and rows of both do not belong together; "
            "give a new folder, or take the settings back:\n" + "\n".join(f"  {line}" for line in changed)
        )


def is_finished(path: str, max_reject_rate: float) -> bool:
    """Whether an earlier run ended well, also by what this one allows to be rejected, and all it wrote is there."""
    manifest = load_manifest(path)
    if (
        manifest is None
        or not manifest["complete"]
        or not storage.exists(storage.join(path, SUCCESS))
        or load_damaged(path)
    ):
        return False
    try:
        same = manifest["settings"]["input"]["max_reject_rate"] == max_reject_rate
        return same and not missing_tables(path, manifest)
    except (KeyError, TypeError):
        return False  # somebody's changes: it is written anew
