"""Any file system of Beam's: hdfs://, and those that a program adds."""

from __future__ import annotations

import contextlib
import io
import re
import shutil
from collections.abc import Iterator, Sequence
from typing import IO, Any

from layerbeam.transforms.flow.commits import InputFile
from layerbeam.transforms.storage.store import Store

_UNCOMPRESSED = "uncompressed"  # CompressionTypes.UNCOMPRESSED


class BeamStore(Store):
    """Weaker than the others, because Beam's file systems have no more operations: see each method."""

    def __init__(self, file_systems: Any) -> None:
        self._beam = file_systems

    def list(self, prefix: str) -> Iterator[InputFile]:
        return self.match(f"{prefix}**")

    def match(self, pattern: str) -> Iterator[InputFile]:
        for file in self._beam.match([pattern])[0].metadata_list:
            # Whole seconds: some stores give fractions in a listing, but not for a single object.
            yield InputFile(file.path, file.size_in_bytes, float(int(file.last_updated_in_seconds or 0)))

    def stat(self, path: str) -> InputFile | None:
        # `?` matches any character, also those with a meaning in patterns.
        found = self.match(re.sub(r"[\[*?\\]", "?", path))
        try:
            return next((file for file in found if file.path == path), None)
        except OSError:  # Beam looks whether it exists, then how large it is, and it may be deleted in between
            if self.exists(path):
                raise
            return None

    def exists(self, path: str) -> bool:
        return bool(self._beam.exists(path))

    def read(self, path: str, start: int, end: int | None) -> bytes:
        """Most file systems download more than is asked for."""
        with self._beam.open(path, compression_type=_UNCOMPRESSED) as file:
            if start:
                file.seek(start)
            data: bytes = file.read(-1 if end is None else end - start)
            return data

    def write(self, path: str, file: IO[bytes], size: int) -> None:
        """The file may appear incomplete: if this fails, it may be there in part, and what it replaces is lost."""
        created = self._beam.create(path, compression_type=_UNCOMPRESSED)
        try:
            shutil.copyfileobj(file, created, 1 << 20)
        except BaseException:
            with contextlib.suppress(Exception):
                created.close()  # it cannot be aborted
            raise
        created.close()
        kept = self.stat(path)
        if kept is None or kept.size != size:
            raise OSError(f"{path}: only {kept.size if kept else 0:,} of {size:,} bytes were written")

    def create(self, path: str, data: bytes) -> bool:
        """Two operations: of two programs that do this at once, both may create the file, and the later one wins."""
        if self.exists(path):
            return False
        self.write(path, io.BytesIO(data), len(data))
        return True

    def delete(self, paths: Sequence[str]) -> None:
        for path in paths:
            if self.exists(path):
                self._beam.delete([path])
