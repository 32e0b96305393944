"""Shows a fault of Apache Beam's Python SDK: the periodic flush of its data channel cuts elements in two.

    python tools/beam_torn_elements.py

It needs nothing but `apache-beam`. It exits with status 1 if an element was torn, and with 0 if none was.

`TimeBasedBufferingClosableOutputStream` (apache_beam/runners/worker/data_plane.py) flushes from a thread of its own.
`_flush_lock` excludes two flushes at once, but not a flush while another thread encodes an element into the stream.
Such a flush sends the first half of the element in one message and the rest in the next. The receiver takes each
message for whole elements. A comment on `maybe_flush` says that flushes must be explicit "to avoid flushing partial
elements"; the periodic flush is not.

The stream is used if `data_buffer_time_limit_ms` is positive: in the local runner with the running mode multi_threading
(1,000 ms), and on workers with the experiment of that name. Here the coder pauses within each element, so that the
fault does not depend on chance. Without a pause, 6 of 12 runs over 10,000 files had torn elements.
"""

from __future__ import annotations

import os
import resource
import sys
import threading
import time
from typing import Any

import apache_beam as beam
from apache_beam.coders import coder_impl, coders, typecoders
from apache_beam.runners.portability.fn_api_runner import fn_runner
from apache_beam.runners.worker import data_plane
from apache_beam.transforms.environments import EmbeddedPythonGrpcEnvironment

_FLUSH_MILLISECONDS = 5
_PAUSE_SECONDS = 0.02
_ELEMENTS = 50
_MEMORY_BYTES = 4 << 30
_PATIENCE_SECONDS = 60
_BODY = b"0123456789"


class Body:
    """An element: always the same bytes."""


class _BodyCoderImpl(coder_impl.StreamCoderImpl):
    def encode_to_stream(self, value: Body, out: Any, nested: bool) -> None:
        out.write(_BODY[:4])
        time.sleep(_PAUSE_SECONDS)
        out.write(_BODY[4:])

    def decode_from_stream(self, in_stream: Any, nested: bool) -> Body:
        found = in_stream.read(len(_BODY))
        if found != _BODY:
            raise ValueError(f"a torn element: {found!r} instead of {_BODY!r}")
        return Body()


class BodyCoder(coders.FastCoder):
    """The coder of `Body`: ten bytes, in two writes with a pause between them."""

    def _create_impl(self) -> coder_impl.CoderImpl:
        return _BodyCoderImpl()

    def is_deterministic(self) -> bool:
        return True


def torn_messages(flush_milliseconds: int) -> list[bytes]:
    """The messages of the data channel's stream that do not hold whole elements."""
    messages: list[bytes] = []
    stream = data_plane.ClosableOutputStream.create(messages.append, messages.append, flush_milliseconds)
    impl = _BodyCoderImpl()
    for _ in range(_ELEMENTS):
        impl.encode_to_stream(Body(), stream, True)
        stream.maybe_flush()
    stream.close()
    return [message for message in messages if message.replace(_BODY, b"")]


def run_pipeline(flush_milliseconds: int) -> None:
    """Print how many elements come out of a pipeline with one shuffle, or its error."""
    environment = EmbeddedPythonGrpcEnvironment(data_buffer_time_limit_ms=flush_milliseconds)
    print(f"pipeline, flushed every {flush_milliseconds} ms (-1: never): ", end="", flush=True)
    try:
        with beam.Pipeline(runner=fn_runner.FnApiRunner(default_environment=environment)) as pipeline:
            made = pipeline | beam.Create(range(_ELEMENTS)) | beam.Map(lambda _: Body()).with_output_types(Body)
            counted = made | beam.Reshuffle() | beam.combiners.Count.Globally()
            _ = counted | beam.Map(lambda count: print(f"{count} of {_ELEMENTS} elements came out", flush=True))
    except BaseException as error:
        print(repr(error), flush=True)


def main() -> int:
    typecoders.registry.register_coder(Body, BodyCoder)
    print(f"apache-beam {beam.__version__}")
    for flush_milliseconds in (0, _FLUSH_MILLISECONDS):
        torn = torn_messages(flush_milliseconds)
        print(f"stream, flushed every {flush_milliseconds} ms (0: never): {len(torn)} messages with part of an element")
    run_pipeline(-1)
    # Half an element may be read as a length of many gigabytes, and a broken channel may never end.
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY_BYTES, resource.RLIM_INFINITY))
    broken = threading.Thread(target=run_pipeline, args=[_FLUSH_MILLISECONDS], daemon=True)
    broken.start()
    broken.join(_PATIENCE_SECONDS)
    if broken.is_alive():
        print(f"no end within {_PATIENCE_SECONDS} s", flush=True)
    os._exit(int(bool(torn)))


if __name__ == "__main__":
    sys.exit(main())
