"""Beam's file systems, set up for the paths of a command: only if they need them, as Beam's import takes 0.9 s."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from typing import Any

from layerbeam.pipeline.console import echo_timed
from layerbeam.pipeline.errors import UsageError


def set_up_file_systems(
    options: argparse.Namespace, given: list[str], *paths: str, configured: Mapping[str, Any] | None = None
) -> list[str]:
    """Configure Beam's file systems; returns Beam's options from configuration and command line, as arguments.

    UsageError for unknown options, and for a path that the file systems cannot reach.
    """
    from layerbeam.pipeline.commands import beam_options
    from layerbeam.transforms import storage

    settings = {name: value for name, value in (configured or {}).items() if name != "runner"}
    endpoint = beam_options.job_endpoint_of(given, settings)
    arguments = beam_options.as_arguments(settings, endpoint) + given
    beam_options.check_arguments(given, options.own_options, endpoint)
    storage.set_options(arguments)
    for path in paths:
        reason = storage.unsupported_reason(path)
        if reason is not None:
            raise UsageError(f"{path}: {reason}")
    return arguments


def set_up_stores(options: argparse.Namespace, beam_arguments: list[str], *paths: str) -> None:
    """Configure Beam's file systems if options are given or a path is in a store; Beam's import takes 0.9 s."""
    if beam_arguments or any(map(is_in_store, paths)):
        set_up_file_systems(options, beam_arguments, *paths)


def is_in_store(path: str) -> bool:
    return "://" in path and not path.lower().startswith(("https://", "http://", "hf://"))


def announce_loading() -> None:
    """Tell at once what takes seconds; not where it is loaded already."""
    if "apache_beam" not in sys.modules:
        echo_timed("loading Apache Beam and TensorFlow ...")
