"""Containers of the images that tests/image/build builds. buildah runs commands in them, with the host's network."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from repository import DATA


def buildah(*arguments: str | Path) -> str:
    done = subprocess.run(["buildah", *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@dataclasses.dataclass(frozen=True)
class Container:
    """`root`: its root folder. `shared`: a folder of this machine that the container has under the same path; it can
    read tests/data, too.
    """

    name: str
    root: Path
    shared: Path

    @property
    def settings(self) -> dict[str, Any]:
        """Of the image: Entrypoint, Env, Labels, WorkingDir."""
        return json.loads(buildah("inspect", self.name))["OCIv1"]["config"]

    def command(self, *arguments: str | Path, folder: Path | None = None, **variables: str) -> list[str]:
        """The command line for these arguments. Killing it ends all that it started."""
        return [
            *("unshare", "--pid", "--fork", "--kill-child", "--mount-proc", "buildah", "run", "--hostname=localhost"),
            *(f"--volume={self.shared}:{self.shared}", f"--volume={DATA}:{DATA}:ro"),
            *([f"--workingdir={folder}"] if folder else []),
            *(f"--env={name}={value}" for name, value in variables.items()),
            *(self.name, "--", *map(str, arguments)),
        ]

    def run(
        self, *arguments: str | Path, folder: Path | None = None, **variables: str
    ) -> subprocess.CompletedProcess[str]:
        command = self.command(*arguments, folder=folder, **variables)
        return subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)


@contextlib.contextmanager
def container(image: str, shared: Path) -> Iterator[Container]:
    name = buildah("from", "--pull-never", image)
    try:
        # Mounted for all its commands: overlayfs must not mount the same folders in two places.
        yield Container(name, Path(buildah("mount", name)), shared)
    finally:
        buildah("rm", name)
