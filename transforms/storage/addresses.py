"""Secrets in addresses, which are refused: an output names its input and its encoder, and may be published."""

from __future__ import annotations

import re

_PASSWORD = re.compile(r"^([a-z][-a-z0-9+.]*://)[^/@]*:[^/@]*@", re.IGNORECASE)
# Of presigned addresses, shared access signatures, and links with a token.
_PARAMETER = re.compile(r"[?&#]([^=&#/]*(?:sig|token|key|secret|passw|credential|auth)[^=&#/]*)=[^&#]", re.IGNORECASE)


def find_secret(address: str) -> str | None:
    """The address without its secret, and what to do; None if it has no secret.

    >>> find_secret("https://name:word@host/m.zip")
    'https://host/m.zip: the address has a password, which the output would name; download the file and give its path'
    >>> find_secret("s3://bucket/2026-*.txt"), find_secret("https://host/model.zip?download=1")
    (None, None)
    """
    if "://" not in address:
        return None
    shown, what = _PASSWORD.sub(r"\1", address), "a password"
    if parameter := _PARAMETER.search(shown):
        shown, what = shown.partition("?")[0].partition("#")[0], f"`{parameter[1]}`, a secret"
    if shown == address:
        return None
    is_web = shown.lower().startswith(("http://", "https://"))
    instead = "download the file and give its path" if is_web else "leave it out (docs/runners.md: keys of stores)"
    return f"{shown}: the address has {what}, which the output would name; {instead}"
