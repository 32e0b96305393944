"""Stores (gs://, s3://, az://, hf://, and Beam's other file systems) behind functions whose errors are OSError.

Beam is imported for the first path with a scheme, because that takes 0.9 s.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import itertools
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from layerbeam.transforms.flow.commits import InputFile
from layerbeam.transforms.storage import hf_store
from layerbeam.transforms.storage.errors import as_os_errors
from layerbeam.transforms.storage.store import Store

# What each kind of path needs: (a module that it imports, the package that provides it).
_PACKAGES = {
    "gs": ("apache_beam.io.gcp.gcsfilesystem", "gcp"),
    "s3": ("boto3", "aws"),
    "az": ("obstore", "azure"),
    "hdfs": ("hdfs", "apache-beam[hadoop]"),
    "hf": ("huggingface_hub", "hf"),
}

# The arguments of the last `set_options`; None: never called, as on a worker, where Beam itself sets the options.
_options: list[str] | None = None
# By scheme: the options with which a store was made, and the store.
_stores: dict[str, tuple[Any, Store]] = {}


def set_options(arguments: Iterable[str] = ()) -> None:
    """Set the options of Beam's file systems, as on its command line. Without a call s3:// and hdfs:// do not open."""
    global _options
    _options = list(arguments)
    _beam.cache_clear()
    _stores.clear()
    if "apache_beam" in sys.modules:
        _beam()


@functools.cache
def _beam() -> Any:
    """Beam's `FileSystems`, with the options that were set."""
    from apache_beam.io.filesystems import FileSystems
    from apache_beam.options.pipeline_options import PipelineOptions

    if _options is not None:
        FileSystems.set_options(PipelineOptions(_options))
    return FileSystems


def _store(scheme: str) -> Store:
    """The store of all paths with this scheme: one per process, as making a client takes tens of milliseconds."""
    # A pipeline sets the options of the process.
    options = _beam()._pipeline_options
    known = _stores.get(scheme)
    if known is None or known[0] is not options:
        known = _stores[scheme] = (options, _make_store(scheme, options))
    return known[1]


def _make_store(scheme: str, options: Any) -> Store:
    if options is None:  # never set in this process
        from apache_beam.options.pipeline_options import PipelineOptions

        options = PipelineOptions([])
    if scheme == "gs":
        from layerbeam.transforms.storage.google_store import GoogleStore

        return GoogleStore(options)
    if scheme == "s3":
        from layerbeam.transforms.storage.s3_store import S3Store

        return S3Store(options)
    if scheme == "hf":
        return hf_store.HfStore()
    if scheme == "az":
        from layerbeam.transforms.storage.azure_store import AzureStore

        return AzureStore()
    from layerbeam.transforms.storage.beam_store import BeamStore

    return BeamStore(_beam())


@contextlib.contextmanager
def store_of(path: str) -> Iterator[Store]:
    """The store of a path; errors within the block are OSError."""
    with as_os_errors(path):
        yield _store(path.strip().partition("://")[0])


def scheme_of(path: str) -> str | None:
    """The scheme of a path, by the rule of Beam's `FileSystems.get_scheme`; None for a local path.

    >>> scheme_of("gs://bucket/a"), scheme_of("file:///tmp/a"), scheme_of(" s3://b")
    ('gs', 'file', 's3')
    >>> scheme_of("/tmp/a"), scheme_of("C:/a"), scheme_of("C:\\\\a"), scheme_of("a/b://c"), scheme_of("://a"), scheme_of("1s://a")
    (None, None, None, None, None, None)
    """
    match = re.match(r"([a-zA-Z][-a-zA-Z0-9+.]*)://", path.strip())
    return match[1] if match else None


def unsupported_reason(path: str) -> str | None:
    """Why no file under this path can be reached, and what to do; None if it can. Call `set_options` first."""
    scheme = scheme_of(path)
    if scheme is None:
        return None
    if scheme == "file":
        return "a local path has no scheme: leave off file://"
    page = hf_store.of_page(path)
    if page is not None:
        return f"is a page of the Hub; did you mean {page}?"
    package, install = _PACKAGES.get(scheme, ("", ""))
    if package and not is_installed(package):
        return f"{scheme}:// needs a package that is not installed; run: {install_command(install)}"
    if scheme == "hf":
        return None if hf_store.is_path(path) else f"is not of the form {hf_store.FORM}"
    if scheme == "az":
        try:
            with store_of(path):
                return None
        except OSError as error:
            return f"az:// cannot be opened here: {error.strerror}"
    try:
        _beam().get_filesystem(path)
    except Exception as error:  # ValueError, BeamIOError, and those of each store's client
        if package:
            options = "; give Beam's options --hdfs_host, --hdfs_port and --hdfs_user" if scheme == "hdfs" else ""
            return f"Beam cannot open {scheme}:// here ({error}){options}"
        known = ", ".join(f"{name}://" for name in _PACKAGES if name != "hf")
        return f"Beam has no file system for {scheme}:// here; it has local paths (without a scheme), {known}"
    return None


def install_command(extra: str) -> str:
    """The command that installs an extra of layerbeam, in its clone if it runs from one, or another package's."""
    if "[" in extra or not (Path(__file__).parents[2] / "constraints.txt").exists():
        return f"pip install '{extra if '[' in extra else f'layerbeam[{extra}]'}'"
    return f"pip install -c constraints.txt -e '.[{extra}]' (in your clone of layerbeam)"


def is_installed(module: str) -> bool:
    """Whether a module can be imported, with all that it imports."""
    try:
        importlib.import_module(module)
    except ImportError:
        return False
    return True


def join(folder: str, *names: str) -> str:
    """`folder/name`."""
    return "/".join([folder.rstrip("/"), *names])


def list_files(pattern: str, at_most: int | None = None) -> list[InputFile]:
    """The files that match a glob, or the first ones."""
    with store_of(pattern) as store:
        return list(itertools.islice(store.match(pattern), at_most))


def list_prefix(prefix: str) -> Iterator[InputFile]:
    """The files whose paths begin with `prefix`, page after page."""
    with store_of(prefix) as store:
        yield from store.list(prefix)


def pin(path: str) -> str:
    """The path, or glob, of what does not change later: a dataset of the Hub at the commit that it is at now."""
    if scheme_of(path) != "hf":
        return path
    with as_os_errors(path):
        return hf_store.HfStore().pin(path)


def stat(path: str) -> InputFile | None:
    """Size and time of a file; None if it is missing."""
    with store_of(path) as store:
        return store.stat(path)


def delete(paths: Sequence[str]) -> None:
    """Delete files of one bucket; a missing one is not an error."""
    if paths:
        scheme = paths[0].partition("://")[0]
        with as_os_errors(f"{scheme}://"):
            _store(scheme).delete(paths)
