"""The job of a run, restored from what its output folder records."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from layerbeam.pipeline.config import load
from layerbeam.pipeline.config.identity import differences
from layerbeam.pipeline.config.job import Job, resolve
from layerbeam.pipeline.config.schema import Config
from layerbeam.pipeline.errors import UsageError
from layerbeam.transforms.flow.layout import MANIFEST


def restore_job(run: Mapping[str, Any], output_path: str, *, trust: bool, changed: bool = False) -> Job:
    """The job of a manifest or an attempt's record. UsageError if encoder or versions are missing or have changed.

    `trust`: also open what is no data on this machine: a function, an address, a SavedModel. Else it is a UsageError.
    `changed`: also give a job whose encoder or versions have changed.
    """
    config = restore_config(run, output_path)
    handle, splitter = config.encoder.handle, config.input.splitter
    if not trust and splitter not in (None, "sentencex"):
        raise _distrust(output_path, f"import and call the function {splitter} (input.sentences)")
    for address in (handle, config.encoder.adapter):
        if not trust and address and "://" in address:
            raise _distrust(output_path, f"fetch the encoder from {address}")
    job = resolve(config)
    if not trust and job.encoder.kind == "savedmodel":
        raise _distrust(output_path, f"open the SavedModel {handle}, a program that can read and write your files")
    found = differences(run["identity"], job.run_identity["identity"])
    if found and not changed:
        raise UsageError(
            f"{output_path}: what it was made with has changed:\n" + "\n".join(f"  {line}" for line in found)
        )
    return job


def restore_config(run: Mapping[str, Any], output_path: str) -> Config:
    """The settings of a manifest or an attempt's record, without its encoder. UsageError if they are unusable."""
    settings = dict(run["settings"])
    settings["output"] = {**settings["output"], "path": output_path}
    # The forms themselves, not the file that they came from: the folder could name any file.
    settings["views"] = {
        name: {**view, "keep_words": run["identity"]["views"][name]["keep_words"]}
        for name, view in settings["views"].items()
    }
    if isinstance(settings["encoder"].get("calibration"), str):  # a run records the texts
        raise UsageError(f"{output_path}/{MANIFEST}: encoder.calibration should be texts, and is a file")
    return load.restore(settings, source=f"{output_path}/{MANIFEST}")


def _distrust(output_path: str, what: str) -> UsageError:
    return UsageError(
        f"{output_path}: this would {what}, because the folder says so; if the folder is yours, or you trust who wrote "
        "it, add --trust"
    )
