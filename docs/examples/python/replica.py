"""Turns the messages of WatchSnapshots into views."""

from loadplane.v1 import common_pb2

from plane import Broken, Cursor, View, Worker, adopts

# How long an observation of the server's clock counts, seconds.
CLOCK_WINDOW = 60.0
MAX_CHUNKS = 4096

FRESHNESS = {
    common_pb2.FRESHNESS_MISSING: "missing",
    common_pb2.FRESHNESS_FRESH: "fresh",
    common_pb2.FRESHNESS_STALE: "stale",
    common_pb2.FRESHNESS_UNREACHABLE: "unreachable",
}


class Clock:
    """Maps the clock of one stream's server to ours. The message of the last
    minute or two that was the least delayed decides, so that a message that
    was read late makes nothing valid for longer."""

    def __init__(self):
        self._zero = self._before = self._began = None

    def seen(self, server_ms, at):
        zero = at - server_ms / 1000
        if self._zero is None:
            self._zero = self._before = zero
            self._began = at
        elif at - self._began > CLOCK_WINDOW:
            self._before, self._zero, self._began = self._zero, zero, at
        else:
            self._zero = min(self._zero, zero)

    def local(self, server_ms):
        return min(self._zero, self._before) + server_ms / 1000


class Replica:
    """The plane's view as one client holds it, across streams."""

    def __init__(self):
        self.view = None
        self._lost = False
        self._begin()

    def _begin(self):
        # A view of another lineage that is not adopted yet.
        self._candidate = None
        # The lineage of the stream, and the chunks of an unfinished event.
        self._lineage, self._parts = "", []
        self._clock = Clock()

    def resume(self):
        """Begins a stream; returns the cursor to open it with, None for a
        full. The stream before it must be over."""
        self._begin()
        if self.view is None or self._lost:
            return None
        return common_pb2.Cursor(**self.view.cursor._asdict())

    def apply(self, m, at):
        """Takes the next message and returns the view in force, None before
        the first. Raises Broken where the stream must be ended."""
        try:
            view = self._advance(m, at)
        except Broken:
            self._lost, self._parts = True, []
            raise
        if view is not None:
            self._lost = False
            if adopts(self.view, view, at):
                self.view, self._candidate = view, None
            else:
                self._candidate = view
        return self.view

    def _advance(self, m, at):
        """Returns the view that a message leads to, None for a mere chunk."""
        if not m.cursor.lineage or self._lineage not in ("", m.cursor.lineage):
            raise Broken(f"lineage {m.cursor.lineage!r} after {self._lineage!r}")
        self._lineage = m.cursor.lineage
        parts = self._gather(m)
        if parts is None:
            return None
        base = self._base()
        cursor = cursor_of(m)
        if base and cursor[1:3] < base.cursor[1:3]:
            raise Broken(f"{cursor} after {base.cursor}")
        workers = self._workers(parts, base)
        if sum(w.content_hash for w in workers.values()) % 2**64 != m.digest:
            raise Broken(f"the workers of {cursor} do not sum to the digest")
        return View(cursor, m.warming, workers, self._until(m, base, workers, at), m.digest)

    def _base(self):
        for view in (self._candidate, self.view):
            if view and view.cursor.lineage == self._lineage:
                return view
        return None

    def _gather(self, m):
        """Returns the messages of an event, None while chunks are missing."""
        number, count, _ = place(m)
        follows = not self._parts or (
            cursor_of(m) == cursor_of(self._parts[0]) and place(m)[1:] == place(self._parts[0])[1:]
        )
        if count > MAX_CHUNKS or number != len(self._parts) or not follows:
            raise Broken(f"chunk {number} of {count} after {len(self._parts)} others")
        self._parts.append(m)
        if len(self._parts) < count:
            return None
        parts, self._parts = self._parts, []
        return parts

    def _workers(self, parts, base):
        last = parts[-1]
        kind = last.WhichOneof("event")
        if kind == "full":
            return {w.worker_id: worker_of(w) for m in parts for w in m.full.workers}
        fits = base and cursor_of(last)._replace(version=0) == base.cursor._replace(version=0)
        if kind in ("heartbeat", "go_away") and fits and last.cursor.version == base.cursor.version:
            return base.workers
        if kind != "delta" or not fits or last.delta.base_version != base.cursor.version:
            raise Broken(f"{kind} to {cursor_of(last)} on {base and base.cursor}")
        workers = dict(base.workers)
        for r in (r for m in parts for r in m.delta.removed):
            held = workers.get(r.worker_id)
            if held and held.row == r.row:  # else it was never ours
                del workers[r.worker_id]
        for w in (w for m in parts for w in m.delta.workers):
            workers[w.worker_id] = worker_of(w)
        return workers

    def _until(self, m, base, workers, at):
        """Returns when the workers turn invalid, by our clock."""
        self._clock.seen(m.server_clock_ms, at)
        until = {}
        if base and not m.HasField("full"):  # a full brings all receipts
            for worker_id, w in workers.items():
                held = base.workers.get(worker_id)
                if held and held.row == w.row and worker_id in base.until:
                    until[worker_id] = base.until[worker_id]
        rows = {w.row: worker_id for worker_id, w in workers.items()}
        for r in m.liveness.workers:
            if r.row in rows:
                latest = at + m.stale_after_ms / 1000
                until[rows[r.row]] = min(self._clock.local(r.valid_until_ms), latest)
        return until


def cursor_of(m):
    c = m.cursor
    return Cursor(c.lineage, c.epoch, c.version, c.filter_hash)


def place(m):
    """Returns number and count of a chunk, and what all of an event share."""
    if m.HasField("full"):
        return m.full.chunk, m.full.chunks, "full"
    if m.HasField("delta"):
        return m.delta.chunk, m.delta.chunks, ("delta", m.delta.base_version)
    return 0, 0, ""


def worker_of(w):
    known = w.aggregate.HasField("total_requests")
    return Worker(
        freshness=FRESHNESS.get(w.freshness, "unknown"),
        draining=w.draining,
        total_requests=w.aggregate.total_requests if known else None,
        row=w.row,
        content_hash=w.content_hash,
    )
