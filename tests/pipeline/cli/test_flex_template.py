"""The Flex Template: pipeline/cli/flex_template.py, configs/dataflow/metadata.json and cloudbuild.yaml."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from repository import ROOT, python

from layerbeam.pipeline.cli import flex_template
from layerbeam.pipeline.cli.parser import make_parser
from layerbeam.pipeline.commands import beam_options
from layerbeam.pipeline.errors import UsageError

DATAFLOW = ROOT / "configs" / "dataflow"
METADATA = json.loads((DATAFLOW / "metadata.json").read_text())
PARAMETERS = {parameter["name"]: parameter for parameter in METADATA["parameters"]}
IMAGE = "us-central1-docker.pkg.dev/my-project/layerbeam/layerbeam:0.1.0-cpu"
# In the launcher's form.
JOB = [
    "--runner=DataflowRunner",
    "--project=my-project",
    "--region=us-central1",
    "--job_name=layerbeam-20260101",
    "--temp_location=gs://my-bucket/temp",
    "--staging_location=gs://my-bucket/staging",
    "--template_location=gs://my-bucket/staging/template_launches/2026-01-02_02_30_00-1/job_object",
    '--labels={"goog-dataflow-provided-template-type": "flex"}',
    "--max_num_workers=20",
]
GOOD = {
    "config": ["gs://my-bucket/configs/dataflow-cpu.yaml", "gs://b.example.org/my config.yml"],
    "input": ["gs://my-bucket/logs/2026-01-01/*.txt", "gs://my-bucket/**/a b?.gz"],
    "output": ["gs://my-bucket/nightly/dt=2026-01-01", "gs://my-bucket/out/"],
    "set": ["encoder.max_seq_length=64", "views.my-view.layers='[-1, -2]' input.blank=keep"],
    "sdk_container_image": [IMAGE, "gcr.io/p/layerbeam@sha256:" + "0a" * 32, "localhost:5000/layerbeam:a"],
}
BAD = {
    "config": [
        "configs/demo.yaml",
        "gs://my-bucket/configs/",
        "gs://my-bucket/*.yaml",
        "gs://B/c.yaml",
        "gs://b\n/c.yaml",
    ],
    "input": ["my-bucket/logs", "gs://my-bucket", "gs://my-bucket/a\nb"],
    "output": ["out/demo", "gs://my-bucket/", "gs://my-bucket/*"],
    "set": ["encoder.max_seq_length", "=64", "--set a.b=c", "max_seq_length=64"],
    "sdk_container_image": ["layerbeam", "us-central1-docker.pkg.dev/my-project/layerbeam/layerbeam", "a b/c:d"],
}


def given(**parameters: str) -> list[str]:
    return [f"--{name}={value}" for name, value in parameters.items()]


def test_launcher_arguments_become_run_arguments():
    arguments = flex_template.run_arguments(
        JOB
        + given(
            config="gs://my-bucket/c.yaml",
            input="gs://my-bucket/*.txt",
            output="gs://my-bucket/out",
            set="encoder.max_seq_length=64 views.tokens.layers='[-1, -2]'",
            sdk_container_image=IMAGE,
        )
    )
    options, rest = make_parser("test").parse_known_args(arguments)
    assert (options.command, options.config, options.runner) == ("run", "gs://my-bucket/c.yaml", "DataflowRunner")
    assert (options.input, options.output) == (["gs://my-bucket/*.txt"], "gs://my-bucket/out")
    assert options.set == ["encoder.max_seq_length=64", "views.tokens.layers=[-1, -2]"]
    beam_options.check_arguments(rest, ())
    assert rest == ["--no_wait_until_finish", *JOB[1:], f"--sdk_container_image={IMAGE}"]


def test_omitted_parameters_keep_configuration():
    arguments = flex_template.run_arguments(["--config=gs://b/c.yaml"])
    assert arguments == ["run", "gs://b/c.yaml", "--no_wait_until_finish", "--runner=DataflowRunner"]


def test_launch_never_uses_local_runner():
    arguments = flex_template.run_arguments(["--config=gs://b/c.yaml", "--runner=local"])
    options, _ = make_parser("test").parse_known_args(arguments)
    assert options.runner == "DataflowRunner"


def test_option_unknown_to_beam_is_dropped(capsys):
    arguments = flex_template.run_arguments(["--config=gs://b/c.yaml", "--new_in_the_launcher=3", "--region=r"])
    assert arguments[-2:] == ["--region=r", "--runner=DataflowRunner"]
    assert "--new_in_the_launcher=3" not in arguments
    assert capsys.readouterr().err == "layerbeam: --new_in_the_launcher=3: ignored, Beam has no such option\n"


def test_settings_that_cannot_be_split():
    with pytest.raises(UsageError, match=r"^set: \"a\.b='c\" cannot be split \(No closing quotation\); settings are"):
        flex_template.run_arguments(["--config=gs://b/c.yaml", "--set=a.b='c"])


def start(script: Path, *arguments: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run it as the launcher does: by its path, from any folder. This tree stands in for the installed packages."""
    settings = os.environ | {"PYTHONPATH": str(ROOT)}
    command = [sys.executable, str(script), *arguments]
    return subprocess.run(command, cwd=folder, env=settings, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("copied", [False, True], ids=["in the tree", "a copy"])
def test_failed_launch_has_message_and_status_of_run(tmp_path, copied):
    script = ROOT / "pipeline" / "cli" / "flex_template.py"
    if copied:
        script = Path(shutil.copy(script, tmp_path))
    done = start(script, "--config=nowhere.yaml", folder=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("layerbeam: nowhere.yaml: ")
    assert "Traceback" not in done.stderr
    done = start(script, "--config=nowhere.yaml", "--set='", folder=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("layerbeam: set: ")
    done = start(script, "--output=gs://b/o", folder=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert "the following arguments are required: --config" in done.stderr


def test_script_folder_hides_no_other_modules(tmp_path):
    """Python looks first in the script's folder: in the image the script is a copy in its own folder."""
    image = tmp_path / "image"
    image.mkdir()
    shutil.copy(ROOT / "pipeline/cli/flex_template.py", image)
    (tmp_path / "preflight.py").write_text("whose = 'theirs'\n")
    code = "import sys, runpy; sys.argv = ['x', '--config=nowhere.yaml']\n"
    code += f"sys.path[0] = {str(image)!r}\n"
    code += "try: runpy.run_path(sys.path[0] + '/flex_template.py', run_name='__main__')\n"
    code += "except SystemExit: import preflight; print(preflight.whose)"
    assert python(code, folder=tmp_path, PYTHONPATH=str(tmp_path)) == "theirs\n"


def test_metadata_has_dataflow_format():
    assert METADATA.keys() == {"name", "description", "parameters"}
    for parameter in METADATA["parameters"]:
        assert parameter.keys() == {"name", "label", "helpText", "paramType", "isOptional", "regexes"}
        assert parameter["paramType"] in {"TEXT", "GCS_READ_FILE", "GCS_WRITE_FOLDER"}


def test_parameters_match_options():
    own = {action.dest for action in flex_template._parser()._actions if action.dest != "help"}
    assert own == {"config", "input", "output", "set"}
    required = {action.dest for action in flex_template._parser()._actions if action.required}
    assert {name for name, parameter in PARAMETERS.items() if not parameter["isOptional"]} == required
    # The Beam options for which gcloud has no flag.
    assert PARAMETERS.keys() - own == {"sdk_container_image"}
    beam_options.check_arguments([f"--{name}=x" for name in PARAMETERS.keys() - own], ())


@pytest.mark.parametrize("name", PARAMETERS)
def test_regexes_accept_only_valid_values(name):
    example = PARAMETERS[name]["helpText"].split("Example: ")[1]
    (regex,) = PARAMETERS[name]["regexes"]
    assert regex.startswith("^")
    assert regex.endswith("$")
    for value in [*GOOD[name], example]:
        assert re.fullmatch(regex, value), value
    for value in BAD[name]:
        assert not re.fullmatch(regex, value), value


BUILD = yaml.safe_load((DATAFLOW / "cloudbuild.yaml").read_text())
BUILD_ARGUMENTS = ("DEVICE", "MODEL")


def build(folder: Path, **given: str) -> tuple[int, list[list[str]], str]:
    """(the last exit status, calls, standard error) of the steps, run in order as Cloud Build does.

    The docker and gcloud on PATH only log their arguments.
    """
    bin_folder, notes = folder / "bin", folder / "calls"
    bin_folder.mkdir()
    for name in ("docker", "gcloud"):
        (bin_folder / name).write_text(
            f'#!/bin/sh\nfor word in {name} "$@"; do printf "%s\\0" "$word"; done >> {notes}\necho >> {notes}\n'
        )
        (bin_folder / name).chmod(0o755)
    values = BUILD["substitutions"] | {"PROJECT_ID": "my-project"} | given
    printed, status = "", 0
    for step in BUILD["steps"]:
        env = {}
        for setting in step["env"]:
            name, _, value = setting.partition("=")
            env[name] = re.sub(r"\$([A-Z_][A-Z0-9_]*)", lambda match: values[match[1]], value)
        script = folder / "script"
        script.write_text(step["script"])
        script.chmod(0o755)
        env["PATH"] = f"{bin_folder}:{os.environ['PATH']}"
        done = subprocess.run([str(script)], cwd=folder, env=env, capture_output=True, text=True, check=False)
        printed, status = printed + done.stderr, done.returncode
        if status:
            break
    lines = notes.read_text().splitlines() if notes.exists() else []
    return status, [line.split("\0")[:-1] for line in lines], printed


def test_build_creates_image_and_template(tmp_path):
    status, calls, _ = build(tmp_path, _BUCKET="my-bucket")
    assert status == 0
    rest = ["--image", IMAGE, "--sdk-language", "PYTHON", "--metadata-file", "configs/dataflow/metadata.json"]
    assert calls == [
        ["docker", "build", "--build-arg", "DEVICE=cpu", "--tag", IMAGE, "."],
        ["docker", "push", IMAGE],
        ["gcloud", "dataflow", "flex-template", "build", "gs://my-bucket/templates/layerbeam-cpu.json", *rest],
    ]
    assert (ROOT / calls[2][-1]).is_file()
    assert not (tmp_path / "models").exists()


def test_model_is_baked_in(tmp_path):
    status, calls, _ = build(tmp_path, _BUCKET="my-bucket", _DEVICE="gpu", _MODEL="gs://my-bucket/encoders/bert base")
    assert status == 0
    source = "gs://my-bucket/encoders/bert base/*"
    assert calls[0] == ["gcloud", "storage", "cp", "--recursive", source, "models/encoder/"]
    image = IMAGE.replace("cpu", "gpu")
    arguments = ["--build-arg", "DEVICE=gpu", "--build-arg", "MODEL=models/encoder"]
    assert calls[1] == ["docker", "build", *arguments, "--tag", image, "."]
    assert (tmp_path / "models" / "encoder").is_dir()
    assert calls[3][4] == "gs://my-bucket/templates/layerbeam-gpu.json"


def test_build_without_bucket_fails_before_first_step(tmp_path):
    status, calls, printed = build(tmp_path)
    assert (status != 0, calls) == (True, [])
    assert "give --substitutions _BUCKET=..." in printed


def test_substitutions_are_declared_and_used():
    used = {name for step in BUILD["steps"] for env in step["env"] for name in re.findall(r"\$(_[A-Z0-9_]+)", env)}
    assert used == BUILD["substitutions"].keys()
    for step in BUILD["steps"]:
        mapped = {env.split("=")[0] for env in step["env"]}
        assert set(re.findall(r"\$\{?([A-Z_]+)", step["script"])) == mapped


@pytest.mark.skipif(not (ROOT / "Dockerfile").exists(), reason="this tree has no Dockerfile")
def test_dockerfile_declares_build_arguments_and_launcher():
    dockerfile = (ROOT / "Dockerfile").read_text()
    for name in BUILD_ARGUMENTS:
        assert re.search(rf"^ARG {name}\b", dockerfile, re.MULTILINE), name
    (launcher,) = re.findall(r"^ENV FLEX_TEMPLATE_PYTHON_PY_FILE=\"?(\S+?)\"?$", dockerfile, re.MULTILINE)
    assert launcher == "/opt/layerbeam/flex_template.py"
    assert re.search(r"^WORKDIR /opt/layerbeam$", dockerfile.split("FROM ")[-1], re.MULTILINE)
    assert re.search(r"^COPY pipeline/cli/flex_template.py \./$", dockerfile.split("FROM ")[-1], re.MULTILINE)
    for name in ("FLEX_TEMPLATE_PYTHON_REQUIREMENTS_FILE", "FLEX_TEMPLATE_PYTHON_SETUP_FILE"):
        assert name not in dockerfile  # all packages are installed: a launch must install nothing


def test_example_in_build_file_is_valid_command():
    (line,) = re.findall(r"^#   (gcloud .*)$", (DATAFLOW / "cloudbuild.yaml").read_text(), re.MULTILINE)
    words = shlex.split(line)
    assert words[:4] == ["gcloud", "builds", "submit", "--config"]
    assert (ROOT / words[4]).is_file()
    given = dict(pair.split("=") for pair in words[6].split(","))
    assert given.keys() <= BUILD["substitutions"].keys()
