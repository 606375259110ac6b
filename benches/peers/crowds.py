"""What a gate has to hold while calls go through it: open connections with a steady load on them, calls that wait, and keys that fail."""

import collections
import gc
import os
import select
import socket
import struct
import subprocess
import time

import load
from prepare import path_of
from process import PATIENCE, Failed

AT_ONCE = 32           # calls in flight where the rate is not what matters
STREAMS = 1000         # the most calls that a gate takes on a connection of HTTP/2
BODY = load.BODY.encode()
# One for each point at a time. `select` takes no file past the thousandth, so they are opened before all connections.
EPOLLS = [select.epoll() for _ in range(8)]


def request(host, target):
    headers = "".join(f"{name}: {value}\r\n" for name, value in load.HEADERS.items())
    return f"GET {target} HTTP/1.1\r\nhost: {host}\r\n{headers}\r\n".encode()


class Callers:
    """Open connections of HTTP/1.1, on some of which calls go, one at a time on each. Every answer is checked to its last byte."""

    def __init__(self, name, port, number, requests, calling=None):
        """`calling` is the number of connections that calls go on, if not on all: the others make one call and stay."""
        self.name, self.requests = name, requests
        self.epoll = EPOLLS.pop()
        self.connections, self.unread, self.begun = {}, {}, {}
        self.next = 0
        all_free = []
        for begin in range(0, number, AT_ONCE):    # not all at first: a gate closes a connection that says nothing
            self.free = collections.deque(self._open(port) for _ in range(begin, min(begin + AT_ONCE, number)))
            self.run(len(self.free))
            all_free += self.free
        self.free = collections.deque(all_free[:calling])

    def _open(self, port):
        connection = socket.create_connection(("127.0.0.1", port), PATIENCE)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.setblocking(False)
        self.connections[connection.fileno()] = connection
        self.epoll.register(connection, select.EPOLLIN)
        return connection.fileno()

    def close(self):
        for connection in self.connections.values():
            connection.close()    # which the epoll forgets
        EPOLLS.append(self.epoll)

    def steady(self, rate, seconds):
        """The microseconds that each of so many calls a second took, sorted."""
        return self.run(round(rate * seconds), rate)

    def run(self, number, rate=None):
        """Makes calls, at a rate or as many at once as may be. A call that finds no free connection waits, and its time has begun."""
        gc.disable()    # it would stop the clock of calls
        try:
            taken = self._run(number, rate)
        except OSError as error:
            raise Failed(f"{self.name}: {error}") from error
        finally:
            gc.enable()
        return sorted(round(each * 1e6) for each in taken)

    def _run(self, number, rate):
        taken, due, started = [], collections.deque(), 0
        begun = heard = time.perf_counter()
        while len(taken) < number:
            now = time.perf_counter()
            ready = number if rate is None else min(number, int((now - begun) * rate) + 1)
            if rate is None:
                ready = min(ready, len(taken) + AT_ONCE)
            due.extend([now] * (ready - started))
            started = max(started, ready)
            while due and self.free:
                self._send(due.popleft())
            if now - heard > PATIENCE:
                raise Failed(f"{self.name}: {started - len(taken)} calls have no answer after {PATIENCE} seconds")
            next_at = begun + started / rate if rate and started < number else now + 1
            # select waits to the microsecond, where epoll by itself waits to the millisecond.
            if select.select([self.epoll.fileno()], [], [], max(0.0, next_at - time.perf_counter()))[0]:
                heard = time.perf_counter()
                for place, _ in self.epoll.poll(0):
                    self._read(place, taken)
        return taken

    def _send(self, since):
        place = self.free.popleft()
        self.begun[place] = since
        text = self.requests[self.next % len(self.requests)]
        self.next += 1
        if self.connections[place].send(text) != len(text):
            raise Failed(f"{self.name}: a connection did not take a request")

    def _read(self, place, taken):
        got = self.connections[place].recv(65536)
        now = time.perf_counter()
        answer = self.unread.pop(place, b"") + got
        if not got or place not in self.begun:
            raise Failed(f"{self.name}: a connection was closed, or an answer came to no call: {answer[:300]!r}")
        head, end, body = answer.partition(b"\r\n\r\n")
        if end and (not head.startswith(b"HTTP/1.1 200 ") or not BODY.startswith(body)):
            raise Failed(f"{self.name}: a wrong answer: {answer[:300]!r}")
        if len(body) < len(BODY):
            self.unread[place] = answer
            return
        taken.append(now - self.begun.pop(place))
        self.free.append(place)


