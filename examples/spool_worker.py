"""Takes what `service --spool DIR` has written, with the Python package dirq: spool_worker.py DIR [--once]"""

import json
import sys
import time

from dirq.QueueSimple import QueueSimple

queue = QueueSimple(sys.argv[1])
while True:
    name = queue.first()
    while name:
        if queue.lock(name):
            event = json.loads(queue.get(name))
            print(event["meta"]["cause"], event["key"], json.dumps(event["value"]), flush=True)
            queue.remove(name)
        name = queue.next()
    if "--once" in sys.argv:
        break
    queue.purge()
    time.sleep(1)
