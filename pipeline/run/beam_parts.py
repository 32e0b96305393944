"""The private parts of Beam that a run uses. A version of Beam that lacks one is refused by name, without a traceback.

The transforms for other pipelines, `encode` and `open_run` use none of them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from importlib import metadata

from layerbeam.pipeline.errors import UsageError

# The oldest and the newest minor version of Beam with which all tests pass.
OLDEST, NEWEST = (2, 70), (2, 77)


@contextlib.contextmanager
def private_parts() -> Iterator[None]:
    """UsageError if Beam lacks something that is imported, called or asked for inside."""
    try:
        yield
    except (ImportError, AttributeError, TypeError) as error:
        oldest, newest, next_one = ("{}.{}".format(*v) for v in (OLDEST, NEWEST, (NEWEST[0], NEWEST[1] + 1)))
        raise UsageError(
            f"apache-beam {metadata.version('apache-beam')} lacks a private part that runs need ({error}); this "
            f"layerbeam is tested with {oldest} to {newest}: pip install 'apache-beam>={oldest},<{next_one}'. "
            "EmbedText, EmbedRows, ModelHandler, encode and open_run do not need it"
        ) from error


with private_parts():
    from apache_beam.options.pipeline_options import _BeamArgumentParser as BeamArgumentParser
    from apache_beam.portability.api import beam_provision_api_pb2
    from apache_beam.runners.portability.fn_api_runner.fn_runner import ExtendedProvisionInfo, FnApiRunner
    from apache_beam.runners.portability.portable_runner import JobServiceHandle
    from apache_beam.runners.worker import sdk_worker_main
    from apache_beam.transforms.environments import EmbeddedPythonGrpcEnvironment, SubprocessSDKEnvironment

    ProvisionInfo = beam_provision_api_pb2.ProvisionInfo
    work = sdk_worker_main.main  # for worker_process.py, which imports it alone, to start sooner
    encode_options = JobServiceHandle.encode_pipeline_options

__all__ = [
    "BeamArgumentParser",
    "EmbeddedPythonGrpcEnvironment",
    "ExtendedProvisionInfo",
    "FnApiRunner",
    "ProvisionInfo",
    "SubprocessSDKEnvironment",
    "encode_options",
    "private_parts",
    "work",
]
