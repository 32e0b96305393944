"""`layerbeam run`, and what `plan` and `extract-features` share with it."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from layerbeam.pipeline.commands.arguments import add_json, add_number, add_verbose
from layerbeam.pipeline.commands.file_systems import announce_loading, is_in_store, set_up_file_systems
from layerbeam.pipeline.commands.results import DONE, INCOMPLETE
from layerbeam.pipeline.errors import UsageError
from layerbeam.pipeline.show.command import print_summary

if TYPE_CHECKING:
    from layerbeam.pipeline.config.job import Job
    from layerbeam.pipeline.config.schema import Config
    from layerbeam.pipeline.run.run import Ended

HELP = "run a configuration; run it again to resume or to embed what is new"
SHOWS = "the logs of TensorFlow and Beam, and tracebacks"
_RUNNERS = ("local", "DataflowRunner", "FlinkRunner", "SparkRunner", "PrismRunner", "PortableRunner")


def add_arguments(command: argparse.ArgumentParser) -> None:
    command.description = "Run a configuration. Run it again to resume it, or to embed what is new."
    command.epilog = (
        "Any of Beam's own options may follow, for example --temp_location=... "
        "Exit status: 0 done; 1 failed; 2 wrong configuration or usage; 3 ended, but files were skipped or more are "
        "missing than input.max_missing allows, too many records were rejected or nothing was embedded; 4 another run "
        "is active in the folder; 130, 143 interrupted."
    )
    add_config(command)
    add_workers(command)
    command.add_argument("--runner", metavar="NAME", help=", ".join(_RUNNERS))
    cancels = "Ctrl-C cancels a job on another runner; without this option the job continues"
    command.add_argument("--cancel-on-interrupt", action="store_true", help=cancels)
    add_run_options(command, prunes="rows of input files")


def add_config(command: argparse.ArgumentParser) -> None:
    """Add the configuration, and the options that change it."""
    command.add_argument("config", metavar="CONFIG", help="a YAML file")
    command.add_argument("--input", metavar="GLOB", action="append", help="replaces input.files; repeatable")
    command.add_argument("--output", metavar="PATH", help="replaces output.path")
    shards = "replaces input.shard: read the K-th of N shards of the files, which a hash of their paths divides"
    command.add_argument("--shard", metavar="K/N", help=shards)
    add_number(command, "--limit", "replaces input.limit: read the first N records only")
    command.add_argument(
        "--set",
        metavar="K=V",
        action="append",
        default=[],
        help="any setting: encoder.max_seq_length=64; repeatable",
    )


def add_workers(command: argparse.ArgumentParser) -> None:
    """Add the options of a local run."""
    add_number(command, "--workers", "blocks processed in parallel; default: one per core")
    processes = (
        "worker processes that share the workers, each with its own encoder, or, with a GPU or TPU, one more process "
        "that encodes for them; default: threads in one process"
    )
    add_number(command, "--processes", processes)


def add_run_options(command: argparse.ArgumentParser, prunes: str) -> None:
    """Add the options of any run. `prunes`: what --prune-missing deletes."""
    command.add_argument(
        "--force",
        action="store_true",
        help="start even if the disk looks too small, a field missing or the end of an earlier run unknown",
    )
    command.add_argument("--prune-missing", action="store_true", help=f"delete the {prunes} that no longer exist")
    rereads = "read all files, also those of equal size and time; only changed blocks are encoded"
    command.add_argument("--reread", action="store_true", help=rereads)
    add_json(command, "print the closing summary as JSON")
    add_verbose(command, SHOWS, quiet="print only warnings and errors; `show` has the summary")


def execute(options: argparse.Namespace, beam_arguments: list[str]) -> int:
    config = load_config(options)
    ended = run_config(config, options, beam_arguments)
    print_summary(options, config.output.path, speed=ended.did_work)
    return DONE if ended else INCOMPLETE


def load_config(options: argparse.Namespace) -> Config:
    """The configuration with what the command line changes. UsageError if it is wrong."""
    from layerbeam.pipeline.config import load

    overrides: dict[str, Any] = {}
    for item in options.set:
        key, equals, value = item.partition("=")
        if not equals:
            raise UsageError(f"--set {item}: is not of the form K=V, such as encoder.max_seq_length=64")
        overrides[key] = load.parse_yaml(value, f"--set {item}")
    given = {
        "input.files": options.input or None,
        "input.shard": options.shard,
        "input.limit": options.limit,
        "output.path": options.output,
    }
    shortcuts = {name: value for name, value in given.items() if value is not None}
    return load.load(options.config, overrides, shortcuts=shortcuts)


def resolve(options: argparse.Namespace, config: Config, beam_arguments: list[str]) -> tuple[Job, list[str]]:
    """The job and Beam's options. UsageError for settings that do not fit, and for paths out of reach."""
    announce_loading()
    from layerbeam.pipeline.config.job import pin_inputs
    from layerbeam.pipeline.config.job import resolve as resolve_job

    forms = (str(view.keep_words) for view in config.views.values())
    lists = (path for path in config.input.files if path.startswith("@"))
    if any(map(is_in_store, [config.encoder.handle, config.encoder.adapter or "", *forms, *lists])):
        set_up_file_systems(options, beam_arguments, configured=config.beam)
    config = pin_inputs(config)
    job = resolve_job(config)
    from layerbeam.pipeline.remote import preflight  # it imports Beam

    preflight.check_hints(config)
    paths = [*config.input.files, config.output.path]
    return job, set_up_file_systems(options, beam_arguments, *paths, configured=config.beam)


def run_config(
    config: Config, options: argparse.Namespace, beam_arguments: list[str], *, extra_bytes_ratio: float = 0
) -> Ended:
    """Run a configuration here or on other machines."""
    job, arguments = resolve(options, config, beam_arguments)
    from layerbeam.pipeline.remote.submit import RemoteRun
    from layerbeam.pipeline.run.engines import LocalRunner, choose_runner
    from layerbeam.pipeline.run.run import LocalRun, RunJob

    runner = options.runner or config.beam.get("runner")
    chosen = choose_runner(arguments, runner, config.output.path, workers=options.workers, processes=options.processes)
    given = {
        "job": job,
        "force": options.force,
        "prune_missing": options.prune_missing,
        "reread": options.reread,
        "verbose": options.verbose,
        "began": options.began,
        "extra_bytes_ratio": extra_bytes_ratio,
    }
    run: RunJob
    if isinstance(chosen, LocalRunner):
        if options.cancel_on_interrupt:
            raise UsageError("--cancel-on-interrupt applies to jobs on other runners; Ctrl-C ends a local run")
        run = LocalRun(local=chosen, **given)
    else:
        run = RemoteRun(remote=chosen, cancel_on_interrupt=options.cancel_on_interrupt, **given)
    return run.run()
