"""Processes the expired sessions that `service --spool DIR` writes, with the Python package dirq.

Usage: spool_worker.py DIR [--once]

Any number of workers may run at the same time. An element that is not an event is reported once on stderr, and kept.
"""

import errno
import json
import sys
import time

from dirq.QueueSimple import QueueSimple

queue = QueueSimple(sys.argv[1])
reported = set()


def work(name):
    """Prints one event and removes it from the queue."""
    if not queue.lock(name):
        return
    try:
        event = json.loads(queue.get(name))
        line = "%s %s %s" % (event["meta"]["cause"], event["key"], json.dumps(event["value"]))
    except (ValueError, KeyError, TypeError) as error:
        if name not in reported:
            reported.add(name)
            print("%s is not an event: %s" % (name, error), file=sys.stderr, flush=True)
        queue.unlock(name, permissive=True)
        return
    print(line, flush=True)
    queue.remove(name)


def step(call, *args):
    """Returns the result of a call, or None if another worker has removed its element or directory."""
    try:
        return call(*args)
    except OSError as error:
        # The package also raises OSError without an errno, for failures that it detects itself.
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
