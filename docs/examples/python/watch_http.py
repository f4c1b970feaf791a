"""Follows a plane by lines of JSON: python3 watch_http.py http://127.0.0.1:7400

Needs nothing but Python.
"""

import http
import json
import sys
import time
import urllib.error
import urllib.request

from plane import Broken, Cursor, Ended, Follower, View, Worker, adopts, show

# Silence that ends a stream: 2.5 times the heartbeat asked for, seconds. The
# plane may beat faster, but not slower.
PATIENCE = 2.5
DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def stream(url, held):
    """Yields (event, view) for every line of one stream. It begins with a
    full: there is nothing to resume."""
    held.begin()
    try:
        with DIRECT.open(url + "/v1/load_monitor/watch?heartbeat_ms=1000", timeout=PATIENCE) as lines:
            for line in lines:
                m = json.loads(line)
                yield m["type"], held.apply(m, time.monotonic())
                if m["type"] == "go_away":
                    raise Ended(f"go_away: {m['reason']}", within=m["reconnect_within_ms"] / 1000)
    except urllib.error.HTTPError as error:
        raise refused(error) from None
    except TimeoutError:
        raise Ended("silent") from None


def refused(error):
    """Returns what an answer of 4xx or 5xx asks for."""
    after = error.headers.get("Retry-After", "")
    least = int(after) if after.isdigit() else 5 if error.code < http.HTTPStatus.INTERNAL_SERVER_ERROR else 0
    return Ended(f"{error.code}: {error.read(1024).decode(errors='replace').strip()}", least=least)


class Held:
    """The plane's view as one client holds it, across streams."""

    def __init__(self):
        self.view = None
        self._next = None

    def begin(self):
        # The view of the stream, adopted or not.
        self._next = None

    def apply(self, m, at):
        """Takes the next line and returns the view in force."""
        self._next = self._after(m, at)
        if adopts(self.view, self._next, at):
            self.view = self._next
        return self.view

    def _after(self, m, at):
        cursor = Cursor(m["lineage"], m["epoch"], m["version"])
        base = self._next
        older = self.view and self.view.cursor.lineage == cursor.lineage and cursor < self.view.cursor
        if older or base and base.cursor.lineage != cursor.lineage:
            raise Broken(f"{cursor} after {base and base.cursor}")
        if m["type"] == "full":
            workers, until = {}, {}
        elif base is None:
            raise Broken(f"{m['type']} without a full")
        else:
            workers, until = dict(base.workers), dict(base.until)
        if m["type"] == "delta":
            if m["base_version"] != base.cursor.version:
                raise Broken(f"delta on {m['base_version']}, not {base.cursor.version}")
            for worker_id in m["removed"]:
                workers.pop(worker_id, None)
                until.pop(worker_id, None)
        elif m["type"] != "full" and cursor != base.cursor:
            raise Broken(f"{m['type']} of {cursor}, not {base.cursor}")
        workers.update((w["worker_id"], worker_of(w)) for w in m.get("workers", []))
        for r in m.get("workers", []) + m["liveness"]:
            if r["valid_for_ms"] is not None:
                until[r["worker_id"]] = at + r["valid_for_ms"] / 1000
        return View(cursor, m["warming"], workers, until)


def worker_of(w):
    load = w["aggregate"] or {}
    return Worker(w["freshness"], w["draining"], load.get("total_requests"))


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: watch_http.py URL")
    kept = Held()
    show(Follower(lambda: stream(sys.argv[1].rstrip("/"), kept)))
