# /// script
# [tool.crash]
# settings = "`--workers 10` (threads), `retries=3`"
# governs = "nothing: a job is removed from the server before it runs, and `retries` are for exceptions"
# restarts = "the benchmark, at once"
# ///
"""Huey. It has no setting for at-least-once delivery."""

import crash_kit
from huey import RedisHuey

huey = RedisHuey(url=crash_kit.URL)


@huey.task(retries=3)
def job(data):
    crash_kit.run(data)


def worker():
    crash_kit.execute("huey_consumer", "crash_huey.huey", "--workers", 10)


def send(data):
    job(data)


if __name__ == "__main__":
    import crash_huey as app  # Huey names tasks by their module, and `__main__` is the consumer's

    crash_kit.main(worker=app.worker, send=app.send)
