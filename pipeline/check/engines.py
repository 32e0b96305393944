"""Other engines asked for the vectors of texts: a function of Python, and a server."""

from __future__ import annotations

import importlib
import json
import os
import sys
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from layerbeam.pipeline.errors import UsageError

_SECONDS = 120
_SHOWN = 200  # characters of a server's answer


def call_function(address: str, texts: Sequence[str]) -> npt.NDArray[Any]:
    """[n, W] in float64: what `module:function` returns for a list of texts. UsageError if that is nothing of the kind.

    The module may lie in the current folder.
    """
    module, _, name = address.partition(":")
    sys.path.insert(0, os.getcwd())
    try:
        found = getattr(importlib.import_module(module), name)(list(texts))
    except (Exception, SystemExit) as error:  # a module may raise anything
        raise UsageError(
            f"--python {address}: {type(error).__name__}: {error}; give module:function, which takes a list of texts "
            "and returns a vector for each"
        ) from error
    finally:
        sys.path.remove(os.getcwd())
    return _as_vectors(f"--python {address}", found, len(texts))


def ask_server(url: str, model: str, texts: Sequence[str]) -> npt.NDArray[Any]:
    """[n, W] in float64: the answer of TEI's `/embed`, or of OpenAI's `/v1/embeddings`, the path if `url` has none.

    UsageError if there is no such answer.
    """
    parts = urllib.parse.urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.netloc:
        raise UsageError(f"--url {url}: give http://HOST:PORT/v1/embeddings, or http://HOST:PORT/embed of TEI")
    is_tei = parts.path.rstrip("/").endswith("/embed")
    address = url if parts.path.strip("/") else urllib.parse.urljoin(url, "/v1/embeddings")
    body = {"inputs": texts} if is_tei else {"input": texts, "model": model, "encoding_format": "float"}
    data, headers = json.dumps(body).encode("ascii"), {"Content-Type": "application/json"}
    try:
        with urllib.request.urlopen(urllib.request.Request(address, data, headers), timeout=_SECONDS) as answer:  # noqa: S310 - http(s)
            found = json.load(answer)
        if not is_tei:
            found = [row["embedding"] for row in sorted(found["data"], key=lambda row: row["index"])]
    except urllib.error.HTTPError as error:
        said = error.read(_SHOWN).decode(errors="replace")
        raise UsageError(f"--url {address}: status {error.code}: {' '.join(said.split())}") from error
    except OSError as error:
        raise UsageError(f"--url {address}: {getattr(error, 'reason', error)}") from error
    except (ValueError, LookupError, TypeError) as error:
        raise UsageError(
            f"--url {address}: the answer is not one of {'TEI' if is_tei else 'OpenAI'}: {error}"
        ) from error
    return _as_vectors(f"--url {address}", found, len(texts))


def _as_vectors(source: str, found: Any, count: int) -> npt.NDArray[Any]:
    try:
        vectors = np.asarray(found, np.float64)
    except (TypeError, ValueError):
        vectors = np.zeros(0)
    if vectors.ndim != 2 or len(vectors) != count or not vectors.shape[1] or not np.isfinite(vectors).all():
        shape = f"an array {list(vectors.shape)}" if vectors.size else repr(found)[:_SHOWN]
        raise UsageError(f"{source}: gave {shape}; it must give {count} vectors of equal width, of finite numbers")
    return vectors
