"""An Airflow DAG that embeds the previous day's texts on Dataflow every night. The guide is docs/dataflow.md.

It needs Airflow 3 with the providers google and apache-beam, and the connection google_cloud_default with a service
account that may launch Dataflow jobs and read the bucket.

How it was checked: run by the real Airflow with a local stand-in for Google (`make test-airflow`), never with Google.
"""

from datetime import datetime, timedelta

from airflow.providers.google.cloud.operators.dataflow import DataflowStartFlexTemplateOperator
from airflow.providers.google.cloud.sensors.gcs import GCSObjectExistenceSensor
from airflow.sdk import DAG, CronDataIntervalTimetable

PROJECT = "my-project"
REGION = "us-central1"
BUCKET = "my-bucket"
IMAGE = "us-central1-docker.pkg.dev/my-project/layerbeam/layerbeam:0.1.0-cpu"

with DAG(
    "layerbeam",
    # An interval, so that {{ ds }} is the day that has ended. With a plain cron string, Airflow 3 gives the start day.
    schedule=CronDataIntervalTimetable("30 2 * * *", timezone="UTC"),
    start_date=datetime(2026, 1, 1),
    catchup=False,
    max_active_runs=1,
    # A retried job resumes where the previous one stopped: committed blocks are not encoded again.
    default_args={"retries": 2, "retry_delay": timedelta(minutes=10)},
):
    embed = DataflowStartFlexTemplateOperator(
        task_id="embed",
        project_id=PROJECT,
        location=REGION,
        deferrable=True,  # the triggerer waits for the end of the job and holds no worker
        body={
            "launchParameter": {
                "containerSpecGcsPath": f"gs://{BUCKET}/templates/layerbeam-cpu.json",
                "jobName": "layerbeam-{{ ds_nodash }}",  # the operator makes it unique by a suffix
                "parameters": {
                    "config": f"gs://{BUCKET}/configs/dataflow-cpu.yaml",
                    "input": f"gs://{BUCKET}/logs/{{{{ ds }}}}/*.txt",
                    "output": f"gs://{BUCKET}/nightly/dt={{{{ ds }}}}",
                    "sdk_container_image": IMAGE,
                },
                "environment": {
                    "serviceAccountEmail": f"layerbeam@{PROJECT}.iam.gserviceaccount.com",
                    "tempLocation": f"gs://{BUCKET}/temp",
                    "stagingLocation": f"gs://{BUCKET}/staging",
                    "maxWorkers": 20,
                    "additionalUserLabels": {"day": "{{ ds }}"},
                },
            }
        },
    )
    # A job can succeed although the run is incomplete: files skipped, or more rejects than max_reject_rate allows. A
    # retry does not fix that.
    complete = GCSObjectExistenceSensor(
        task_id="complete",
        bucket=BUCKET,
        object="nightly/dt={{ ds }}/_SUCCESS",
        timeout=60,
        poke_interval=20,
        retries=0,
    )
    embed >> complete
