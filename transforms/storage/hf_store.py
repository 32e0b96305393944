"""Files of datasets on Hugging Face's Hub, through huggingface_hub; read only.

`HF_ENDPOINT` names another Hub. The token is that of `HF_TOKEN` or `hf auth login`; no setting has one.
"""

from __future__ import annotations

import contextlib
import errno
import re
import urllib.parse
from collections.abc import Iterator, Sequence
from typing import IO, Any, NamedTuple, NoReturn

from layerbeam.transforms.flow.commits import InputFile
from layerbeam.transforms.storage.store import Store, range_header

FORM = "hf://datasets/org/name@revision/path"
NOT_WRITTEN = "the Hub is not written to by a run; give a folder, and then run: layerbeam publish FOLDER org/name"
_PATH = re.compile(
    r"hf://datasets/(?P<repository>[^/@]+/[^/@]+)(@(?P<revision>refs/(convert|pr)/[^/]+|[^/]+))?/(?P<name>.*)",
    re.DOTALL,
)
_PAGE = re.compile(
    r"https?://(www\.)?(huggingface\.co|hf\.co)/datasets/(?P<repository>[^/?#]+/[^/?#]+)"
    r"(/(tree|blob|resolve|raw)/(?P<revision>refs/(convert|pr)/[^/?#]+|[^/?#]+)(/(?P<name>[^?#]*))?)?/?([?#].*)?"
)
_SHORT = {"~parquet": "refs/convert/parquet"}  # as huggingface_hub and DuckDB have it
_COMMIT = re.compile(r"[0-9a-f]{40}")
RETRIES = 10  # within a minute or two
PASSING = (408, 429, 500, 502, 503, 504)  # answers that another try may change
_TIMEOUT_SECONDS = 60
_MOST_BYTES = 1 << 50  # of a file


class _Place(NamedTuple):
    """A file, or a folder, of a dataset. `revision`: a branch, a tag or a commit."""

    repository: str
    revision: str
    name: str

    @property
    def quoted_revision(self) -> str:
        return urllib.parse.quote(self.revision, safe="")

    @property
    def path(self) -> str:
        return f"hf://datasets/{self.repository}@{self.quoted_revision}/{self.name}"


def is_path(path: str) -> bool:
    """Whether the path names files of a dataset."""
    return _PATH.fullmatch(path) is not None


def content_place(path: str, version: str) -> str:
    """The same text for a file of a dataset at every commit that has it with this content."""
    place = _split(path)
    return f"{place.repository}/{place.name}@{version}"


def _split(path: str) -> _Place:
    found = _PATH.fullmatch(path)
    if found is None:
        raise ValueError(f"is not of the form {FORM}")
    revision = urllib.parse.unquote(found["revision"] or "main")
    return _Place(found["repository"], _SHORT.get(revision, revision), found["name"])


def of_page(address: str) -> str | None:
    """The path of what a page of the Hub shows of a dataset; None for other addresses.

    >>> of_page("https://huggingface.co/datasets/org/name/blob/main/a.csv")
    'hf://datasets/org/name@main/a.csv'
    """
    found = _PAGE.fullmatch(address.strip())
    if found is None:
        return None
    at = f"@{found['revision']}" if found["revision"] else ""
    return f"hf://datasets/{found['repository']}{at}/{found['name'] or '*.parquet'}"


@contextlib.contextmanager
def explain(endpoint: str, repository: str, revision: str, path: str) -> Iterator[None]:
    """Convert errors of huggingface_hub to OSError, each in a sentence that says what to do."""
    try:
        yield
    except Exception as error:
        cause: Any = error.__cause__ if isinstance(error, RuntimeError) else None  # of a thread that uploads
        raise OSError(*_explanation(cause or error, endpoint, repository, revision), path) from error


def _explanation(error: Any, endpoint: str, repository: str, revision: str) -> tuple[int, str]:
    """(errno, what is wrong and what to do)."""
    from huggingface_hub import errors

    page = f"{endpoint}/datasets/{repository}"
    if isinstance(error, errors.GatedRepoError):
        return errno.EACCES, f"access is restricted: ask for it at {page}, and give your token in HF_TOKEN"
    if isinstance(error, errors.RepositoryNotFoundError):
        what = f"there is no {page} for this token; check the name, and give a token that may read it in HF_TOKEN"
        what += f"; the form is {FORM}, with an owner, such as rajpurkar/squad for squad"
        return errno.EACCES, what
    if isinstance(error, errors.RevisionNotFoundError):
        return errno.EINVAL, f"{page} has no branch, tag or commit {revision}"
    if isinstance(error, errors.EntryNotFoundError):
        return errno.ENOENT, "No such file"
    if isinstance(error, errors.HfHubHTTPError):
        status, said = error.response.status_code, error.server_message or " ".join(str(error).split())
        hint = {
            401: "; check the token in HF_TOKEN (a public dataset is read without one)",
            403: "; give a token in HF_TOKEN that may do this",
            429: "; wait some minutes, or give a token in HF_TOKEN, which may ask more often",
        }.get(status, "")
        return errno.EACCES if status in (401, 403) else errno.EIO, f"{endpoint} answers {status}: {said}{hint}"
    if isinstance(error, OSError):
        return error.errno or errno.EIO, error.strerror or str(error)
    if isinstance(error, ValueError):  # a name that no dataset has
        return errno.EINVAL, str(error)
    if isinstance(error, KeyError | TypeError | AttributeError):
        return errno.EIO, f"{endpoint} gives an answer that is none of the Hub ({type(error).__name__}: {error})"
    # Of its HTTP client, which differs between versions.
    return errno.EIO, f"{endpoint} cannot be reached ({type(error).__name__}: {error})"


