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
AZURE_ACCOUNT = "AZURE_STORAGE_ACCOUNT_NAME"
AZURE_LOG_IN = (
    "no credentials were found; give AZURE_STORAGE_ACCOUNT_KEY, AZURE_STORAGE_SAS_TOKEN, or AZURE_CLIENT_ID, "
    "AZURE_CLIENT_SECRET and AZURE_TENANT_ID in the environment; or run: az login, and give AZURE_USE_AZURE_CLI=true"
)
_OBSTORE_DETAILS = "\n\nDebug source:"  # follows the message in obstore's errors
_ERRNO_OF_STATUS = {401: errno.EACCES, 403: errno.EACCES, 404: errno.ENOENT}


@contextlib.contextmanager
def as_os_errors(path: str) -> Iterator[None]:
    """Convert errors to OSError: each store's client has its own exceptions, which Beam may or may not wrap."""
    try:
        yield
    except Exception as error:
        cause: Any = error
        while wrapped := getattr(cause, "exception_details", None):  # of a BeamIOError
            cause = next(iter(wrapped.values()))
        text, details, _ = str(cause).partition(_OBSTORE_DETAILS)
        if isinstance(cause, OSError) and not details:
            raise
        response = getattr(cause, "response", None)
        if isinstance(response, dict):  # of boto3
            status, message = response["ResponseMetadata"]["HTTPStatusCode"], response["Error"].get("Message")
        elif details:
            status, message = _of_obstore(text)
        else:
            status = getattr(cause, "code", None) or getattr(response, "status_code", None) or 0
            message = getattr(cause, "message", None) or getattr(response, "text", None)
        raise OSError(
            _ERRNO_OF_STATUS.get(status, errno.EIO), reason_of_service(message or str(cause)), path
        ) from error


def _of_obstore(text: str) -> tuple[int, str]:
    """(HTTP's status or 0, the reason) in an error of obstore, whose text holds the answer as XML.

    >>> _of_obstore("Object at location a not found: status code: 404: <Error><Message>No blob.\\nTime:1</Message>")
    (404, 'No blob.')
    """
    status, message = re.search(r"status code: (\d+)", text), re.search(r"<Message>([^<\n]+)", text)
    reason = text.removeprefix("Generic MicrosoftAzure error: ") if message is None else message[1]
    if reason == "Account must be specified":
        reason = f"the storage account is not given; name it in the variable {AZURE_ACCOUNT}"
    elif reason.startswith("Error performing token request"):
        reason = f"{AZURE_LOG_IN} ({reason})"
    return int(status[1]) if status is not None else 0, reason


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
