"""Takes what `service --spool DIR` has written, with the Python package dirq: spool_worker.py DIR [--once]

Any number may work at once. What is no event is told of once, and stays.
"""

import errno
import json
import sys
import time

from dirq.QueueSimple import QueueSimple

queue = QueueSimple(sys.argv[1])
told = set()


def work(name):
    """Prints one event, and removes it from the queue."""
    if not queue.lock(name):
        return
    try:
        event = json.loads(queue.get(name))
        line = "%s %s %s" % (event["meta"]["cause"], event["key"], json.dumps(event["value"]))
    except (ValueError, KeyError, TypeError) as error:
        if name not in told:
            told.add(name)
            print("%s is no event: %s" % (name, error), file=sys.stderr, flush=True)
        queue.unlock(name, permissive=True)
        return
    print(line, flush=True)
    queue.remove(name)


def step(call, *args):
    """What a call returns; None where another worker was quicker, who removed an element or a directory."""
    try:
        return call(*args)
    except OSError as error:
        # What the package raises in its own words has no number.
        if error.errno not in (errno.ENOENT, None):
            raise
        return None


while True:
    name = step(queue.first)
    while name:
        step(work, name)
        name = step(queue.next)
    if "--once" in sys.argv:
        break
    step(queue.purge)
    time.sleep(1)
