"""What the launcher of a Dataflow Flex Template starts: `layerbeam run` with the template's parameters.

Google's python_template_launcher, which lies in the image, starts the file that FLEX_TEMPLATE_PYTHON_PY_FILE names and
gives it the template's parameters and the job's options (runner, project, region, job_name, temp_location, ...), each
as --name=value. One of them is --template_location: with it Beam posts no job but writes it there
(`DataflowApplicationClient.create_job` in Beam 2.77), the service reads it when this process has ended with 0 ("Failed
to read the job file: gs://.../template_launches/.../job_object", it says otherwise), and there is no job to wait for.
The launcher is not public: what is said here of its options is from Google's guide "Configure Flex Templates" and from
logs of launches.

Apart from the standard library everything is imported late: this file may be started where it lies or as a copy.
"""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Sequence


def _parser() -> argparse.ArgumentParser:
    """The template's own parameters, which configs/dataflow/metadata.json describes to people."""
    parser = argparse.ArgumentParser(prog="layerbeam template", allow_abbrev=False)
    parser.add_argument("--config", required=True)
    parser.add_argument("--input")
    parser.add_argument("--output")
    parser.add_argument("--set", default="")
    return parser


def run_arguments(given: Sequence[str]) -> list[str]:
    """The arguments of `layerbeam` for those of the template; UsageError where `set` cannot be taken apart.

    >>> run_arguments(["--config=gs://b/c.yaml", "--set=views.v.layers='[-1, -2]' input.blank=keep", "--region=r"])
    ['run', 'gs://b/c.yaml', '--no_wait_until_finish', '--set=views.v.layers=[-1, -2]', '--set=input.blank=keep', \
'--region=r', '--runner=DataflowRunner']
    """
    from layerbeam.pipeline.errors import UsageError

    own, options = _parser().parse_known_args(given)
    try:
        settings = shlex.split(own.set)
    except ValueError as error:
        raise UsageError(
            f"set: {own.set!r} cannot be taken apart ({error}); settings are K=V with spaces between them, a value "
            "with spaces in quotes: encoder.max_seq_length=64 views.tokens.layers='[-1, -2]'"
        ) from None
    arguments = ["run", own.config, "--no_wait_until_finish"]
    arguments += [f"--{name}={value}" for name in ("input", "output") if (value := getattr(own, name)) is not None]
    arguments += [f"--set={setting}" for setting in settings]
    # Last, so that it wins: a launch never runs on the launcher's own small machine.
    return [*arguments, *_known(options), "--runner=DataflowRunner"]


def _known(options: Sequence[str]) -> list[str]:
    """Those that Beam knows. Parameters are checked before the launch, against the metadata: others are the launcher's
    own, of which no list is public, and one more of them must not end every launch."""
    from layerbeam.pipeline.cli import beam_options
    from layerbeam.pipeline.cli.console import echo_error

    known = beam_options.known_options()
    for option in options:
        if option.split("=")[0] not in known:
            echo_error(f"{option}: left out, Beam has no such option")
    return [option for option in options if option.split("=")[0] in known]


def main(given: Sequence[str]) -> int:
    """Launch; the exit statuses are those of `layerbeam run`."""
    from layerbeam import __version__
    from layerbeam.pipeline.cli import main
    from layerbeam.pipeline.cli.console import echo_error
    from layerbeam.pipeline.errors import UsageError

    main.quiet_logs(verbose=False)  # of Beam's import
    try:
        arguments = run_arguments(given)
    except UsageError as error:
        echo_error(str(error))
        return main.USAGE
    return main.main(arguments, version=__version__)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
