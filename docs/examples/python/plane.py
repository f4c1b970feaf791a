"""What the examples share: a view, how it is kept, and how it is shown.

Times are readings of time.monotonic(), seconds. Wall clocks decide nothing.
"""

import dataclasses
import json
import queue
import random
import threading
import time
import typing

# How long a new stream may be silent, seconds.
FIRST_MESSAGE = 5.0
# The random wait before a reconnect doubles from one to the other, seconds.
FIRST_WINDOW, LAST_WINDOW = 0.1, 5.0
# A stream that lasted so long makes failures before it forgotten, seconds.
HEALTHY_AFTER = 30.0


class Cursor(typing.NamedTuple):
    """Names a content of the view. Versions compare within a lineage only."""

    lineage: str
    epoch: int
    version: int
    filter_hash: int = 0


class Worker(typing.NamedTuple):
    """A worker as the plane last told it."""

    freshness: str
    draining: bool
    # Unknown is None, which is not 0.
    total_requests: typing.Optional[int]
    # Row number and hash are not in JSON.
    row: int = 0
    content_hash: int = 0


@dataclasses.dataclass(frozen=True)
class View:
    """The state of all workers at one version. Nobody changes it."""

    cursor: Cursor
    warming: bool
    # By worker_id.
    workers: typing.Dict[str, Worker]
    # When a worker that was heard stops being valid, by worker_id.
    until: typing.Dict[str, float]
    # None in JSON.
    digest: typing.Optional[int] = None

    def valid(self, worker_id, now):
        """Whether a worker may be judged by its numbers: it turns false by
        itself when nothing is heard any more."""
        fresh = self.workers[worker_id].freshness == "fresh"
        return fresh and now < self.until.get(worker_id, now)

    def count_valid(self, now):
        return sum(self.valid(worker_id, now) for worker_id in self.workers)

    def next_expiry(self, now):
        """Seconds until the next worker turns invalid; None for never."""
        left = [t - now for t in self.until.values() if t > now]
        return min(left, default=None)


def adopts(old, new, now):
    """Whether a view takes the place of another: that of a plane that has just
    started may know less than the one before it did."""
    if old is None or old.cursor.lineage == new.cursor.lineage or not new.warming:
        return True
    return new.count_valid(now) >= old.count_valid(now)


class Broken(Exception):
    """A message does not fit: the next stream must begin with a full."""


class Ended(Exception):
    """The stream is over. The next one begins after at least some seconds, or
    at random within some."""

    def __init__(self, why, least=0.0, within=0.0):
        super().__init__(why)
        self.least, self.within = least, within


class Follower(threading.Thread):
    """Runs one stream after another.

    A stream is a generator of (event, view) that raises when it is over. What
    it yields, and how it ended, comes out of events as (event, view, why).
    """

    def __init__(self, stream):
        super().__init__(daemon=True)
        self._stream = stream
        self.events = queue.Queue()

    def run(self):
        view, failures = None, 0
        while True:
            began, end = time.monotonic(), Ended("closed")
            try:
                for event, view in self._stream():
                    self.events.put((event, view, None))
            except Ended as error:
                end = error
            except Exception as error:  # whatever it was, go on
                end = Ended(f"{type(error).__name__}: {error}")
            self.events.put(("lost", view, str(end)))
            if time.monotonic() - began > HEALTHY_AFTER:
                failures = 0
            window = end.within or min(LAST_WINDOW, FIRST_WINDOW * 2**failures)
            failures = min(failures + 1, 10)
            time.sleep(end.least + random.uniform(0, window))


def show(follower):
    """Prints a JSON line for every message, and when a worker turned invalid
    because nothing was heard."""
    follower.start()
    view = None
    while True:
        wait = view.next_expiry(time.monotonic()) if view else None
        why = None
        try:
            event, view, why = follower.events.get(timeout=wait)
        except queue.Empty:
            event = "expired"
        print(json.dumps(line(event, view, why)), flush=True)


def line(event, view, why):
    out = {"event": event, "why": why}
    if view is None:
        return out
    now = time.monotonic()
    lineage, epoch, version, _ = view.cursor
    out.update(lineage=lineage, epoch=epoch, version=version, warming=view.warming)
    out["digest"] = None if view.digest is None else f"{view.digest:016x}"
    out["workers"] = [
        {
            "worker_id": worker_id,
            "freshness": w.freshness,
            "valid": view.valid(worker_id, now),
            "valid_for_ms": max(0, int(1000 * (view.until.get(worker_id, now) - now))),
            "total_requests": w.total_requests,
        }
        for worker_id, w in sorted(view.workers.items())
    ]
    return out
