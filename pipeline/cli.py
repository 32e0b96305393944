"""The command. Nothing heavy is imported before it is needed: `--help` and a wrong configuration answer at once."""

from __future__ import annotations

import argparse
import contextlib
import json
import logging
import os
import re
import signal
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

from pipeline.errors import BusyError, UsageError

if TYPE_CHECKING:
    from pipeline.config import Config
    from pipeline.resolve import Job

DONE, FAILED, USAGE, INCOMPLETE, BUSY = 0, 1, 2, 3, 4


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message} (see `{self.prog} --help`)")


def _parser(version: str) -> _Parser:
    parser = _Parser(prog="layerbeam", description="The vectors inside BERT, for whole corpora.", allow_abbrev=False)
    parser.add_argument("--version", action="version", version=f"layerbeam {version}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)

    run = commands.add_parser(
        "run",
        help="run a configuration; started again, it goes on where it stopped",
        description="Run a configuration. Started again, it goes on where it stopped.",
        epilog="Any of Beam's own options may follow, for example --temp_location=... "
        "Exit status: 0 done; 1 failed; 2 wrong configuration or usage; 3 ended, but files were left out or too many "
        "records rejected; 4 another run is at work in the folder; 130, 143 interrupted.",
        allow_abbrev=False,
    )
    run.add_argument("config", metavar="CONFIG", help="a YAML file")
    run.add_argument("--input", metavar="GLOB", action="append", help="instead of input.files; may be given again")
    run.add_argument("--output", metavar="PATH", help="instead of output.path")
    run.add_argument("--set", metavar="K=V", action="append", default=[], help="any setting: encoder.max_seq_length=64")
    run.add_argument(
        "--workers", metavar="N", type=_positive, help="blocks in hand at once; default: one for each core"
    )
    run.add_argument("--runner", metavar="NAME", help="so far: local")
    run.add_argument("--force", action="store_true", help="start although the disk looks too small")
    run.add_argument("--remove-gone", action="store_true", help="delete the rows of input files that are gone")
    run.add_argument("--json", action="store_true", help="the closing summary as JSON")
    run.add_argument("-v", "--verbose", action="store_true", help="what TensorFlow and Beam log, and tracebacks")

    show = commands.add_parser("show", help="what is in an output folder, of a finished run or an unfinished one")
    show.add_argument("output", metavar="OUT", help="the output folder")
    show.add_argument("--json", action="store_true", help="as JSON")
    show.add_argument("-v", "--verbose", action="store_true", help="tracebacks")
    return parser


def _positive(text: str) -> int:
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no number from 1 up")
    return int(text)


def main(arguments: Sequence[str] | None = None, *, version: str) -> int:
    """Run the command; the exit status of section "Exit status" of `layerbeam run --help`."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    verbose = "-v" in given or "--verbose" in given
    try:
        options, beam_arguments = _parser(version).parse_known_args(given)
        if options.command == "show":
            if beam_arguments:
                raise UsageError(f"{beam_arguments[0]}: `layerbeam show` has no such option")
            return _show(options)
        return _run(options, beam_arguments)
    except UsageError as error:
        _complain(str(error))
        return USAGE
    except BusyError as error:
        _complain(str(error))
        return BUSY
    except Exception as error:
        if verbose:
            raise
        _complain(f"failed: {_cause(error)}")
        _complain("what is committed stays: the same command goes on from there (-v shows more of the error)")
        return FAILED


def _complain(message: str) -> None:
    for line in message.splitlines():
        print(f"layerbeam: {line}", file=sys.stderr)


def _say(message: str) -> None:
    print(message, file=sys.stderr)


def _cause(error: BaseException) -> str:
    """The worker's own error: Beam hands on a traceback as text."""
    lines = [line for line in str(error).splitlines() if re.match(r"^(\w+\.)*\w*(Error|Exception|Interrupt)\b", line)]
    cause = lines[-1] if lines else f"{type(error).__name__}: {error}"
    return cause.removeprefix("RuntimeError: ").split(" [while running")[0].strip()


def _show(options: argparse.Namespace) -> int:
    _quiet_logs(options.verbose)
    from pipeline import summary

    what = summary.summarize(options.output)
    with _reader_may_leave():
        if options.json:
            print(json.dumps(what, indent=1))
        else:
            summary.print_summary(what)
            summary.print_rows(what)
    return DONE


@contextlib.contextmanager
def _reader_may_leave() -> Iterator[None]:
    """Whoever reads the output may go before its end (`| head`): nothing is wrong, and the exit status stays."""
    try:
        yield
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _check_file_systems(config: Config) -> None:
    """UsageError for a path whose scheme Beam does not know here."""
    from apache_beam.io.filesystems import FileSystems

    for path in (*config.input.files, config.output.path):
        try:
            FileSystems.get_filesystem(path)
        except ValueError as error:
            raise UsageError(
                f"{path}: Beam has no file system for {FileSystems.get_scheme(path)}:// here; a local path has no "
                "scheme, gs:// needs the extra gcp: pip install 'layerbeam[gcp]'"
            ) from error


def _load_config(options: argparse.Namespace) -> Config:
    import yaml

    from pipeline import config

    overrides: dict[str, Any] = {}
    for item in options.set:
        key, equals, value = item.partition("=")
        if not equals:
            raise UsageError(f"--set {item}: is not of the form K=V, such as encoder.max_seq_length=64")
        try:
            overrides[key] = yaml.safe_load(value)
        except (yaml.YAMLError, ValueError) as error:
            raise UsageError(f"--set {item}: the value is not YAML") from error
    if options.input:
        overrides["input.files"] = options.input
    if options.output is not None:
        overrides["output.path"] = options.output
    return config.load(options.config, overrides)


def _run(options: argparse.Namespace, beam_arguments: list[str]) -> int:
    config = _load_config(options)
    from pipeline.fit import open_for

    encoder = open_for(config)
    _quiet_logs(options.verbose)
    from pipeline import runners
    from pipeline.resolve import resolve

    job = resolve(config, encoder)

    settings = dict(config.beam)
    runner = options.runner or settings.pop("runner", None)
    configured = runners.as_arguments(settings)
    runners.check_settings(settings)
    own = ("--workers", "--input", "--output", "--set", "--force", "--remove-gone", "--runner", "--json", "--verbose")
    runners.check_arguments(beam_arguments, own)
    pipeline_options, beam_runner, threads = runners.local_options(configured + beam_arguments, runner, options.workers)
    _check_file_systems(config)

    with _only_writer(job.output.path):
        return _run_locally(job, options, pipeline_options, beam_runner, threads)


def _run_locally(job: Job, options: argparse.Namespace, pipeline_options: Any, runner: Any, threads: int) -> int:
    import apache_beam as beam
    from apache_beam.io.filesystem import BeamIOError

    from pipeline import estimate
    from pipeline.build import build
    from pipeline.manifest import SUCCESS, describe_views
    from pipeline.resume import find_work
    from pipeline.runlog import RunLog
    from transforms import filesystem
    from transforms.records import InputFile
    from transforms.threads import load_tensorflow

    _check_output(job)
    try:
        work = find_work(job.config.input.files, job.output.path, remove_gone=options.remove_gone)
    except BeamIOError as error:
        raise UsageError(f"input.files: {error}") from error
    if not work.known and not work.to_read:
        raise UsageError(f"input.files: no file matches {', '.join(job.config.input.files)}")
    files = [report for report in work.known if isinstance(report, InputFile)]
    if work.is_nothing and _is_finished(job):
        _say("nothing to do: all of the input is embedded already")
        _report(job, options)
        return DONE
    load_tensorflow(threads, quiet=not options.verbose)
    _announce(job, estimate.estimate(job, work), force=options.force)
    started = time.monotonic()
    inputs = {
        "files": len(files),
        "bytes": sum(file.size for file in files),
        "compressed": any(filesystem.is_compressed(file.path) for file in files),
    }
    log = _begin_log(RunLog, job, inputs, describe_views(job.views), threads)
    stop = _Stop()
    try:
        with stop:
            pipeline = beam.Pipeline(runner=runner, options=pipeline_options)
            build(pipeline, job, num_threads=threads, remove_gone=options.remove_gone)
            result = pipeline.run()
            result.wait_until_finish()
    except BaseException as error:
        # The runner makes a RuntimeError of an interrupt that comes while it works.
        state = "failed" if stop.number is None else "interrupted"
        with contextlib.suppress(OSError):  # a full disk, say, must not hide the cause
            log.end(state, error=_cause(error))
        if stop.number is None:
            raise
        _complain("interrupted; what is committed stays: run the same command again to go on")
        # The runner's threads may still hold a block, and nothing ends them but the end of the process. What they left
        # unfinished lies under a name of its own, and goes with the next run.
        os._exit(128 + stop.number)
    complete = filesystem.exists(filesystem.join(job.output.path, SUCCESS))
    seconds = time.monotonic() - started
    log.end("done" if complete else "incomplete", seconds=round(seconds, 1), counts=_counters(result))
    _report(job, options)
    _say(
        f"{seconds:.1f} s with {estimate.count_noun(threads, 'worker')}; look inside: layerbeam show {job.output.path}"
    )
    return DONE if complete else INCOMPLETE


class _Stop:
    """While it is entered, SIGINT and SIGTERM raise KeyboardInterrupt in the main thread, and `number` says which."""

    def __init__(self) -> None:
        self.number: int | None = None
        self._before: dict[int, Any] = {}

    def __enter__(self) -> _Stop:
        if threading.current_thread() is threading.main_thread():
            self._before = {number: signal.signal(number, self._stop) for number in (signal.SIGINT, signal.SIGTERM)}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _stop(self, number: int, _: Any) -> None:
        self.number = number
        raise KeyboardInterrupt


def _report(job: Job, options: argparse.Namespace) -> None:
    from pipeline import summary

    what = summary.summarize(job.output.path)
    with _reader_may_leave():
        if options.json:
            print(json.dumps(what, indent=1))
        else:
            summary.print_summary(what)


def _quiet_logs(verbose: bool) -> None:
    logging.basicConfig(level=logging.INFO if verbose else logging.CRITICAL, format="%(name)s: %(message)s")


@contextlib.contextmanager
def _only_writer(output_path: str) -> Iterator[None]:
    """Hold the output folder. BusyError while another run on this machine does; a dead one's hold is gone with it.

    On object stores nothing can be held through Beam: two runs of one fingerprint write the same bytes there.
    """
    import fcntl

    from transforms import filesystem

    if not filesystem.is_local(output_path):
        yield
        return
    try:
        os.makedirs(output_path, exist_ok=True)
        folder = os.open(output_path, os.O_RDONLY | os.O_DIRECTORY)
    except OSError as error:
        raise UsageError(f"output.path: cannot write to {output_path}: {error.strerror}") from error
    try:
        try:
            fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise BusyError(f"{output_path}: another run is at work in this folder; wait for it or stop it") from error
        yield
    finally:
        os.close(folder)
        with contextlib.suppress(OSError):
            os.rmdir(output_path)  # if nothing came of it


def _check_output(job: Job) -> None:
    """UsageError where the folder holds something else, or a run with other settings."""
    from pipeline.manifest import differences
    from pipeline.runlog import load_runs
    from transforms import filesystem
    from transforms.write import TEMPORARY

    path = job.output.path
    runs = load_runs(path)
    if not runs:
        if filesystem.is_local(path) and (foreign := sorted(set(os.listdir(path)) - {TEMPORARY})):
            raise UsageError(
                f"output.path: {path} is not empty and holds no layerbeam run ({', '.join(foreign[:3])}); "
                "give a new folder"
            )
        return
    if runs[-1]["fingerprint"] != job.head.fingerprint:
        changed = differences(runs[-1]["identity"], job.head.identity)
        raise UsageError(
            f"output.path: {path} holds a run with other settings, and rows of both do not belong together; "
            f"give a new folder, or take the settings back:\n" + "\n".join(f"  {line}" for line in changed)
        )


def _is_finished(job: Job) -> bool:
    """Whether an earlier run ended well, also by what this one allows to be rejected."""
    from pipeline.manifest import MANIFEST, SUCCESS, load_json
    from transforms import filesystem

    manifest = load_json(filesystem.join(job.output.path, MANIFEST)) or {}
    same = manifest.get("settings", {}).get("input", {}).get("max_rejected") == job.config.input.max_rejected
    return same and filesystem.exists(filesystem.join(job.output.path, SUCCESS))


def _announce(job: Job, expected: Any, *, force: bool) -> None:
    """Say how much will be written. UsageError where the disk has less, unless `force`."""
    from pipeline import estimate

    lines = [estimate.describe(expected, view) for view in job.views]
    _say("to write: " + "; ".join(lines))
    free = estimate.free_bytes(job.output.path)
    if free is not None and expected.total_bytes > free and not force:
        raise UsageError(
            f"output.path: {job.output.path} has {estimate.size_text(free)} free, and this run writes "
            f"about {estimate.size_text(expected.total_bytes)}; take fewer layers, level text, dims, float16 "
            "or another disk; --force starts all the same"
        )


def _begin_log(log: Any, job: Job, inputs: dict[str, Any], views: dict[str, Any], workers: int) -> Any:
    try:
        return log.begin(job.output.path, job.head.to_json(), inputs=inputs, views=views, workers=workers)
    except OSError as error:
        raise UsageError(f"output.path: cannot write to {job.output.path}: {error.strerror or error}") from error


def _counters(result: Any) -> dict[str, int]:
    """What this start of the program did, by Beam's counters."""
    from transforms.metrics import NAMESPACE

    counters = result.metrics().query()["counters"]
    return {c.key.metric.name: c.committed for c in counters if c.key.metric.namespace == NAMESPACE}
