"""Jobs as Dataflow receives them: the real command and Google's real clients, with a server on a loopback address."""

from __future__ import annotations

import gzip
import itertools
import json
import os
import signal
import subprocess
import sys
import time
import zipfile
from importlib import metadata
from typing import Any

import pytest
import yaml
from corpora import random_lines
from repository import DATA, ROOT
from workplace import CommandResult, Workplace

pytest.importorskip("google.cloud.dataflow", reason="the extra gcp is not installed: make test-dataflow")

from dataflow_submission import Submission
from google.cloud import dataflow
from google_cloud import GoogleCloud, ServiceError

CONFIGS = ("cpu", "gpu", "tpu")
L4 = "type:nvidia-l4;count:1;machine_type:g2-standard-8;install-nvidia-driver"
POOL = "worker_accelerator=type:nvidia-l4;count:1;install-nvidia-driver"
# The name of the image states its versions, so the registry is not queried.
IMAGE = f"europe-docker.pkg.dev/proj/repo/beam_python3.{sys.version_info.minor}_sdk:2.77.0"
PLACES = ("--input", "gs://in/corpus/*.txt", "--output", "gs://out/vectors", "--set", "encoder.handle=gs://in/encoder")
ENCODE = "encode/ParDo(StageFn)"  # the step that runs the encoder, inside the composite transform
CONSOLE = "https://console.cloud.google.com/dataflow/jobs/europe-west1/2026-01-01_00_00_00-1?project=proj"
MINE = ("--project=proj", "--region=europe-west1", "--temp_location=gs://tmp/x", f"--sdk_container_image={IMAGE}")


@pytest.fixture
def cloud(google: GoogleCloud, monkeypatch: pytest.MonkeyPatch) -> GoogleCloud:
    """A corpus and an encoder on gs://in."""
    google.put("gs://in/corpus/a.txt", "\n".join(random_lines(20)).encode())
    google.upload(DATA / "hf_uncased", "gs://in/encoder")
    monkeypatch.setenv("PATH", "")  # no gcloud, which Beam would ask for the region
    return google


def at(cloud: GoogleCloud) -> str:
    return f"--dataflow_endpoint={cloud.url}"


def submit(workplace: Workplace, cloud: GoogleCloud, config: str, *arguments: str) -> Submission:
    """Submit the job without waiting for it."""
    workplace._call("run", config, *PLACES, *MINE, at(cloud), "--no_wait_until_finish", *arguments, status=0)
    return Submission.last(cloud)


def shipped(name: str) -> str:
    return str(ROOT / "configs" / f"dataflow-{name}.yaml")


def uncomment(workplace: Workplace, name: str, *keys: str) -> str:
    """The configuration with the commented lines for these keys enabled, in place of the active ones."""
    lines = (ROOT / "configs" / f"dataflow-{name}.yaml").read_text().splitlines()
    for key in keys:
        (instead,) = [line for line in lines if line.lstrip().startswith((f"# {key}:", f"#   {key}:"))]
        lines = [line for line in lines if not line.startswith(f"  {key}:")]
        lines[lines.index(instead)] = "  " + instead.lstrip("# ")
    return str(workplace.write(f"{name}.yaml", "\n".join(lines)))


