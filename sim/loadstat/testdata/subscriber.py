"""Subscribes to addresses and prints messages: the address's index, and the frames in hex."""
import sys

import zmq

context = zmq.Context()
poller = zmq.Poller()
sockets = []
for address in sys.argv[2:]:
    socket = context.socket(zmq.SUB)
    socket.setsockopt(zmq.LINGER, 0)
    socket.setsockopt(zmq.HEARTBEAT_IVL, 100)
    socket.setsockopt(zmq.HEARTBEAT_TIMEOUT, 5000)
    socket.setsockopt(zmq.SUBSCRIBE, b"load")
    socket.connect(address)
    sockets.append(socket)
    poller.register(socket, zmq.POLLIN)
left = int(sys.argv[1])
while left > 0:
    ready = dict(poller.poll(15000))
    if not ready:
        sys.exit("nothing came for 15 s")
    for index, socket in enumerate(sockets):
        if socket in ready:
            print(index, *(frame.hex() for frame in socket.recv_multipart()), flush=True)
            left -= 1
context.destroy(0)
