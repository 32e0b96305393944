"""Hosts on this machine: network namespaces on one bridge, each with its own loopback and its own copy of a folder.

Linux, root and iproute2 are needed.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

# Mounts an empty file system over the folder `$1`, for this process and its children only.
WITH_OWN_FOLDER = 'mount -t tmpfs own "$1" && shift && exec "$@"'


class Hosts:
    """`addresses`: of each host by name."""

    def __init__(self, names: Sequence[str], folder: Path) -> None:
        self._folder = folder
        self._bridge = f"lb{os.getpid() % 10**6}"
        self._network = f"10.77.{os.getpid() % 250}"
        self.addresses = {name: f"{self._network}.{number}" for number, name in enumerate(names, start=2)}

    @contextlib.contextmanager
    def up(self) -> Iterator[None]:
        """The hosts exist while this is entered."""
        with contextlib.ExitStack() as stack:
            _ip("link", "add", self._bridge, "type", "bridge")
            stack.callback(_ip, "link", "del", self._bridge)
            _ip("addr", "add", f"{self._network}.1/24", "dev", self._bridge)
            _ip("link", "set", self._bridge, "up")
            for number, (name, address) in enumerate(self.addresses.items()):
                space, port = self._space(name), f"{self._bridge}p{number}"
                _ip("netns", "add", space)
                stack.callback(_ip, "netns", "del", space)
                _ip("link", "add", port, "type", "veth", "peer", "name", "eth0", "netns", space)
                _ip("link", "set", port, "master", self._bridge, "up")
                _ip("-n", space, "addr", "add", f"{address}/24", "dev", "eth0")
                _ip("-n", space, "link", "set", "eth0", "up")
                _ip("-n", space, "link", "set", "lo", "up")
            yield

    def command(self, name: str, command: Sequence[str]) -> list[str]:
        """The command that runs another one on a host, in place of the process."""
        inside = ["ip", "netns", "exec", self._space(name), "sh", "-c", WITH_OWN_FOLDER, "sh", str(self._folder)]
        return [*inside, *command]

    def _space(self, name: str) -> str:
        return f"{self._bridge}-{name}"


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True)
