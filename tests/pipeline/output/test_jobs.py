"""Dataflow is asked for the state of earlier jobs: the real command and Google's real client, on a loopback address."""

from __future__ import annotations

import json
import sys

import pytest
from corpora import random_lines
from repository import DATA
from workplace import CommandResult, Workplace

pytest.importorskip("google.cloud.dataflow", reason="the extra gcp is not installed: make test-dataflow")

from google_cloud import GoogleCloud, ServiceError

from layerbeam.pipeline.errors import BusyError, UsageError
from layerbeam.pipeline.output.jobs import DataflowJob

JOB = "2026-01-01_00_00_00-1"
ASKED = f"GET /v1b3/projects/proj/locations/europe-west1/jobs/{JOB}"


@pytest.fixture
def cloud(google: GoogleCloud, workplace: Workplace, monkeypatch: pytest.MonkeyPatch) -> GoogleCloud:
    google.put("gs://in/corpus/a.txt", "\n".join(random_lines(20)).encode())
    google.upload(DATA / "hf_uncased", "gs://in/encoder")
    workplace.configure(input={"files": ["gs://in/corpus/*"]}, encoder={"handle": "gs://in/encoder"})
    monkeypatch.setenv("PATH", "")  # no gcloud, which Beam would ask for the region
    return google


def start(workplace: Workplace, cloud: GoogleCloud, *arguments: str, status: int = 0) -> CommandResult:
    """A local run into gs://out/v."""
    return workplace.run("--output=gs://out/v", f"--dataflow_endpoint={cloud.url}", *arguments, status=status)


def submit(workplace: Workplace, cloud: GoogleCloud, *arguments: str, status: int = 0) -> CommandResult:
    """A job into gs://out/v that nobody waits for."""
    job = ["--runner=DataflowRunner", "--project=proj", "--region=europe-west1", "--temp_location=gs://tmp/x"]
    image = "--sdk_container_image=localhost:1/layerbeam"
    return start(workplace, cloud, *job, image, "--no_wait_until_finish", *arguments, status=status)


def record(cloud: GoogleCloud, number: int) -> dict:
    return json.loads(cloud.get(f"gs://out/v/_runs/{number}.json"))


def test_second_job_is_refused_while_the_first_runs(workplace, cloud):
    submit(workplace, cloud)
    first = record(cloud, 1)
    assert (first["state"], first["job"], first["project"], first["region"]) == (
        "submitted",
        JOB,
        "proj",
        "europe-west1",
    )
    cloud.states = ["JOB_STATE_RUNNING"]
    for refused in (submit(workplace, cloud, status=4), start(workplace, cloud, "--force", status=4)):
        assert refused.err.startswith(
            f"layerbeam: gs://out/v: run 1 is active in this folder, as Dataflow job {JOB} (JOB_STATE_RUNNING): "
            f"https://console.cloud.google.com/dataflow/jobs/europe-west1/{JOB}?project=proj\n"
        )
        assert refused.err.endswith(f"gcloud dataflow jobs cancel {JOB} --region=europe-west1 --project=proj\n")
    assert len(cloud.jobs) == 1
    assert set(cloud.tree("gs://out/v")) - {"_runs/1.alive"} == {"_runs/1.json"}


def test_work_resumes_after_a_cancelled_job(workplace, cloud):
    submit(workplace, cloud)
    cloud.states = ["JOB_STATE_CANCELLED"]
    start(workplace, cloud)
    assert (record(cloud, 1)["state"], record(cloud, 2)["state"]) == ("cancelled", "done")
    assert "_SUCCESS" in cloud.tree("gs://out/v")


def test_show_names_the_state_of_a_cancelled_job(workplace, cloud):
    submit(workplace, cloud)
    cloud.states = ["JOB_STATE_CANCELLED"]
    cloud.refusal = ServiceError(400, "no quota")
    submit(workplace, cloud, status=2)
    del cloud.buckets["out"]["v/_runs/2.json"]
    out = workplace._call("show", "gs://out/v", status=0).out
    assert "gs://out/v: unfinished: cancelled" in out


def test_job_that_may_not_be_asked_for(workplace, cloud, monkeypatch):
    submit(workplace, cloud)

    def deny(*_: object) -> None:
        raise ServiceError(403, "Current user cannot access the job.")

    monkeypatch.setattr(GoogleCloud, "_job", deny)
    refused = start(workplace, cloud, status=2)
    assert refused.err == (
        f"layerbeam: gs://out/v: run 1 was submitted as Dataflow job {JOB}, whose state is unknown: Current user "
        f"cannot access the job; look at https://console.cloud.google.com/dataflow/jobs/europe-west1/{JOB}?project=proj"
        ": if the job has ended, --force starts\n"
    )
    start(workplace, cloud, "--force")
    assert (record(cloud, 1)["state"], record(cloud, 2)["state"]) == ("lost", "done")


def test_job_of_a_template_is_asked_for(workplace, cloud):
    """The service names the template's file after the job."""
    submit(workplace, cloud, f"--template_location=gs://tmp/staging/template_launches/{JOB}/job_object")
    assert (record(cloud, 1)["state"], record(cloud, 1)["job"], cloud.jobs) == ("submitted", JOB, [])
    cloud.jobs.append({"name": "nightly", "type": "JOB_TYPE_BATCH"})  # as the service does after the launch
    cloud.states = ["JOB_STATE_QUEUED"]
    assert "(JOB_STATE_QUEUED)" in submit(workplace, cloud, status=4).err
    assert cloud.calls.count(ASKED) == 1


def test_unknown_job_and_missing_packages(google, monkeypatch):
    class Options:
        @staticmethod
        def view_as(kind):
            made = kind()
            made.dataflow_endpoint = google.url
            return made

    def unknown(*_: object) -> None:
        raise ServiceError(404, "The job is unknown.")

    monkeypatch.setattr(GoogleCloud, "_job", unknown)
    job = DataflowJob(JOB, "proj", "europe-west1")
    with pytest.raises(BusyError, match="The job is unknown"):
        job.state(Options)
    assert google.calls[-1] == ASKED
    monkeypatch.setitem(sys.modules, "apache_beam.internal.gcp.auth", None)
    with pytest.raises(UsageError, match=r"packages are missing; run: pip install .*\[gcp\]"):
        job.state(Options)