class HfStore(Store):
    """`InputFile.version` is the hash of a file's content: of its blob in git, or its SHA-256 in LFS. It has no time.

    At a commit nothing changes: call `pin` first, once for all that reads.
    """

    def __init__(self) -> None:
        from huggingface_hub import HfApi, hf_api, utils

        self._api: Any = HfApi()
        self._as_found: Any = hf_api.RepoFile
        self._http: Any = utils

    def pin(self, path: str) -> str:
        """The path, or glob, at the commit that its revision names now."""
        place = _split(path)
        if not _COMMIT.fullmatch(place.revision):
            address = f"api/datasets/{place.repository}/revision/{place.quoted_revision}"
            with self._explain(place):
                commit = self._ask("GET", address).json()["sha"]
                if not _COMMIT.fullmatch(commit):
                    raise ValueError(f"{self._api.endpoint} says that the commit is {commit!r:.60}")
            place = place._replace(revision=commit)
        return place.path

    def list(self, prefix: str) -> Iterator[InputFile]:
        place = _split(prefix)
        folder = place.name.rpartition("/")[0]
        given = {"revision": place.revision, "repo_type": "dataset", "recursive": True}
        with contextlib.suppress(FileNotFoundError), self._explain(place):
            for found in self._api.list_repo_tree(place.repository, folder or None, **given):
                if hasattr(found, "blob_id") and found.path.startswith(place.name):
                    yield _as_file(prefix.removesuffix(place.name) + found.path, found)

    def stat(self, path: str) -> InputFile | None:
        place = _split(path)
        address = f"api/datasets/{place.repository}/paths-info/{place.quoted_revision}"
        with self._explain(place):
            found = self._ask("POST", address, data={"paths": [place.name], "expand": False}).json()
            return next((_as_file(path, self._as_found(**one)) for one in found if one["type"] == "file"), None)

    def read(self, path: str, start: int, end: int | None) -> bytes:
        place = _split(path)
        asked = range_header(start, end)
        address = f"datasets/{place.repository}/resolve/{place.quoted_revision}/{urllib.parse.quote(place.name)}"
        with self._explain(place):
            answer = self._ask("GET", address, {"Accept-Encoding": "identity", **asked})
        data: bytes = b"" if answer.status_code == 416 else answer.content  # 416: behind the end
        return data if answer.status_code != 200 or not asked else data[start:end]

    def _ask(self, method: str, address: str, headers: Any = None, **given: Any) -> Any:
        """The Hub's answer, asked again for about a minute if an error may pass. Errors are those of its client."""
        answer = self._http.http_backoff(
            method,
            f"{self._api.endpoint}/{address}",
            headers=self._http.build_hf_headers(headers=headers),
            timeout=_TIMEOUT_SECONDS,
            max_retries=RETRIES,
            retry_on_status_codes=PASSING,
            **given,
        )
        if answer.status_code != 416:
            self._http.hf_raise_for_status(answer)
        return answer

    def _explain(self, place: _Place) -> Any:
        return explain(self._api.endpoint, place.repository, place.revision, place.path)

    def write(self, path: str, file: IO[bytes], size: int) -> None:
        _refuse(path)

    def create(self, path: str, data: bytes) -> bool:
        _refuse(path)

    def delete(self, paths: Sequence[str]) -> None:
        _refuse(paths[0])


def _refuse(path: str) -> NoReturn:
    raise OSError(errno.EROFS, NOT_WRITTEN, path)


def _as_file(path: str, found: Any) -> InputFile:
    if not isinstance(found.size, int) or not 0 <= found.size < _MOST_BYTES:
        raise ValueError(f"the Hub says that its size is {found.size!r:.60}")
    return InputFile(path, found.size, 0.0, found.lfs.sha256 if found.lfs else found.blob_id)
