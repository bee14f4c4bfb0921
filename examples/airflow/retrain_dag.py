"""Retrain every night. The worker needs sparkring, Java, and the cluster's settings, as for `sparkring submit`."""

from datetime import UTC, datetime, timedelta

from airflow.providers.standard.operators.bash import BashOperator
from airflow.sdk import DAG

NOTHING_NEW, BUSY = 11, 12

with DAG("retrain_flights", schedule="15 2 * * *", start_date=datetime(2026, 1, 1, tzinfo=UTC), catchup=False, max_active_runs=1):
    BashOperator(
        task_id="retrain",
        # On a cluster: sparkring submit /srv/flights/nightly.yaml --job retrain
        bash_command="sparkring retrain {{ var.value.get('flights_config', '/srv/flights/nightly.yaml') }} --exit-codes || "
                     "{ code=$?; [ $code -eq 10 ] && exit 0; exit $code; }",  # 10: the champion was kept, which is no failure
        skip_on_exit_code=[NOTHING_NEW, BUSY],
        retries=2,  # the next try goes on where this one ended
        retry_delay=timedelta(minutes=10),
        append_env=True)
