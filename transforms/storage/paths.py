"""Paths: local or in a store, reachable or not. Nothing here opens a file."""

from __future__ import annotations

import importlib
import os
import re
import sys
from collections.abc import Iterable

# What each of Beam's file systems needs: (a module that it imports, the package that provides it).
_PACKAGES = {
    "gs": ("apache_beam.io.gcp.gcsfilesystem", "layerbeam[gcp]"),
    "s3": ("boto3", "apache-beam[aws]"),
    "hdfs": ("hdfs", "apache-beam[hadoop]"),
}

# The arguments of the last `set_options`; None: never called, as on a worker, where Beam itself sets the options.
store_options: list[str] | None = None


def scheme_of(path: str) -> str | None:
    """The scheme of a path, by the rule of Beam's `FileSystems.get_scheme`; None for a local path.

    >>> scheme_of("gs://bucket/a"), scheme_of("file:///tmp/a"), scheme_of(" s3://b")
    ('gs', 'file', 's3')
    >>> scheme_of("/tmp/a"), scheme_of("C:/a"), scheme_of("C:\\\\a"), scheme_of("a/b://c"), scheme_of("://a"), scheme_of("1s://a")
    (None, None, None, None, None, None)
    """
    match = re.match(r"([a-zA-Z][-a-zA-Z0-9+.]*)://", path.strip())
    return match[1] if match else None


def is_local(path: str) -> bool:
    """Whether the path has no scheme, so that it is on this machine's file system."""
    return scheme_of(path) is None


def set_options(arguments: Iterable[str] = ()) -> None:
    """Set the options of Beam's file systems, as on its command line. Without a call s3:// and hdfs:// do not open."""
    global store_options
    store_options = list(arguments)
    stores = sys.modules.get(f"{__package__}.stores")
    if stores is not None:  # otherwise it takes them from here when it is imported
        stores.set_options(store_options)


def unsupported_reason(path: str) -> str | None:
    """Why no file under this path can be reached, and what to do; None if it can. Call `set_options` first."""
    scheme = scheme_of(path)
    if scheme is None:
        return None
    if scheme == "file":
        return "a local path has no scheme: leave off file://"
    package, install = _PACKAGES.get(scheme, ("", ""))
    if package and not is_installed(package):
        return f"{scheme}:// needs a package that is not installed; run: pip install '{install}'"
    from layerbeam.transforms.storage import stores

    error = stores.connection_error(path)
    if error is None:
        return None
    if package:
        options = "; give Beam's options --hdfs_host, --hdfs_port and --hdfs_user" if scheme == "hdfs" else ""
        return f"Beam cannot open {scheme}:// here ({error}){options}"
    known = ", ".join(f"{name}://" for name in _PACKAGES)
    return f"Beam has no file system for {scheme}:// here; it has local paths (without a scheme), {known}"


def is_installed(module: str) -> bool:
    """Whether a module can be imported, with all that it imports."""
    try:
        importlib.import_module(module)
    except ImportError:
        return False
    return True


def join(folder: str, *names: str) -> str:
    """`folder/name`, on any file system."""
    if is_local(folder):
        return os.path.join(folder, *names)
    from layerbeam.transforms.storage import stores

    return stores.join(folder, *names)


def is_inside(path: str, folder: str) -> bool:
    """Whether the path is in the folder or below it; links are followed."""
    if is_local(path) != is_local(folder):
        return False
    if not is_local(path):
        return path.startswith(folder.rstrip("/") + "/")
    return os.path.realpath(path).startswith(os.path.join(os.path.realpath(folder), ""))


def reason_of(error: OSError) -> str:
    """What is wrong with a file, without its name."""
    return error.strerror or str(error)