@pytest.fixture(params=CONFIGS)
def config(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "tpu":
        pretend_tensorflow("2.20.0", monkeypatch)
    return str(request.param)


def pretend_tensorflow(version: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """TensorFlow and TF Text claim this version."""
    real = metadata.version
    monkeypatch.setattr(metadata, "version", lambda name: version if name.startswith("tensorflow") else real(name))


def test_job_of_shipped_configuration(workplace, cloud, config):
    submission = submit(workplace, cloud, shipped(config))
    machines = {
        "cpu": ("n2-standard-8", 50, 0, 2, 20),
        "gpu": ("n2-standard-4", 100, 8, 1, 4),
        "tpu": ("ct5lp-hightpu-1t", 100, 4, 1, 1),
    }
    pool, environment = submission.pool, submission.job.environment
    machine = (pool.machine_type, pool.disk_size_gb, pool.num_threads_per_worker, pool.num_workers)
    assert (*machine, pool.autoscaling_settings.max_num_workers) == machines[config]
    scaled = dataflow.AutoscalingAlgorithm.AUTOSCALING_ALGORITHM_BASIC
    assert pool.autoscaling_settings.algorithm == scaled
    accelerators = {"cpu": [], "gpu": [], "tpu": ["worker_accelerator=type:tpu-v5-lite-podslice;topology:1x1"]}
    assert list(environment.service_options) == accelerators[config]
    processes = "use_multiple_sdk_containers" if config == "cpu" else "no_use_multiple_sdk_containers"
    assert {experiment for experiment in submission.experiments if "sdk_containers" in experiment} == {processes}
    assert "use_runner_v2" in submission.experiments
    assert ("min_cpu_platform=Intel Ice Lake" in submission.experiments) == (config == "cpu")
    assert submission.images == {IMAGE}
    assert submission.job.type_ == dataflow.JobType.JOB_TYPE_BATCH
    assert dict(submission.job.labels) == {"application": "layerbeam"}
    assert submission.job.name == "layerbeam-vectors-659a7960"
    assert submission.hints("encode") == ({"accelerator": L4} if config == "gpu" else {})
    # Nothing of this machine is sent: no pickled session, no package, no list of its packages.
    assert list(submission.files) == ["pipeline.pb"]
    assert {"tokenize", "encode", "write", "finish/compact the log", "finish/finish"} <= set(submission.stages)
    assert any(stage.startswith("find") for stage in submission.stages)


def test_tpu_job_of_another_tensorflow_than_its_image(workplace, cloud, monkeypatch):
    pretend_tensorflow("2.21.0", monkeypatch)
    done = workplace._call("run", shipped("tpu"), *PLACES, *MINE, at(cloud), status=2)
    assert (
        "encoder.device: is tpu, and the image for TPUs (the Dockerfile's DEVICE=tpu) has TensorFlow 2.20" in done.err
    )
    assert "this program has 2.21.0: install constraints-tf220.txt, or start the run from that image's tem" in done.err
    assert cloud.jobs == []


def test_command_line_overrides_configuration(workplace, cloud):
    given = ["--no_use_public_ips", "--subnetwork=regions/europe-west1/subnetworks/s", "--labels=team=nlp"]
    given += ["--service_account_email=runner@proj.iam.gserviceaccount.com", "--machine_type=n2-highmem-8"]
    given += ["--experiments=no_use_multiple_sdk_containers", "--number_of_worker_harness_threads=8"]
    submission = submit(workplace, cloud, shipped("cpu"), *given, "--job_name=nightly")
    pool = submission.pool
    assert pool.ip_configuration == dataflow.WorkerIPAddressConfiguration.WORKER_IP_PRIVATE
    assert pool.subnetwork == "regions/europe-west1/subnetworks/s"
    assert submission.job.environment.service_account_email == "runner@proj.iam.gserviceaccount.com"
    assert (pool.machine_type, pool.num_threads_per_worker) == ("n2-highmem-8", 8)
    assert "no_use_multiple_sdk_containers" in submission.experiments
    assert dict(submission.job.labels) == {"application": "layerbeam", "team": "nlp"}
    assert submission.job.name == "nightly"


def test_commented_private_network(workplace, cloud, config):
    private = uncomment(workplace, config, "use_public_ips", "subnetwork", "service_account_email")
    submission = submit(workplace, cloud, private)
    assert submission.pool.ip_configuration == dataflow.WorkerIPAddressConfiguration.WORKER_IP_PRIVATE
    assert submission.pool.subnetwork == "regions/REGION/subnetworks/SUBNETWORK"
    assert submission.job.environment.service_account_email == "ACCOUNT@PROJECT.iam.gserviceaccount.com"


def changed(workplace: Workplace, comment: str) -> str:
    """The GPU configuration with the setting of a comment of it in place of the accelerator."""
    text = (ROOT / "configs/dataflow-gpu.yaml").read_text()
    settings, lines = yaml.safe_load(text), text.splitlines()
    start = next(number for number, line in enumerate(lines) if comment in line)
    commented = itertools.takewhile(lambda line: line.lstrip().startswith("#   "), lines[start + 1 :])
    given = yaml.safe_load("\n".join(line.lstrip("# ") for line in commented))
    del settings["encoder"]["resource_hints"]
    if "accelerator" in given:
        settings["encoder"]["resource_hints"] = {"accelerator": given.pop("accelerator")}
    settings["beam"] |= given
    return str(workplace.write("gpu.yaml", yaml.safe_dump(settings)))


def test_commented_t4(workplace, cloud):
    submission = submit(workplace, cloud, changed(workplace, "A T4 (16 GB) instead"))
    t4 = "type:nvidia-tesla-t4;count:1;machine_type:n1-standard-8;install-nvidia-driver"
    assert submission.hints("encode") == {"accelerator": t4}


def test_commented_gpu_on_every_machine(workplace, cloud):
    submission = submit(workplace, cloud, changed(workplace, "A GPU on every machine instead"))
    assert submission.pool.machine_type == "g2-standard-8"
    assert list(submission.job.environment.service_options) == [POOL]
    assert submission.hints("encode") == {}


def test_gpu_machines_read_encode_and_write_only(workplace, cloud):
    submission = submit(workplace, cloud, shipped("gpu"))
    of_blocks = ("read", "tokenize", "encode", "write")
    asked = {stage: submission.hints(stage) for stage in submission.stages}
    with_gpu = {stage for stage, hints in asked.items() if hints == {"accelerator": L4}}
    assert with_gpu == {stage for stage in asked if stage.split("/")[0] in of_blocks}
    assert {stage.split("/")[0] for stage in with_gpu} == {*of_blocks}
    assert {str(hints) for stage, hints in asked.items() if stage not in with_gpu} == {"{}"}
    assert {"find", "slice", "finish"} <= {stage.split("/")[0] for stage in asked.keys() - with_gpu}
    assert len({submission.environment(stage) for stage in with_gpu}) == 1
    assert submission.images == {IMAGE}


def test_accelerator_of_hint_and_of_pool_is_refused(workplace, cloud):
    both = [shipped("gpu"), f"--dataflow_service_options={POOL}"]
    done = workplace._call("run", *both, *PLACES, *MINE, at(cloud), status=2)
    assert "encoder.resource_hints.accelerator: Dataflow takes either it or worker_accelerator=" in done.err
    assert cloud.jobs == []


@pytest.mark.parametrize(
    "asked", [f"encoder.resource_hints={{accelerator: '{L4}'}}", f"beam.dataflow_service_options=['{POOL}']"]
)
def test_a_process_per_cpu_on_one_gpu_is_refused(workplace, cloud, asked):
    arguments = [shipped("cpu"), *PLACES, *MINE, at(cloud), "--set", "encoder.device=gpu"]
    done = workplace._call("run", *arguments, "--set", asked, status=2)
    assert "beam.experiments: Dataflow starts a process per vCPU, and each would load the encoder onto" in done.err
    assert "give experiments: [no_use_multiple_sdk_containers], or share a GPU by adding ;use_nvidia_mps" in done.err
    assert cloud.jobs == []
    shared = asked.replace(";install", ";use_nvidia_mps;install")
    submit(workplace, cloud, shipped("cpu"), "--set", "encoder.device=gpu", "--set", shared)


def test_too_few_blocks_for_threads_are_reported(workplace, cloud):
    def printed(files: str, *arguments: str) -> str:
        cloud.buckets["out"].clear()
        given = (shipped("cpu"), "--input", files, *PLACES[2:], *MINE, at(cloud), "--no_wait_until_finish", *arguments)
        return workplace._call("run", *given, status=0).err

    few = "input: about 1 block for 160 threads: a smaller input.slice_bytes or output.target_part_bytes makes more"
    assert few in printed("gs://in/corpus/*.txt")
    assert "threads" not in printed("gs://in/corpus/*.txt", "--set", "input.slice_bytes=1")
    cloud.put("gs://in/corpus/a.txt.gz", gzip.compress(b"one line\n"))
    one = printed("gs://in/corpus/*.gz", "--set", "beam.max_num_workers=2")
    assert "input: 1 compressed file: as many of 16 threads read; all encode" in one
    # With one process per machine its threads count, not the vCPUs of the machines without a GPU.
    cloud.buckets["out"].clear()
    submitted = workplace._call("run", shipped("gpu"), *PLACES, *MINE, at(cloud), "--no_wait_until_finish", status=0)
    assert "input: about 1 block for 32 threads: " in submitted.err


def test_missing_gpu_request_is_an_error(workplace, cloud):
    asked = ["--set", "encoder.device=gpu", *PLACES, *MINE, at(cloud)]
    done = workplace._call("run", shipped("cpu"), *asked, status=2)
    assert "encoder.device: is gpu, but no accelerator is requested for the workers" in done.err
    assert cloud.jobs == []


def test_wheel_is_staged(workplace, cloud):
    wheel = workplace.folder / "layerbeam-0.1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as file:
        file.writestr("layerbeam.py", "")
    submission = submit(workplace, cloud, shipped("cpu"), f"--extra_package={wheel}")
    assert submission.files[wheel.name] == wheel.read_bytes()
    assert wheel.name in submission.staged
    assert not [name for name in submission.files if "session" in name]


def test_two_submissions_give_same_pipeline(workplace, cloud, config):
    first = submit(workplace, cloud, shipped(config), "--job_name=job")
    cloud.buckets["out"].clear()  # run as the folder's first run, too
    second = submit(workplace, cloud, shipped(config), "--job_name=job")
    assert len(cloud.jobs) == 2
    assert first.stages == second.stages
    pipelines = [submission.pipeline for submission in (first, second)]
    for pipeline in pipelines:
        for transform in pipeline.components.transforms.values():
            if transform.unique_name == ENCODE:
                transform.spec.payload = b""  # Beam's Shared generates a new name each time
    before, after = (pipeline.components.transforms for pipeline in pipelines)
    assert [before[name].unique_name for name in before if before[name] != after[name]] == []
    for part in ("pcollections", "coders", "windowing_strategies"):
        assert getattr(pipelines[0].components, part) == getattr(pipelines[1].components, part)


@pytest.fixture
def no_poll_delay(monkeypatch: pytest.MonkeyPatch) -> None:
    """Beam polls the job's state every five seconds; here without delay."""
    from apache_beam.runners.dataflow import dataflow_runner

    class Clock:
        time = staticmethod(time.time)

        @staticmethod
        def sleep(seconds: float) -> None:
            time.sleep(seconds / 500)

    monkeypatch.setattr(dataflow_runner, "time", Clock)


def run(workplace: Workplace, cloud: GoogleCloud, *arguments: str, status: int) -> CommandResult:
    return workplace._call("run", shipped("cpu"), *PLACES, *MINE, at(cloud), *arguments, status=status)


def test_completed_job(workplace, cloud, no_poll_delay):
    here = ["run", shipped("cpu"), *PLACES, "--runner", "local", "--output", "gs://out/elsewhere"]
    workplace._call(*here, status=0)
    written = cloud.tree("gs://out/elsewhere")

    def work() -> None:
        for name, data in written.items():
            if not name.startswith("_runs/"):
                cloud.put(f"gs://out/vectors/{name}", data)

    cloud.work = work
    cloud.states = ["JOB_STATE_PENDING", "JOB_STATE_RUNNING", "JOB_STATE_RUNNING", "JOB_STATE_DONE"]
    done = run(workplace, cloud, status=0)
    assert cloud.states == ["JOB_STATE_DONE"]
    assert "submitted to Dataflow as layerbeam-vectors-659a7960, job 2026-01-01_00_00_00-1" in done.err
    assert CONSOLE in done.err
    assert "gs://out/vectors: complete" in done.out
    assert "20 read = 19 embedded + 1 blank" in done.out
    log = run_log(cloud)
    assert (log["state"], log["runner"], log["job"]) == ("done", "DataflowRunner", "2026-01-01_00_00_00-1")
    # Only the job's files are left: the folder is not locked any more.
    assert {name for name in cloud.tree("gs://out/vectors") if not name.startswith("_runs/")} == {
        name for name in written if not name.startswith("_runs/")
    }


def run_log(cloud: GoogleCloud) -> dict[str, Any]:
    (log,) = [data for name, data in cloud.tree("gs://out/vectors").items() if name.startswith("_runs/")]
    return json.loads(log)


def test_failed_job_names_reason_and_place(workplace, cloud, no_poll_delay):
    cloud.states = ["JOB_STATE_RUNNING", "JOB_STATE_FAILED"]
    cloud.messages = [
        ("JOB_MESSAGE_BASIC", "Worker configuration: n2-standard-8 in europe-west1."),
        ("JOB_MESSAGE_ERROR", "Traceback (most recent call last):\n  File x\nOSError: No space left on device"),
        ("JOB_MESSAGE_ERROR", "Workflow failed."),
    ]
    done = run(workplace, cloud, status=1)
    assert "OSError: No space left on device" in done.err
    assert CONSOLE in done.err
    log = run_log(cloud)
    assert (log["state"], log["job"]) == ("failed", "2026-01-01_00_00_00-1")


NO_QUOTA = "Startup of the worker pool in zone europe-west1-b failed: no quota."


@pytest.mark.parametrize(
    ("state", "messages", "said"),
    [("FAILED", [("JOB_MESSAGE_ERROR", NO_QUOTA)], NO_QUOTA), ("CANCELLED", [], "cancelled")],
)
def test_failed_job_without_exception(workplace, cloud, no_poll_delay, state, messages, said):
    cloud.states, cloud.messages = ["JOB_STATE_RUNNING", f"JOB_STATE_{state}"], messages
    assert said.lower() in run(workplace, cloud, status=1).err.lower()


@pytest.mark.parametrize(
    ("code", "reason", "status"),
    [
        (409, "There is already an active job named layerbeam-vectors-659a7960.", 4),
        (400, "The workflow could not be created: quota CPUS exceeded, limit 8.0 in region europe-west1.", 2),
        (403, "Dataflow API has not been used in project proj before or it is disabled.", 2),
        (429, "The project has too many jobs at work: 25.", 1),
    ],
)
def test_job_refused_by_dataflow(workplace, cloud, code, reason, status):
    cloud.refusal = ServiceError(code, reason)
    done = run(workplace, cloud, status=status)
    assert reason in done.err
    assert "POST" not in done.err  # nor the request
    assert run_log(cloud)["state"] == "failed"


@pytest.mark.parametrize("missing", ["project", "region", "temp_location", "sdk_container_image"])
def test_required_options(workplace, cloud, missing):
    given = [argument for argument in MINE if not argument.startswith(f"--{missing}=")]
    done = workplace._call("run", shipped("cpu"), *PLACES, *given, at(cloud), status=2)
    assert f"layerbeam: beam.{missing}: is missing" in done.err
    assert f"--{missing}=" in done.err
    assert cloud.jobs == []


@pytest.mark.parametrize(
    ("bucket", "named"), [("in", "input.files"), ("out", "output.path"), ("tmp", "beam.temp_location")]
)
@pytest.mark.parametrize("denied", [False, True])
def test_missing_or_forbidden_bucket(workplace, cloud, bucket, named, denied):
    encoder = ("--set", f"encoder.handle={DATA / 'hf_uncased'}")  # one with a whole path, in the image
    if denied:
        cloud.denied.add(bucket)
    else:
        del cloud.buckets[bucket]
    began = time.monotonic()
    done = run(workplace, cloud, *encoder, status=2)
    reason = f"does not have storage access to {bucket}." if denied else "The specified bucket does not exist."
    assert f"layerbeam: {named}: " in done.err
    assert f"gs://{bucket}" in done.err
    assert reason in done.err
    assert cloud.jobs == []
    assert time.monotonic() - began < 300  # Beam would retry for ten minutes


def test_missing_extra_is_named(workplace, cloud, monkeypatch):
    monkeypatch.setitem(sys.modules, "apache_beam.io.gcp.gcsfilesystem", None)
    done = run(workplace, cloud, status=2)
    assert "gs:// needs a package that is not installed; run: pip install -c constraints.txt -e '.[gcp]'" in done.err
    assert cloud.jobs == []


def test_local_paths_are_refused(workplace, cloud):
    done = run(workplace, cloud, "--output", "out/vectors", status=2)
    assert "output.path: out/vectors: Dataflow's workers cannot read files of this machine" in done.err


@pytest.mark.slow
def test_missing_credentials(workplace, cloud, monkeypatch):
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(workplace.folder / "gone.json"))
    began = time.monotonic()
    done = run(workplace, cloud, status=2)
    assert "gcloud auth application-default login" in done.err
    assert time.monotonic() - began < 300
    done = run(workplace, cloud, "--set", "encoder.handle=minilm", status=2)
    assert "layerbeam: runner: DataflowRunner: no credentials were found; run: gcloud auth application-de" in done.err
    assert "gone.json was not found)" in done.err
    assert cloud.jobs == []


WAITING = """
import sys
from google_cloud import no_network
from layerbeam.pipeline.cli.main import main
from layerbeam.pipeline.run.signals import install_signal_handlers
install_signal_handlers()
with no_network():
    status = main(sys.argv[1:], version="test")
sys.exit(status)
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupt_keeps_job_running_and_says_how_to_cancel(workplace, cloud, number):
    cloud.states = ["JOB_STATE_RUNNING"]
    command = [sys.executable, "-c", WAITING, "run", shipped("cpu"), *PLACES, *MINE, at(cloud)]
    paths = {"PYTHONPATH": f"{ROOT}:{ROOT / 'tests' / 'support'}"}
    waiting = subprocess.Popen(command, env=os.environ | paths, stderr=subprocess.PIPE, text=True)
    asked = "GET /v1b3/projects/proj/locations/europe-west1/jobs/2026-01-01_00_00_00-1"
    while asked not in cloud.calls:
        assert waiting.poll() is None, waiting.stderr.read()
        time.sleep(0.05)
    waiting.send_signal(number)
    _, err = waiting.communicate(timeout=240)
    assert waiting.returncode == 128 + number
    assert "Traceback" not in err
    assert "the job continues" in err
    assert "gcloud dataflow jobs cancel 2026-01-01_00_00_00-1 --region=europe-west1 --project=proj" in err
    assert cloud.asked == []
