"""Whether a run may write to the output folder: it is empty, or holds a run of the same settings."""

from __future__ import annotations

import os
from collections.abc import Sequence

from layerbeam.pipeline.config.identity import RunIdentity, differences, only_adds_views
from layerbeam.pipeline.errors import UsageError
from layerbeam.pipeline.output.catalog import open_catalog
from layerbeam.pipeline.output.commits import recorded
from layerbeam.pipeline.output.manifest import load_manifest
from layerbeam.pipeline.output.run_log import ACTIVE, last_run, load_runs, run_numbers
from layerbeam.transforms import storage
from layerbeam.transforms.flow import layout, metrics
from layerbeam.transforms.parts import is_table_file, part_folder
from layerbeam.transforms.views.view import ViewSpec


def check_output(path: str, views: Sequence[ViewSpec], run_identity: RunIdentity, number: int | None = None) -> None:
    """UsageError if the folder holds anything else, or rows of a run with other settings.

    `number`: of the attempt that asks, if it has one.
    """
    before = last_run(path)
    if before is None:
        # A first run may have died, on a full disk for example, before or while it wrote its record.
        names = set(os.listdir(path)) if storage.is_local(path) and os.path.isdir(path) else set()
        own = {layout.LOCK, layout.RUNS}
        fingerprints = open_catalog(path).fingerprints()
        has_run = bool(fingerprints) or run_numbers(path) not in ([], [number])
        if has_run and fingerprints <= {run_identity["fingerprint"]}:
            # Its record and its manifest are lost, but all commits have these settings.
            own |= {
                layout.COMMITS,
                layout.REJECTS,
                layout.PARTS,
                layout.MANIFEST,
                layout.REPORT,
                layout.CARD,
                layout.NORMALIZER,
            }
            own |= {layout.SUCCESS, layout.DAMAGED}
            own |= {name for view in views for name in (view.name, part_folder(view).split("/")[0])}
        foreign = sorted(name for name in names - own if not name.startswith(storage.UNFINISHED))
        if foreign:
            what, give = "is not empty and holds no layerbeam run", ""
            if has_run:
                what = (
                    "holds a run whose record and manifest cannot be read, and files that may not be of these settings"
                )
                give = "the configuration that wrote it, or "
            raise UsageError(f"output.path: {path} {what} ({', '.join(foreign[:3])}); give {give}a new folder")
    elif (
        before["fingerprint"] != run_identity["fingerprint"]
        and not only_adds_views(before["identity"], run_identity["identity"])
        and not has_no_rows(path)
    ):
        changed = differences(before["identity"], run_identity["identity"])
        old, new = before["encoder"].get("commit"), run_identity["encoder"].get("commit")
        if old != new and old is not None:
            pinned = f"{before['encoder']['handle'].partition('@')[0]}@{old}"
            changed.append(f"encoder.handle: the folder was made with {pinned}; give that to continue it")
        raise UsageError(
            f"output.path: {path} holds a run with other settings, and rows of both do not belong together; "
            "give a new folder, or restore the settings (views can be added, and nothing else can change):\n"
            + "\n".join(f"  {line}" for line in changed)
        )


def has_no_rows(path: str) -> bool:
    """Whether the last run in the folder has ended, and neither its commits nor its manifest count a text."""
    runs, manifest = load_runs(path), load_manifest(path)
    if not runs or runs[-1]["state"] in (*ACTIVE, "lost"):
        return False
    if manifest is None and any(storage.exists(storage.join(path, name)) for name in (layout.MANIFEST, layout.PARTS)):
        return False  # damaged: unknown
    if manifest is not None and metrics.embedded_texts(manifest["counts"]):
        return False
    return not any(metrics.embedded_texts(commit.counts) for commit, _ in recorded(path))


def starts_over(path: str, run_identity: RunIdentity) -> bool:
    """Whether the last run in the folder had other settings and no rows, so it can be discarded."""
    runs = load_runs(path)
    return bool(runs) and runs[-1]["fingerprint"] != run_identity["fingerprint"] and has_no_rows(path)


def discard_other_settings(path: str, run_identity: RunIdentity) -> None:
    """Delete what a run with other settings and without rows has left; `check_output` must have allowed it."""
    if not starts_over(path, run_identity):
        return
    for view in load_runs(path)[-1]["views"]:
        folder = storage.join(path, view)
        if "/" not in view and view not in ("", ".", ".."):
            names = [
                name
                for name in storage.list_folder(folder)
                if name.startswith(f"{layout.EMPTY}.") or is_table_file(name)
            ]
            storage.delete_files(folder, names)
            storage.delete_empty_folder(folder)
    for folder in (layout.COMMITS, layout.REJECTS):
        storage.delete_folder(path, folder)
    storage.delete_files(path, [layout.PARTS, layout.MANIFEST])
