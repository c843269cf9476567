# /// script
# [tool.crash]
# settings = "prefork, `--concurrency 10`, `task_acks_late`, `task_reject_on_worker_lost`, `worker_prefetch_multiplier=1`"
# governs = "process: `task_reject_on_worker_lost`; host: `visibility_timeout` of the Redis transport (1 h)"
# restarts = "its main process"
# ///
"""Celery with the settings its documentation gives for tasks that must survive their worker."""

import crash_kit
from celery import Celery

app = Celery("crash", broker=crash_kit.URL)
app.conf.update(
    task_acks_late=True,
    task_reject_on_worker_lost=True,
    task_ignore_result=True,
    worker_prefetch_multiplier=1,
    broker_connection_retry_on_startup=True,
)


@app.task(name="job")
def job(data):
    crash_kit.run(data)


def worker():
    crash_kit.execute("celery", "-A", "crash_celery", "worker", "--concurrency=10")


if __name__ == "__main__":
    crash_kit.main(worker=worker, send=lambda data: job.delay(data) and None)
