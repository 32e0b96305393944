"""The commands of docs/dataflow.md, as far as they can be tested without Google."""

from __future__ import annotations

import base64
import http.server
import itertools
import json
import os
import re
import shlex
import shutil
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from repository import ROOT

from layerbeam.pipeline.cli.parser import make_parser
from layerbeam.pipeline.commands import beam_options

GUIDE = (ROOT / "docs" / "dataflow.md").read_text()
PARAMETERS = {
    parameter["name"]: parameter
    for parameter in json.loads((ROOT / "configs" / "dataflow" / "metadata.json").read_text())["parameters"]
}
IMAGE = "us-central1-docker.pkg.dev/my-project/layerbeam/layerbeam:0.1.0-cpu"
LAUNCH = "/v1b3/projects/my-project/locations/us-central1/flexTemplates:launch"
ACCOUNT = "layerbeam@my-project.iam.gserviceaccount.com"

no_gcloud = pytest.mark.skipif(shutil.which("gcloud") is None, reason="gcloud is not installed")
whole = pytest.mark.skipif(not (ROOT / "Dockerfile").exists(), reason="a tree without the image and its configurations")


def commands(program: str) -> list[str]:
    """The program's commands in the indented blocks and the fenced block, one per line."""
    joined = GUIDE.replace("\\\n", " ")
    found = re.findall(rf"^(?:    )?({program} .*)$", joined, re.MULTILINE)
    return [re.sub(r"  +", " ", command) for command in found]


def options_of(command: str) -> dict[str, list[str]]:
    """The options of a gcloud command in which every option has a value."""
    words = shlex.split(command)
    found: dict[str, list[str]] = {}
    for name, value in itertools.pairwise(words):
        if name.startswith("--"):
            found.setdefault(name, []).append(value)
    return found


def check_parameters(given: dict[str, str]) -> None:
    assert given.keys() <= PARAMETERS.keys()
    assert {name for name, parameter in PARAMETERS.items() if not parameter["isOptional"]} <= given.keys()
    for name, value in given.items():
        assert all(re.fullmatch(regex, value) for regex in PARAMETERS[name]["regexes"]), (name, value)


def scheduler() -> str:
    (command,) = [command for command in commands("gcloud") if " scheduler jobs create " in command]
    return command


def check_nightly(body: Any) -> None:
    assert body == {
        "launchParameter": {
            "jobName": "layerbeam-nightly",
            "containerSpecGcsPath": "gs://my-bucket/templates/layerbeam-cpu.json",
            "parameters": {
                "config": "gs://my-bucket/configs/dataflow-cpu.yaml",
                "input": "gs://my-bucket/inbox/*.txt",
                "output": "gs://my-bucket/nightly",
                "sdk_container_image": IMAGE,
            },
            "environment": {
                "serviceAccountEmail": ACCOUNT,
                "tempLocation": "gs://my-bucket/temp",
                "stagingLocation": "gs://my-bucket/staging",
                "maxWorkers": 20,
            },
        }
    }
    check_parameters(body["launchParameter"]["parameters"])


def test_schedule_launches_template():
    assert f"```sh\n{scheduler()}\n```" in GUIDE
    words = shlex.split(scheduler())
    assert words[:6] == ["gcloud", "scheduler", "jobs", "create", "http", "layerbeam-nightly"]
    given = {name: value for name, (value,) in options_of(scheduler()).items()}
    check_nightly(json.loads(given.pop("--message-body")))
    assert given == {
        "--location": "us-central1",
        "--schedule": "30 2 * * *",
        "--time-zone": "Etc/UTC",
        "--uri": f"https://dataflow.googleapis.com{LAUNCH}",
        "--http-method": "POST",
        "--oauth-service-account-email": "layerbeam-launcher@my-project.iam.gserviceaccount.com",
        "--headers": "Content-Type=application/json",
    }


def test_request_matches_dataflow_api():
    dataflow = pytest.importorskip("google.cloud.dataflow_v1beta3", reason="the extra gcp is not installed")
    from google.protobuf import json_format

    body = json.loads(options_of(scheduler())["--message-body"][0])
    # A name that the API does not have raises an error here.
    json_format.ParseDict(body, dataflow.LaunchFlexTemplateRequest.pb(dataflow.LaunchFlexTemplateRequest()))