class Waiting:
    """Calls that wait in the gate: streams of HTTP/2, from clients that send their headers once, as Go's do."""

    PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
    SETTINGS, PING, HEADERS = 4, 6, 1
    ACK, END_OF_ALL = 1, 5

    def __init__(self, name, port, number):
        self.name, self.connections = name, []
        for begin in range(0, number, STREAMS):
            connection = socket.create_connection(("127.0.0.1", port), PATIENCE)
            connection.sendall(self.PREFACE + self.frame(self.SETTINGS, 0, 0))
            streams = range(begin, min(begin + STREAMS, number))
            connection.sendall(b"".join(self.call(stream, port, count) for count, stream in enumerate(streams)))
            connection.setblocking(False)
            self.connections.append([connection, b""])

    @staticmethod
    def frame(kind, flags, stream, payload=b""):
        return struct.pack(">I", len(payload))[1:] + bytes([kind, flags]) + struct.pack(">I", stream) + payload

    def call(self, number, port, count):
        """The fields that are the same in all calls come in full with the first, and are numbers of the table from then on."""
        path = f"/api/v1/namespaces/waiting/configmaps/cm-{number}".encode()
        own = [b"\x82\x86\x04", text_of(path), b"\x01", text_of(f"127.0.0.1:{port}".encode())]
        known = [(b"\x7a", "user-agent"), (b"\x53", "accept"), (b"\x57", "authorization")]
        if count == 0:
            fields = [mark + text_of(load.HEADERS[name].encode()) for mark, name in known]
        else:
            fields = [bytes([0x80 | 62 + age]) for age in range(len(known))]
        return self.frame(self.HEADERS, self.END_OF_ALL, 2 * count + 1, b"".join(own + fields))

    def tend(self):
        """Answers what the gate asks, and fails if it answers a call."""
        for kept in self.connections:
            connection, unread = kept
            while True:
                try:
                    got = connection.recv(65536)
                except BlockingIOError:
                    break
                if not got:
                    raise Failed(f"{self.name} closed a connection with waiting calls")
                unread += got
            while len(unread) >= 9 and len(unread) >= 9 + int.from_bytes(unread[:3], "big"):
                size, kind, flags = int.from_bytes(unread[:3], "big"), unread[3], unread[4]
                payload, unread = unread[9:9 + size], unread[9 + size:]
                if kind == self.PING and not flags & self.ACK:
                    connection.sendall(self.frame(self.PING, self.ACK, 0, payload))
                elif kind == self.SETTINGS and not flags & self.ACK:
                    connection.sendall(self.frame(self.SETTINGS, self.ACK, 0))
                elif kind in (0, self.HEADERS, 3, 7):
                    raise Failed(f"{self.name}: a call that should wait was answered, with a frame of kind {kind}: {payload[:200]!r}")
            kept[1] = unread

    def close(self):
        for connection, _ in self.connections:
            connection.close()


def text_of(value):
    """A text of HPACK, without Huffman's code: its length, with seven bits in the first byte."""
    length = len(value)
    if length < 127:
        return bytes([length]) + value
    size, length = b"\x7f", length - 127
    while length >= 128:
        size, length = size + bytes([length % 128 + 128]), length // 128
    return size + bytes([length]) + value


def fail(name, port, number, folder):
    """Makes so many keys fail: each is called once, over HTTP/2, and the upstream answers 500."""
    uris = os.path.join(folder, f"failing-{port}")
    with open(uris, "w") as file:
        file.writelines(f"http://127.0.0.1:{port}/api/v1/namespaces/failing/configmaps/cm-{key}\n" for key in range(number))
    command = [path_of("h2load"), "-t1", "-c1", "-m100", f"-n{number}", "-i", uris]
    command += [f"-H{header}: {value}" for header, value in load.HEADERS.items()]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=5 * PATIENCE)
    os.unlink(uris)
    statuses = load.counts(done.stdout, "status codes: ")
    if statuses["5xx"] != number:
        raise Failed(f"{name}: not every call failed:\n{done.stdout[-1500:]}")
