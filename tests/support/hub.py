"""Hugging Face's Hub on a loopback address, for huggingface_hub: datasets of one owner, `org`.

Unknown requests are answered with 501, so that no test passes because of a gap.
"""

from __future__ import annotations

import base64
import contextlib
import dataclasses
import hashlib
import json
import re
import urllib.parse
from collections.abc import Iterator, Mapping
from typing import Any

import yaml
from faults import Faults, FaultyHandler
from ports import serving

_PAGE = 2  # files per page of a listing: few, so that most listings have several pages
_COMMIT = re.compile(r"[0-9a-f]{40}")
_RESTRICTED = {"X-Error-Code": "GatedRepo", "X-Error-Message": "Access to dataset org/gated is restricted"}
Reply = tuple[int, dict[str, str], bytes]


@dataclasses.dataclass
class Dataset:
    """A repository. `commits`: its files by commit; `branches`: the commit of each."""

    private: bool = False
    commits: dict[str, Mapping[str, bytes]] = dataclasses.field(default_factory=dict)
    branches: dict[str, str] = dataclasses.field(default_factory=dict)

    def commit(self, files: Mapping[str, bytes], branch: str = "main") -> str:
        """Make these the files of a branch; returns the commit."""
        number = hashlib.sha1(f"{len(self.commits)} {sorted(files)}".encode()).hexdigest()
        self.commits[number] = dict(files)
        self.branches[branch] = number
        return number

    @property
    def files(self) -> Mapping[str, bytes]:
        return self.commits[self.branches["main"]]


class Hub:
    """The Hub. `token`: the only one that it knows; `large`: what was uploaded into LFS, by SHA-256.

    `calls`: each request; `downloaded`: bytes of files in answers.
    """

    def __init__(self) -> None:
        self.url, self.token = "", "hf_good"
        self.datasets: dict[str, Dataset] = {}
        self.calls: list[str] = []
        self.large: dict[str, bytes] = {}
        self.downloaded = 0
        self.faults = Faults()

    def dataset(self, name: str) -> Dataset:
        """The dataset of this name, made if there is none."""
        return self.datasets.setdefault(name, Dataset())

    def answer(self, method: str, target: str, headers: Any, body: bytes) -> Reply:
        self.calls.append(f"{method} {target}")
        place = urllib.parse.urlsplit(target)
        query = dict(urllib.parse.parse_qsl(place.query))
        token = (headers.get("Authorization") or "").removeprefix("Bearer ")
        if token not in ("", self.token):
            return _refusal(401, "", "Invalid credentials in Authorization header")
        for pattern, respond in _ROUTES:
            if (found := re.fullmatch(pattern, f"{method} {place.path}")) is not None:
                names = {name: urllib.parse.unquote(value or "") for name, value in found.groupdict().items()}
                return respond(self, names, query, headers, body, token)
        return _refusal(501, "", f"{method} {target}: this stand-in does not know it")

    def find(self, names: Mapping[str, str], token: str) -> tuple[Dataset, str, Mapping[str, bytes]] | Reply:
        """(the dataset, the commit, its files), or the answer that there is none."""
        dataset = self.datasets.get(names["repository"])
        if dataset is None or (dataset.private and not token):
            return _refusal(401 if not token else 404, "RepoNotFound", "Repository not found")
        if names["repository"] == "org/gated":
            return 403, _RESTRICTED, b"{}"
        commit = dataset.branches.get(names["revision"], names["revision"])
        if commit not in dataset.commits:
            return _refusal(404, "RevisionNotFound", f"Invalid rev id: {names['revision']}")
        return dataset, commit, dataset.commits[commit]


def _reading(respond: Any) -> Any:
    """A route below a revision of a dataset."""

    def checked(hub: Hub, names: Any, query: Any, headers: Any, body: bytes, token: str) -> Reply:
        found = hub.find(names, token)
        if len(found) == 3 and isinstance(found[0], Dataset):
            answer: Reply = respond(hub, names, query, headers, body, found[1], found[2])
            return answer
        return found  # type: ignore[return-value] # a refusal

    return checked