def test_started_template_is_built_template():
    build = yaml.safe_load((ROOT / "configs" / "dataflow" / "cloudbuild.yaml").read_text())
    first = next(command for command in commands("gcloud") if " builds submit " in command)
    values = build["substitutions"] | {"PROJECT_ID": "my-project"}
    values |= dict(pair.split("=") for pair in options_of(first)["--substitutions"][0].split(","))
    env = dict(setting.split("=", 1) for setting in build["steps"][-1]["env"])
    made = {name: re.sub(r"\$([A-Z_][A-Z0-9_]*)", lambda match: values[match[1]], value) for name, value in env.items()}
    assert made == {"IMAGE": IMAGE, "TEMPLATE": "gs://my-bucket/templates/layerbeam-cpu.json"}


def test_builds_use_declared_substitutions():
    build = yaml.safe_load((ROOT / "configs" / "dataflow" / "cloudbuild.yaml").read_text())
    submits = [options_of(command) for command in commands("gcloud") if " builds submit " in command]
    assert len(submits) == 2
    for options in submits:
        assert options["--config"] == ["configs/dataflow/cloudbuild.yaml"]
        assert {pair.split("=")[0] for pair in options["--substitutions"][0].split(",")} <= build[
            "substitutions"
        ].keys()
    in_text = set(re.findall(r"`(_[A-Z]+)(?:=\w+)?`", GUIDE)) - {"_SUCCESS"}
    assert in_text == {"_DEVICE", "_REGION", "_REPOSITORY", "_TAG"}
    assert in_text <= build["substitutions"].keys()


def test_parameter_table_matches_metadata():
    table = re.findall(r"^\| `(\w+)` \|", GUIDE.split("## 7.")[1].split("## 8.")[0], re.MULTILINE)
    assert table == list(PARAMETERS)


def test_layerbeam_commands_are_valid():
    runs = [shlex.split(command)[1:] for command in commands("layerbeam")]
    assert [words[:2] for words in runs] == [
        ["run", "configs/dataflow-cpu.yaml"],
        ["run", "configs/dataflow-gpu.yaml"],
        ["plan", "configs/dataflow-cpu.yaml"],
    ]
    for words in runs:
        options, rest = make_parser("test").parse_known_args(words)
        assert options.input == ["gs://my-bucket/corpus/*.txt"]
        if words[0] == "run":
            beam_options.check_arguments(rest, options.own_options)
        else:
            assert rest == []
    in_text = re.findall(r"`(--[a-z]+_[a-z_]+)(?:=[^`]*)?`", GUIDE)
    assert "--no_use_public_ips" in in_text
    values = {"--no_use_public_ips": "", "--no_wait_until_finish": "", "--flexrs_goal": "=COST_OPTIMIZED"}
    beam_options.check_arguments([name + values.get(name, "=1") for name in in_text], ())


@whole
def test_configurations_exist():
    for path in re.findall(r"(?<!/)\bconfigs/[\w./-]+\.(?:yaml|py|json)", GUIDE):
        assert (ROOT / path).is_file(), path


