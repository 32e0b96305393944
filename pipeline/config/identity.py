"""What identifies a run: the keys that readers rely on, the fingerprint, and how two runs differ."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any, NotRequired

from typing_extensions import TypedDict

SCHEMA_VERSION = 1


class _InputIdentity(TypedDict):
    text_field: str | list[str]
    pair_field: str | None


class _ViewIdentity(TypedDict):
    level: str
    keep_words: list[str] | None


class Identity(TypedDict):
    """The keys of the identity that other code reads; `pipeline/config/job.py` makes all of it."""

    input: _InputIdentity
    views: dict[str, _ViewIdentity]


class DescribedEncoder(TypedDict):
    """What readers rely on in `EncoderSource.describe`, which gives more."""

    handle: str
    engine: str
    hidden_size: int
    num_hidden_layers: int
    do_lower_case: bool
    casing_from: str
    vocabulary_size: int
    vocab_size: NotRequired[int | None]


class RunIdentity(TypedDict):
    """What is known of a run before it starts: the part of the manifest that does not depend on data."""

    schema_version: int
    fingerprint: str
    identity: Identity
    encoder: DescribedEncoder
    settings: dict[str, dict[str, Any]]
    versions: NotRequired[dict[str, str]]


def identify_run(identity: Any, encoder: Any, settings: dict[str, Any], versions: Mapping[str, str]) -> RunIdentity:
    """`identity`: everything that decides rows, columns, values or where blocks are cut; 16 hex digits stand for it."""
    fingerprint = hashlib.sha256(json.dumps(identity, sort_keys=True).encode("ascii")).hexdigest()[:16]
    return RunIdentity(
        schema_version=SCHEMA_VERSION,
        fingerprint=fingerprint,
        identity=identity,
        encoder=encoder,
        settings=settings,
        versions=dict(versions),
    )


def differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """`setting: old value -> new value` for each that differs; one line for a view that only one of them has.

    >>> differences({"encoder": {"max_seq_length": 64}}, {"encoder": {"max_seq_length": 128}})
    ['encoder.max_seq_length: 64 -> 128']
    >>> differences({"views": {"a": {"level": "text", "dtype": "float32"}}}, {"views": {}})
    ['views.a: is in the folder, and removed from the settings']
    """
    views, others = old.get("views", {}), new.get("views", {})
    lines = [f"views.{name}: is in the folder, and removed from the settings" for name in sorted(views.keys() - others)]
    lines += [f"views.{name}: is not in the folder" for name in sorted(others.keys() - views)]
    both = views.keys() & others.keys()
    before, after = (
        _flat({**settings, "views": {name: settings["views"][name] for name in both}}) for settings in (old, new)
    )
    return lines + [
        f"{name}: {before.get(name, 'not set')} -> {after.get(name, 'not set')}"
        for name in sorted(before.keys() | after.keys())
        if before.get(name) != after.get(name)
    ]


def only_adds_views(old: Mapping[str, Any], new: Mapping[str, Any]) -> bool:
    """Whether a run's identity has all views of an older one, and differs in nothing else.

    >>> only_adds_views({"input": 1, "views": {"a": {}}}, {"input": 1, "views": {"a": {}, "b": {}}})
    True
    """
    new = json.loads(json.dumps(new))  # as the older one was read
    views = {name: view for name, view in new["views"].items() if name in old.get("views", {})}
    return {**new, "views": views} == old


def _flat(settings: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in settings.items():
        nested = isinstance(value, Mapping) and value
        flat |= (
            _flat(value, f"{prefix}{name}.") if nested else {f"{prefix}{name}": "not set" if value is None else value}
        )
    return flat
