"""Follows a plane by gRPC: python3 watch_grpc.py 127.0.0.1:7400

Needs grpcio and the generated code of loadplane/v1; docs/routers.md says how
to make it.
"""

import queue
import sys
import threading
import time

import grpc
from loadplane.v1 import snapshot_pb2, snapshot_pb2_grpc

from plane import FIRST_MESSAGE, Ended, Follower, show
from replica import Replica

OPTIONS = [
    # Every stream has a connection of its own, without the back-off of the
    # last one.
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.enable_http_proxy", 0),
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.max_receive_message_length", 64 << 20),
]


def read(call, arrivals):
    """Notes when each message came, however late it is applied."""
    try:
        for m in call:
            arrivals.put((m, time.monotonic()))
        arrivals.put((Ended("closed"), 0))
    except grpc.RpcError as error:
        full = error.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
        arrivals.put((Ended(f"{error.code().name}: {error.details()}", least=1.0 if full else 0.0), 0))


def stream(address, replica):
    """Yields (event, view) for every message of one stream."""
    with grpc.insecure_channel(address, OPTIONS) as channel:
        call = snapshot_pb2_grpc.SnapshotServiceStub(channel).WatchSnapshots(
            snapshot_pb2.WatchSnapshotsRequest(resume=replica.resume(), client_id="python")
        )
        arrivals = queue.Queue()
        threading.Thread(target=read, args=(call, arrivals), daemon=True).start()
        try:
            yield from apply(arrivals, replica)
        finally:
            call.cancel()


def apply(arrivals, replica):
    patience = FIRST_MESSAGE
    while True:
        try:
            m, at = arrivals.get(timeout=patience)
        except queue.Empty:
            raise Ended("silent") from None
        if isinstance(m, Ended):
            raise m
        view = replica.apply(m, at)
        yield m.WhichOneof("event"), view
        if m.HasField("go_away"):
            raise Ended(f"go_away: {m.go_away.reason}", within=m.go_away.reconnect_within_ms / 1000)
        patience = 2.5 * (m.heartbeat_interval_ms or 1000) / 1000


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: watch_grpc.py HOST:PORT")
    held = Replica()
    show(Follower(lambda: stream(sys.argv[1], held)))