@_reading
def _about(hub: Hub, names: Any, query: Any, headers: Any, body: bytes, commit: str, files: Any) -> Reply:
    return _json(
        {"id": names["repository"], "sha": commit, "siblings": [], "private": hub.dataset(names["repository"]).private}
    )


@_reading
def _tree(hub: Hub, names: Any, query: Any, headers: Any, body: bytes, commit: str, files: Any) -> Reply:
    folder = f"{names['path']}/".removeprefix("/")
    found = [name for name in sorted(files) if name.startswith(folder)]
    if not found:
        return _refusal(404, "EntryNotFound", f"{folder} does not exist")
    after = query.get("cursor", "")
    rest = [name for name in found if name > after]
    entries = [_entry(name, files[name]) for name in rest[:_PAGE]]
    folders = [{"type": "directory", "path": folder + "more", "oid": "0" * 40, "size": 0}]
    more = {}
    if rest[_PAGE:]:
        page = f"{hub.url}/api/datasets/{names['repository']}/tree/{commit}/{folder.rstrip('/')}"
        cursor = urllib.parse.urlencode({"recursive": "true", "cursor": rest[_PAGE - 1]})
        more = {"Link": f'<{page}?{cursor}>; rel="next"'}
    return _json(entries + folders, **more)


@_reading
def _paths_info(hub: Hub, names: Any, query: Any, headers: Any, body: bytes, commit: str, files: Any) -> Reply:
    asked = urllib.parse.parse_qs(body.decode())["paths"]
    return _json([_entry(name, files[name]) for name in asked if name in files])


@_reading
def _resolve(hub: Hub, names: Any, query: Any, headers: Any, body: bytes, commit: str, files: Any) -> Reply:
    data = files.get(names["path"])
    if data is None:
        return _refusal(404, "EntryNotFound", "Entry not found")
    if _is_large(names["path"]):
        return 302, {"Location": f"{hub.url}/cdn/{_sha256(data)}"}, b""
    return _ranged(hub, data, headers)


def _cdn(hub: Hub, names: Any, query: Any, headers: Any, body: bytes, token: str) -> Reply:
    every = (data for one in hub.datasets.values() for files in one.commits.values() for data in files.values())
    return _ranged(hub, next(data for data in every if _sha256(data) == names["sha256"]), headers)


def _ranged(hub: Hub, data: bytes, headers: Any) -> Reply:
    match = re.fullmatch(r"bytes=(\d+)-(\d*)", headers.get("Range") or "")
    if match is None:
        hub.downloaded += len(data)
        return 200, {}, data
    first, last = int(match[1]), min(int(match[2] or len(data)), len(data) - 1)
    if first > last:
        return _refusal(416, "", "The requested range is not satisfiable")
    hub.downloaded += last + 1 - first
    return 206, {"Content-Range": f"bytes {first}-{last}/{len(data)}"}, data[first : last + 1]


def _writing(respond: Any) -> Any:
    """A route that needs the token."""

    def checked(hub: Hub, names: Any, query: Any, headers: Any, body: bytes, token: str) -> Reply:
        if not token:
            return _refusal(401, "", "Invalid username or password.")
        answer: Reply = respond(hub, names, body)
        return answer

    return checked


@_writing
def _create(hub: Hub, names: Any, body: bytes) -> Reply:
    asked = json.loads(body)
    name = f"{asked['organization']}/{asked['name']}"
    if asked["organization"] != "org":
        return _refusal(403, "", f"You don't have the rights to create a dataset under the namespace {name}")
    if name in hub.datasets:
        about = {"error": "You already created this dataset repo", "url": f"{hub.url}/datasets/{name}"}
        return 409, {"Content-Type": "application/json"}, json.dumps(about).encode()
    hub.dataset(name).private = asked.get("visibility") == "private" or asked.get("private", False)
    hub.dataset(name).commit({".gitattributes": b"*.parquet filter=lfs\n"})
    return _json({"url": f"{hub.url}/datasets/{name}"})


@_writing
def _validate(hub: Hub, names: Any, body: bytes) -> Reply:
    front = re.match(r"---\n(.*?)\n---\n", json.loads(body)["content"], re.DOTALL)
    assert front is not None
    yaml.safe_load(front[1])
    return _json({"errors": [], "warnings": []})


