"""An application whose worker takes a hundred jobs at a time; see tests.worker.app."""

import os

from queasy import Client
from tests.worker.app import journalled_async

client = Client(os.environ["TEST_URL"], prefix=os.environ["TEST_PREFIX"])
client.queue("swift").handler(size=1, timeout=60)(journalled_async)
