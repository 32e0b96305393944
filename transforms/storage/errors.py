"""The errors of every store's client as OSError."""

from __future__ import annotations

import contextlib
import errno
import re
from collections.abc import Iterator
from typing import Any

LOG_IN = (
    "no credentials were found; run: gcloud auth application-default login, or give a service account's key file in "
    "the variable GOOGLE_APPLICATION_CREDENTIALS"
)
_ERRNO_OF_STATUS = {401: errno.EACCES, 403: errno.EACCES, 404: errno.ENOENT}


@contextlib.contextmanager
def as_os_errors(path: str) -> Iterator[None]:
    """Convert errors to OSError: each store's client has its own exceptions, which Beam may or may not wrap."""
    try:
        yield
    except Exception as error:
        cause: Any = error
        while details := getattr(cause, "exception_details", None):  # of a BeamIOError
            cause = next(iter(details.values()))
        if isinstance(cause, OSError):
            raise
        response = getattr(cause, "response", None)
        if isinstance(response, dict):  # of boto3
            status, message = response["ResponseMetadata"]["HTTPStatusCode"], response["Error"].get("Message")
        else:
            status = getattr(cause, "code", None) or getattr(response, "status_code", None) or 0
            message = getattr(cause, "message", None) or getattr(response, "text", None)
        raise OSError(
            _ERRNO_OF_STATUS.get(status, errno.EIO), reason_of_service(message or str(cause)), path
        ) from error


def reason_of_service(message: str) -> str:
    """The reason in an error of Google's service, without the request before it and the client's remark after it.

    >>> reason_of_service("GET https://host/o?a=b: No such object: in/a: ('Request failed with status code', 404)")
    'No such object: in/a'
    >>> reason_of_service('{"error": {"code": 403, "message": "No access to in."}}')
    'No access to in.'
    """
    in_json = re.search(r'"message": *"([^"]+)"', message)
    plain = re.sub(r"^(\d+ )?[A-Z]+ \S+: |: \('Request failed .*$", "", " ".join(message.split()))
    reason = in_json[1] if in_json is not None else plain
    return f"{reason} ({LOG_IN})" if reason.startswith("Anonymous c") else reason
