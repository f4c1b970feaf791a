"""Publishes the load of some DP ranks on libzmq, as an engine does.

Usage: publisher.py PORT RANKS RUNNING SEQUENCE [HEARTBEAT_MS]

Rank r is on 127.0.0.1:PORT+r. PORT 0 takes free ports in a row. The port of rank
0 is printed. Each rank publishes ten times a second, and has RUNNING + r requests
running. The first message has SEQUENCE. With HEARTBEAT_MS libzmq sends pings.
"""
import struct
import sys
import time

import zmq


def bind(context, port, ranks, beat):
    """Binds a socket for each rank and returns them with the first port."""
    sockets = []
    for rank in range(ranks):
        s = context.socket(zmq.PUB)
        s.setsockopt(zmq.SNDHWM, 8)
        s.setsockopt(zmq.LINGER, 0)
        if beat:
            s.setsockopt(zmq.HEARTBEAT_IVL, beat)
            s.setsockopt(zmq.HEARTBEAT_TIMEOUT, 10 * beat)
        sockets.append(s)
        if port == 0:
            port = s.bind_to_random_port("tcp://127.0.0.1")
        else:
            s.bind("tcp://127.0.0.1:%d" % (port + rank))
    return sockets, port


def integer(n):
    return b"\xd3" + struct.pack(">q", n)


def load(rank, running):
    """Packs an array of eleven elements."""
    numbers = [running + rank, 2, 300, 1000, None, 40, 350, 128, 5000, 7000]
    packed = b"".join(b"\xc0" if n is None else integer(n) for n in numbers)
    return b"\x9b\xa8LoadStat" + packed


def main():
    port, ranks, running, sequence = (int(a) for a in sys.argv[1:5])
    beat = int(sys.argv[5]) if len(sys.argv) > 5 else 0
    context = zmq.Context()
    while True:
        try:
            sockets, first = bind(context, port, ranks, beat)
            break
        except zmq.ZMQError:
            if port:
                raise
    print(first, flush=True)
    while True:
        for rank, s in enumerate(sockets):
            s.send_multipart([b"load", struct.pack(">q", sequence), load(rank, running)])
        sequence += 1
        time.sleep(0.1)


main()
