"""Which runner, with which of Beam's options. No runner, `local` and `DirectRunner` all mean the local runner.

That is Beam's FnApiRunner with threads, by name: `DirectRunner` first tries to download another runner (Prism) and then
ignores how many workers were asked for.
"""

from __future__ import annotations

import dataclasses
import logging
import os
import shlex
import sys
from collections.abc import Iterable, Mapping
from typing import Any, NoReturn

from apache_beam.options.pipeline_options import DirectOptions, PipelineOptions, StandardOptions, _BeamArgumentParser
from apache_beam.portability.api import beam_provision_api_pb2
from apache_beam.runners.portability.fn_api_runner import fn_runner
from apache_beam.runners.portability.portable_runner import JobServiceHandle
from apache_beam.transforms.environments import EmbeddedPythonGrpcEnvironment, SubprocessSDKEnvironment

from pipeline.errors import UsageError, did_you_mean

_LOCAL = ("local", "directrunner", "fnapirunner")


class _Parser(_BeamArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise UsageError(f"Beam option: {message}")


def cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def as_arguments(settings: Mapping[str, Any]) -> list[str]:
    """Options of the configuration as Beam's command line has them.

    >>> as_arguments({"project": "p", "no_auth": True, "streaming": False, "labels": ["a=1", "b=2"]})
    ['--project=p', '--no_auth', '--labels=a=1', '--labels=b=2']
    """
    arguments = []
    for name, value in settings.items():
        if isinstance(value, bool) or value is None:
            arguments += [f"--{name}"] if value else []
        else:
            arguments += [f"--{name}={item}" for item in (value if isinstance(value, list) else [value])]
    return arguments


def check_settings(settings: Mapping[str, Any]) -> None:
    """UsageError for an option in the configuration's `beam` that Beam does not know, or a value of a wrong type."""
    unknown, known = _unknown(as_arguments(settings))
    if unknown is not None:
        hint = did_you_mean(unknown, known).replace("--", "")
        raise UsageError(f"beam.{unknown.removeprefix('--')}: Beam has no such option{hint}")


def check_arguments(arguments: list[str], own_options: Iterable[str]) -> None:
    """UsageError for an option that Beam does not know, which Beam alone drops silently, a value of a wrong type, and
    what is no option.

    `own_options`: the command's, to be named where one is near.
    """
    unknown, known = _unknown(arguments)
    if unknown is not None and not unknown.startswith("-"):
        raise UsageError(f"{unknown}: unexpected argument")
    if unknown is not None:
        hint = did_you_mean(unknown, [*own_options, *known])
        raise UsageError(f"{unknown}: neither layerbeam nor Beam has such an option{hint}")


def _unknown(arguments: list[str]) -> tuple[str | None, list[str]]:
    """(the first option that Beam does not know, all that it knows)."""
    parser = _Parser(allow_abbrev=False, add_help=False)
    for options in {str(cls): cls for cls in PipelineOptions.__subclasses__()}.values():
        options._add_argparse_args(parser)
    _, unknown = parser.parse_known_args(arguments)
    known = [option for action in parser._actions for option in action.option_strings]
    return (unknown[0].split("=")[0] if unknown else None), known


@dataclasses.dataclass(frozen=True)
class LocalRunner:
    """Beam's local runner with its options. `threads`: of each process; `processes`: beside this one, or none."""

    options: PipelineOptions
    runner: Any
    threads: int
    processes: int | None = None

    @property
    def workers(self) -> int:
        """Blocks in hand at once."""
        return self.processes or self.threads


def local_runner(
    arguments: list[str], runner: str | None, *, workers: int | None, processes: int | None = None
) -> LocalRunner:
    """The local runner with `workers` threads, one for each core if None; or with processes that share the threads."""
    if runner is not None and str(runner).lower() not in _LOCAL:
        if "dask" in str(runner).lower():
            raise UsageError(
                f"runner: {runner} cannot be used: Beam's runner for Dask loses what a bundle's end puts out (of 600 "
                "rows it wrote 595 and said DONE)"
            )
        raise UsageError(f"runner: {runner} is not there yet; so far: local")
    threads = workers or cores()
    options = PipelineOptions(arguments)
    options.view_as(StandardOptions).runner = "FnApiRunner"
    if processes is None:
        # Threads, as direct_running_mode: multi_threading has them, but for one thing: Beam's buffer sends what it
        # holds once a second, also in the middle of an element that is being written to it. In 6 of 12 runs over
        # 10,000 files elements were torn that way. -1: only when it is full, or the bundle ends.
        environment = EmbeddedPythonGrpcEnvironment(data_buffer_time_limit_ms=-1)
    else:
        threads = max(threads // processes, 1)
        environment = SubprocessSDKEnvironment.from_command_string(_worker_command())
    logging.getLogger(fn_runner.__name__).addFilter(_is_for_us)
    direct = options.view_as(DirectOptions)
    direct.direct_running_mode = "in_memory"  # with any other Beam takes an environment of its own instead
    direct.direct_num_workers = processes or threads
    # As Beam's own DirectRunner makes it, so that workers see the options.
    encoded = JobServiceHandle.encode_pipeline_options(options.get_all_options())
    provision = fn_runner.ExtendedProvisionInfo(beam_provision_api_pb2.ProvisionInfo(pipeline_options=encoded))
    made = fn_runner.FnApiRunner(default_environment=environment, provision_info=provision)
    return LocalRunner(options, made, threads, processes)


def _is_for_us(record: logging.LogRecord) -> bool:
    """Whether a line of the log is not Beam's advice to take threads by its running mode: we have them otherwise."""
    return "direct_running_mode" not in record.getMessage()


def _worker_command() -> str:
    """What Beam gives to a shell to start a worker."""
    root = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    # Our packages have names that others have, too: ours come first, also before what lies in the current folder.
    start = f"import sys; sys.path[0] = {root!r}; from pipeline.worker_process import main; main({os.getpid()})"
    return f"exec {shlex.join([sys.executable, '-c', start])}"  # no shell stays between
