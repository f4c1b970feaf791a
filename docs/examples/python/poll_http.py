"""Asks a plane again and again: python3 poll_http.py http://127.0.0.1:7400

The plane holds an answer back until the content is another than that of the
entity tag. Needs nothing but Python.
"""

import dataclasses
import http
import json
import sys
import time
import urllib.error
import urllib.request

from plane import Cursor, Ended, Follower, View, adopts, show
from watch_http import DIRECT, refused, worker_of

# How long the plane may hold an answer back, seconds. It waits up to a
# sixteenth longer.
WAIT = 1
# When the answer after this one is due at the latest, seconds.
DUE = WAIT * 17 / 16 + 1
# Time between two questions, so that busy engines do not make a busy loop.
PAUSE = 0.1


class Poll:
    """The newest answer, its tag, and the view in force."""

    def __init__(self, url):
        self.url = f"{url}/v1/load_monitor/snapshot?wait={WAIT}s"
        self._tag, self._newest, self._view = None, None, None

    def stream(self):
        """Yields (event, view) for every answer."""
        while True:
            request = urllib.request.Request(self.url)
            if self._tag:
                request.add_header("If-None-Match", self._tag)
            try:
                with DIRECT.open(request, timeout=WAIT + 2) as answer:
                    yield "full", self._take(json.load(answer), answer.headers["ETag"])
            except urllib.error.HTTPError as error:
                if error.code != http.HTTPStatus.NOT_MODIFIED:
                    raise refused(error) from None
                yield "heartbeat", self._same()
            except TimeoutError:
                raise Ended("silent") from None
            time.sleep(PAUSE)

    def _take(self, page, tag):
        at, workers = time.monotonic(), page["workers"]
        self._tag = tag
        self._newest = View(
            Cursor(page.get("lineage", ""), page.get("epoch", 0), page["version"]),
            page.get("warming", False),
            {w["worker_id"]: worker_of(w) for w in workers},
            {w["worker_id"]: at + w["valid_for_ms"] / 1000 for w in workers if w["valid_for_ms"] is not None},
        )
        return self._adopt(at)

    def _same(self):
        """The content is the same, so what was fresh is fresh now. A 304 has
        no receipts: hold it valid until the next answer is due."""
        at = time.monotonic()
        until = {worker_id: max(t, at + DUE) for worker_id, t in self._newest.until.items()}
        self._newest = dataclasses.replace(self._newest, until=until)
        return self._adopt(at)

    def _adopt(self, at):
        if adopts(self._view, self._newest, at):
            self._view = self._newest
        return self._view


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: poll_http.py URL")
    show(Follower(Poll(sys.argv[1].rstrip("/")).stream))