class Google(http.server.ThreadingHTTPServer):
    """Receives the requests of gcloud."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Answer)
        self.calls: list[tuple[str, str, Any]] = []


class Answer(http.server.BaseHTTPRequestHandler):
    server: Google

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.calls.append((self.command, self.path.split("?")[0], body))
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", "2")
        self.end_headers()
        self.wfile.write(b"{}")

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def endpoint() -> Iterator[Google]:
    with Google() as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()


def gcloud(words: list[str], folder: Path, server: Google | None = None) -> subprocess.CompletedProcess[str]:
    """The real gcloud without account, settings and prompts; its requests go to `server`."""
    settings = os.environ | {
        "CLOUDSDK_CONFIG": str(folder),
        "CLOUDSDK_CORE_PROJECT": "my-project",
        "CLOUDSDK_AUTH_DISABLE_CREDENTIALS": "true",
        "CLOUDSDK_CORE_DISABLE_PROMPTS": "1",
        "CLOUDSDK_CORE_DISABLE_USAGE_REPORTING": "true",
        "CLOUDSDK_COMPONENT_MANAGER_DISABLE_UPDATE_CHECK": "true",
    }
    if server is not None:
        for api in ("CLOUDBUILD", "CLOUDSCHEDULER", "DATAFLOW", "STORAGE"):
            settings[f"CLOUDSDK_API_ENDPOINT_OVERRIDES_{api}"] = f"http://127.0.0.1:{server.server_address[1]}/"
    return subprocess.run(words, cwd=ROOT, env=settings, capture_output=True, text=True, check=False, timeout=120)


@pytest.mark.slow  # each starts gcloud; `make test-dataflow` runs them
@no_gcloud
def test_gcloud_accepts_commands(tmp_path):
    wrong = "gcloud dataflow flex-template run x --template-file-gcs-location gs://b/t.json --bogus 3"
    in_text = re.findall(r"`(gcloud (?!auth login)[^`]* [^`]*)`", GUIDE)
    given = [*commands("gcloud"), *in_text, wrong]
    assert len(given) > 20
    (tmp_path / "commands.json").write_text(json.dumps([{"command_string": command} for command in given]))
    lint = ["gcloud", "meta", "lint-gcloud-commands", "--commands-file", str(tmp_path / "commands.json")]
    done = gcloud(lint, tmp_path)
    verdicts = json.loads(done.stdout)
    assert len(verdicts) == len(given)
    refused = {verdict["command_string"]: verdict["error_message"] for verdict in verdicts if not verdict["success"]}
    assert [message.splitlines()[0].strip() for message in refused.values()] == ["unrecognized arguments: --bogus=3"]


@pytest.mark.slow  # each starts gcloud; `make test-dataflow` runs them
@no_gcloud
def test_gcloud_sends_schedule(endpoint, tmp_path):
    done = gcloud(shlex.split(scheduler()), tmp_path, endpoint)
    assert done.returncode == 0, done.stderr
    ((_, path, sent),) = endpoint.calls
    assert path == "/v1/projects/my-project/locations/us-central1/jobs"
    assert (sent["schedule"], sent["timeZone"]) == ("30 2 * * *", "Etc/UTC")
    target = sent["httpTarget"]
    check_nightly(json.loads(base64.b64decode(target["body"])))
    assert (target["httpMethod"], target["uri"]) == ("POST", f"https://dataflow.googleapis.com{LAUNCH}")
    assert target["oauthToken"] == {"serviceAccountEmail": "layerbeam-launcher@my-project.iam.gserviceaccount.com"}


@pytest.mark.slow  # each starts gcloud; `make test-dataflow` runs them
@no_gcloud
def test_gcloud_launches_template(endpoint, tmp_path):
    (command,) = [command for command in commands("gcloud") if " flex-template run " in command]
    (more,) = re.findall(r"`(--parameters \"\^~\^.*\")`", GUIDE)
    done = gcloud(shlex.split(f"{command} {more}"), tmp_path, endpoint)
    assert done.returncode == 0, done.stderr
    ((_, path, sent),) = endpoint.calls
    assert path == LAUNCH
    launch = sent["launchParameter"]
    assert launch["parameters"] == {
        "config": "gs://my-bucket/configs/dataflow-cpu.yaml",
        "input": "gs://my-bucket/corpus/*.txt",
        "output": "gs://my-bucket/out/first",
        "sdk_container_image": IMAGE,
        "set": "views.tokens.layers='[-1, -2]'",
    }
    check_parameters(launch["parameters"])
    assert launch["containerSpecGcsPath"] == "gs://my-bucket/templates/layerbeam-cpu.json"
    environment = launch["environment"]
    assert (environment["serviceAccountEmail"], environment["maxWorkers"]) == (ACCOUNT, 20)
    assert environment["tempLocation"] == "gs://my-bucket/temp"
    assert environment["stagingLocation"] == "gs://my-bucket/staging"


@pytest.mark.slow  # each starts gcloud; `make test-dataflow` runs them
@no_gcloud
def test_gcloud_accepts_metadata(tmp_path):
    template = ["gs://my-bucket/t.json", "--image", IMAGE, "--sdk-language", "PYTHON", "--print-only"]
    metadata = ["--metadata-file", "configs/dataflow/metadata.json"]
    done = gcloud(["gcloud", "dataflow", "flex-template", "build", *template, *metadata], tmp_path)
    assert done.returncode == 0, done.stderr
    # It prints the template's file: JSON after one other line.
    made = json.loads(done.stdout[done.stdout.index("{") :])
    assert made["metadata"] == json.loads((ROOT / "configs" / "dataflow" / "metadata.json").read_text())
    assert (made["image"], made["sdkInfo"]) == (IMAGE, {"language": "PYTHON"})


@pytest.mark.slow  # each starts gcloud; `make test-dataflow` runs them
@no_gcloud
def test_gcloud_sends_build(endpoint, tmp_path):
    """gcloud refuses fields unknown to Cloud Build, then sends the build. It fails on the stand-in's short answer."""
    path = "configs/dataflow/cloudbuild.yaml"
    gcloud(shlex.split(f"gcloud builds submit --no-source --async --config {path}"), tmp_path, endpoint)
    ((_, _, sent),) = endpoint.calls
    build = yaml.safe_load((ROOT / path).read_text())
    assert [step["script"] for step in sent["steps"]] == [step["script"] for step in build["steps"]]
    assert [step["env"] for step in sent["steps"]] == [step["env"] for step in build["steps"]]
    assert sent["substitutions"] == build["substitutions"]
