"""The script that a Dataflow Flex Template launches: `layerbeam run` with the template's parameters.

Google's python_template_launcher, part of the image, starts the file named by FLEX_TEMPLATE_PYTHON_PY_FILE with the
template's parameters and the job's options (runner, project, region, job_name, temp_location, ...), each as
--name=value. With --template_location among them, Beam posts no job but writes it there
(`DataflowApplicationClient.create_job` in Beam 2.77). The service reads it when this process has ended with status 0;
otherwise it reports "Failed to read the job file: gs://.../template_launches/.../job_object". There is no job to wait
for. The launcher is not public: its options are known from Google's guide "Configure Flex Templates" and from logs.

The image starts a copy of this file in a folder of its own, so that no module next to it hides another package's.
"""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Sequence

from layerbeam import __version__
from layerbeam.pipeline.cli.main import main as run_command
from layerbeam.pipeline.cli.main import quiet_logs
from layerbeam.pipeline.commands.results import USAGE
from layerbeam.pipeline.console import echo_error
from layerbeam.pipeline.errors import UsageError
from layerbeam.pipeline.run.signals import install_signal_handlers


def _parser() -> argparse.ArgumentParser:
    """The template's own parameters, which configs/dataflow/metadata.json describes to people."""
    parser = argparse.ArgumentParser(prog="layerbeam template", allow_abbrev=False)
    parser.add_argument("--config", required=True)
    parser.add_argument("--input")
    parser.add_argument("--output")
    parser.add_argument("--set", default="")
    return parser


def run_arguments(given: Sequence[str]) -> list[str]:
    """The arguments of `layerbeam` for those of the template; UsageError if `set` cannot be split.

    >>> run_arguments(["--config=gs://b/c.yaml", "--set=views.v.layers='[-1, -2]' input.blank=keep", "--region=r"])
    ['run', 'gs://b/c.yaml', '--no_wait_until_finish', '--set=views.v.layers=[-1, -2]', '--set=input.blank=keep', \
'--region=r', '--runner=DataflowRunner']
    """
    own, options = _parser().parse_known_args(given)
    try:
        settings = shlex.split(own.set)
    except ValueError as error:
        raise UsageError(
            f"set: {own.set!r} cannot be split ({error}); settings are K=V separated by spaces, a value with "
            "spaces in quotes: encoder.max_seq_length=64 views.tokens.layers='[-1, -2]'"
        ) from None
    arguments = ["run", own.config, "--no_wait_until_finish"]
    arguments += [f"--{name}={value}" for name in ("input", "output") if (value := getattr(own, name)) is not None]
    arguments += [f"--set={setting}" for setting in settings]
    # Last, so that it wins: a launch must not run on the launcher's own small machine.
    return [*arguments, *_known(options), "--runner=DataflowRunner"]


def _known(options: Sequence[str]) -> list[str]:
    """The options known to Beam. The service checks the template's parameters before the launch, against the metadata;
    other options are the launcher's own. No list of these is public, and a new one must not fail every launch."""
    from layerbeam.pipeline.commands import beam_options  # Beam logs a warning on import

    known = beam_options.known_options()
    for option in options:
        if option.split("=")[0] not in known:
            echo_error(f"{option}: ignored, Beam has no such option")
    return [option for option in options if option.split("=")[0] in known]


def main(given: Sequence[str]) -> int:
    """Launch; the exit statuses are those of `layerbeam run`."""
    quiet_logs(verbose=False)
    try:
        arguments = run_arguments(given)
    except UsageError as error:
        echo_error(str(error))
        return USAGE
    return run_command(arguments, version=__version__)


if __name__ == "__main__":
    install_signal_handlers()
    sys.exit(main(sys.argv[1:]))
