"""What a container image says of itself: its labels, from the registry that it lies in.

Registries speak one HTTP API (https://distribution.github.io/distribution/spec/api/): the image's manifest names its
configuration, which holds the labels. A few kilobytes, no layer is fetched.
"""

from __future__ import annotations

import json
import re
import urllib.error
import urllib.parse
import urllib.request
from base64 import b64encode
from collections.abc import Mapping
from typing import Any

PREFIX = "org.layerbeam."
_TIMEOUT_SECONDS = 10
_MANIFESTS = (
    "application/vnd.oci.image.index.v1+json",
    "application/vnd.docker.distribution.manifest.list.v2+json",
    "application/vnd.oci.image.manifest.v1+json",
    "application/vnd.docker.distribution.manifest.v2+json",
)
_DOCKER_HUB = "registry-1.docker.io"
_GOOGLE = re.compile(r"(.*\.)?(gcr\.io|pkg\.dev)$")
# Beam's own images say it by their names.
_BEAM_IMAGE = re.compile(r"(?:^|/)beam_python(?P<python>\d+\.\d+)_sdk:(?P<beam>\d+\.\d+\.\d+)$")


def read_labels(image: str) -> dict[str, str]:
    """The image's labels under `org.layerbeam.`, without that. OSError or ValueError where they cannot be had."""
    of_beam = _BEAM_IMAGE.search(image)
    if of_beam is not None:
        return {"python": of_beam["python"], "apache-beam": of_beam["beam"]}
    registry, repository, reference = split_reference(image)
    local = registry.split(":")[0] in ("localhost", "127.0.0.1")
    ask = _Registry(
        f"{'http' if local else 'https'}://{registry}/v2/{repository}", google=bool(_GOOGLE.match(registry))
    )
    manifest = ask.get(f"manifests/{reference}")
    if "manifests" in manifest:  # one for each kind of processor
        platforms = {entry["digest"]: entry.get("platform", {}) for entry in manifest["manifests"]}
        digest = next((digest for digest, has in platforms.items() if has.get("architecture") == "amd64"), None)
        manifest = ask.get(f"manifests/{digest or next(iter(platforms))}")
    labels = ask.get(f"blobs/{manifest['config']['digest']}").get("config", {}).get("Labels") or {}
    return {name.removeprefix(PREFIX): value for name, value in labels.items() if name.startswith(PREFIX)}


def split_reference(image: str) -> tuple[str, str, str]:
    """(registry, repository, tag or digest), with Docker's defaults.

    >>> split_reference("us-docker.pkg.dev/p/r/layerbeam:0.1.0-gpu")
    ('us-docker.pkg.dev', 'p/r/layerbeam', '0.1.0-gpu')
    >>> split_reference("me/layerbeam")
    ('registry-1.docker.io', 'me/layerbeam', 'latest')
    """
    name, at, digest = image.partition("@")
    first, slash, rest = name.partition("/")
    has_registry = bool(slash) and ("." in first or ":" in first or first == "localhost")
    registry, path = (first, rest) if has_registry else (_DOCKER_HUB, name if slash else f"library/{name}")
    repository, _, tag = path.partition(":")
    return registry, repository, digest if at else tag or "latest"


class _Registry:
    def __init__(self, base: str, *, google: bool) -> None:
        self._base = base
        self._google = google
        self._headers = {"Accept": ", ".join(_MANIFESTS)}

    def get(self, path: str) -> Any:
        """The JSON at that path, asked for again with a token where the registry wants one."""
        try:
            return self._get(path)
        except urllib.error.HTTPError as error:
            challenge = error.headers.get("WWW-Authenticate", "")
            if error.code != 401 or "Authorization" in self._headers:
                raise
            self._headers["Authorization"] = f"Bearer {self._token(challenge)}"
            return self._get(path)

    def _get(self, path: str) -> Any:
        # A registry may send the configuration from a store, with an address that is signed: no token goes there.
        request = urllib.request.Request(f"{self._base}/{path}")  # noqa: S310 - http or https: `read_labels`
        for name, value in self._headers.items():
            (request.add_unredirected_header if name == "Authorization" else request.add_header)(name, value)
        return _json(request)

    def _token(self, challenge: str) -> str:
        wanted = dict(re.findall(r'(\w+)="([^"]*)"', challenge))
        realm = wanted.pop("realm", "")
        if not realm.startswith(("https://", "http://localhost", "http://127.0.0.1")):
            raise ValueError(f"the registry wants what this program does not know ({challenge or 'no challenge'})")
        request = urllib.request.Request(f"{realm}?{urllib.parse.urlencode(wanted)}")  # noqa: S310 - checked above
        if self._google:
            secret = b64encode(f"oauth2accesstoken:{_google_token()}".encode()).decode("ascii")
            request.add_unredirected_header("Authorization", f"Basic {secret}")
        answer: Mapping[str, str] = _json(request)
        return answer.get("token") or answer["access_token"]


def _google_token() -> str:
    import google.auth
    import google.auth.exceptions
    import google.auth.transport.requests

    try:
        credentials, _ = google.auth.default(scopes=["https://www.googleapis.com/auth/cloud-platform"])
        credentials.refresh(google.auth.transport.requests.Request())
    except google.auth.exceptions.GoogleAuthError as error:
        raise OSError(f"no credentials for it: {error}") from error
    return str(credentials.token)


def _json(request: urllib.request.Request) -> Any:
    with urllib.request.urlopen(request, timeout=_TIMEOUT_SECONDS) as answer:  # noqa: S310 - see the callers
        return json.load(answer)