@_writing
def _preupload(hub: Hub, names: Any, body: bytes) -> Reply:
    found = ((one["path"], "lfs" if _is_large(one["path"]) else "regular") for one in json.loads(body)["files"])
    return _json({"files": [{"path": path, "uploadMode": mode, "shouldIgnore": False} for path, mode in found]})


@_writing
def _lfs_batch(hub: Hub, names: Any, body: bytes) -> Reply:
    objects = [
        one if one["oid"] in hub.large else one | {"actions": {"upload": {"href": f"{hub.url}/lfs/{one['oid']}"}}}
        for one in json.loads(body)["objects"]
    ]
    return _json({"transfer": "basic", "objects": objects})


def _lfs_put(hub: Hub, names: Any, query: Any, headers: Any, body: bytes, token: str) -> Reply:
    if _sha256(body) != names["sha256"]:
        return _refusal(400, "", "other bytes")
    hub.large[names["sha256"]] = body
    return 200, {}, b""


@_writing
def _commit(hub: Hub, names: Any, body: bytes) -> Reply:
    dataset = hub.dataset(names["repository"])
    files = dict(dataset.files)
    for line in map(json.loads, body.splitlines()):
        value = line["value"]
        if line["key"] == "file":
            files[value["path"]] = base64.b64decode(value["content"])
        elif line["key"] == "lfsFile":
            files[value["path"]] = hub.large[value["oid"]]
        elif line["key"] == "deletedFile":
            del files[value["path"]]
        elif line["key"] != "header":
            return _refusal(501, "", f"{line['key']}: this stand-in does not know it")
    number = dataset.commit(files)
    return _json({"commitUrl": f"{hub.url}/datasets/org/x/commit/{number}", "commitOid": number})


_AT = r"/api/datasets/(?P<repository>[^/]+/[^/]+)"
_ROUTES: tuple[tuple[str, Any], ...] = (
    (rf"GET {_AT}/revision/(?P<revision>[^/]+)", _about),
    (rf"GET {_AT}/tree/(?P<revision>[^/]+)(/(?P<path>.*))?", _tree),
    (rf"POST {_AT}/paths-info/(?P<revision>[^/]+)", _paths_info),
    (r"GET /datasets/(?P<repository>[^/]+/[^/]+)/resolve/(?P<revision>[^/]+)/(?P<path>.+)", _resolve),
    (r"POST /api/repos/create", _create),
    (r"POST /api/validate-yaml", _validate),
    (rf"POST {_AT}/preupload/main", _preupload),
    (r"POST /datasets/(?P<repository>[^/]+/[^/]+)[.]git/info/lfs/objects/batch", _lfs_batch),
    (r"PUT /lfs/(?P<sha256>\w+)", _lfs_put),
    (rf"POST {_AT}/commit/main", _commit),
    (r"GET /cdn/(?P<sha256>\w+)", _cdn),
)


def _is_large(name: str) -> bool:
    """Whether the file is in LFS."""
    return name.endswith(".parquet")


def _entry(name: str, data: bytes) -> dict[str, Any]:
    git = hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()
    large = {"lfs": {"oid": _sha256(data), "size": len(data), "pointerSize": 130}} if _is_large(name) else {}
    return {"type": "file", "path": name, "size": len(data), "oid": git, **large}


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _json(value: Any, **headers: str) -> Reply:
    return 200, {"Content-Type": "application/json", **headers}, json.dumps(value).encode()


def _refusal(status: int, code: str, message: str) -> Reply:
    headers = {"X-Error-Message": message} | ({"X-Error-Code": code} if code else {})
    return status, headers, json.dumps({"error": message}).encode()


class _Handler(FaultyHandler):
    hub: Hub

    def respond(self, body: bytes) -> Reply:
        return self.hub.answer(self.command, self.path, self.headers, body)


@contextlib.contextmanager
def serve(hub: Hub) -> Iterator[None]:
    """Answer requests to `hub.url` within the block."""
    with serving(_Handler, hub=hub, faults=hub.faults) as port:
        hub.url = f"http://127.0.0.1:{port}"
        yield
