"""The load, and its checks: every answer is checked, and a wrong one ends the run."""

import os
import re
import socket
import subprocess
import time

from process import PATIENCE, Failed

HEAD = '{"kind":"ConfigMap","apiVersion":"v1","metadata":{"name":"settings","namespace":"default"},"data":{"value":"'
BODY = HEAD + "v" * (1024 - len(HEAD) - 3) + '"}}'    # 1 KiB: a small object
EVENT = '{"type":"ADDED","object":{"kind":"ConfigMap","apiVersion":"v1","metadata":{"name":"settings"}}}'
TOKEN = "x" * 900                                     # a service account's is about this long
HEADERS = {"user-agent": "bench/1.0 (linux/amd64)", "accept": "application/json", "authorization": f"Bearer {TOKEN}"}
AT_ONCE = 64                                          # calls in flight at saturation


def path(number):
    return f"/api/v1/namespaces/ns-{number % 10}/configmaps/cm-{number % 100}"


def watch_path(number):
    return f"/api/v1/namespaces/ns-{number % 10}/configmaps?allowWatchBookmarks=true&resourceVersion={number}&watch=true"


class Client:
    """A connection of HTTP/1.1."""

    def __init__(self, port):
        self.port = port
        self.socket = socket.create_connection(("127.0.0.1", port), PATIENCE)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.buffer = b""

    def send(self, target):
        headers = "".join(f"{name}: {value}\r\n" for name, value in HEADERS.items())
        self.socket.sendall(f"GET {target} HTTP/1.1\r\nhost: 127.0.0.1:{self.port}\r\n{headers}\r\n".encode())

    def call(self, target):
        """The body of an answer that must be 200."""
        self.send(target)
        head = self.head(target)
        length = re.search(rb"\r\ncontent-length: *(\d+)", head, re.IGNORECASE)
        if length:
            return self._take(int(length[1]))
        body = b""
        while True:
            size = int(self._until(b"\r\n").split(b";")[0], 16)
            body += self._take(size)
            self._until(b"\r\n")
            if size == 0:
                return body

    def watch(self, target):
        """Opens a watch and reads its first event."""
        self.send(target)
        self.head(target)
        self._until(EVENT.encode())

    def head(self, target):
        head = self._until(b"\r\n\r\n")
        if not re.match(rb"HTTP/1\.1 200\b", head):
            raise Failed(f"GET {target} was answered with {head[:200]!r}")
        return head

    def is_open(self):
        self.socket.setblocking(False)
        try:
            return self.socket.recv(1, socket.MSG_PEEK) != b""
        except BlockingIOError:
            return True
        except OSError:
            return False

    def close(self):
        self.socket.close()

    def _until(self, end):
        while end not in self.buffer:
            self._more()
        taken, self.buffer = self.buffer.split(end, 1)
        return taken

    def _take(self, size):
        while len(self.buffer) < size:
            self._more()
        taken, self.buffer = self.buffer[:size], self.buffer[size:]
        return taken

    def _more(self):
        got = self.socket.recv(65536)
        if not got:
            raise Failed(f"port {self.port} closed a connection in the midst of an answer: {self.buffer[:200]!r}")
        self.buffer += got


def check(name, port, over_h2, protocol):
    """Three calls, byte for byte, and the protocol that reached the upstream."""
    if over_h2:
        ask = lambda target: nghttp(port, target)
    else:
        client = Client(port)
        ask = client.call
    for number in range(3):
        body = ask(path(number))
        if body != BODY.encode():
            raise Failed(f"{name}: {path(number)} gave {len(body)} bytes that are not the upstream's: {body[:200]!r}")
    spoken = ask("/protocol").decode()
    if spoken != protocol:
        raise Failed(f"{name} speaks {spoken} to its upstream, not {protocol}")
    if not over_h2:
        client.close()


def nghttp(port, target):
    headers = [f"-H{name}: {value}" for name, value in HEADERS.items()]
    command = ["nghttp", "--no-verify-peer", *headers, f"https://127.0.0.1:{port}{target}"]
    return subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=PATIENCE).stdout


def served(upstream_port):
    """The number of requests that reached the upstream."""
    client = Client(upstream_port)
    text = client.call("/count").decode()
    client.close()
    return int(re.search(r"requests\s+\d+ \d+ (\d+)", text)[1])


class Load:
    """Calls by h2load, each with the right answer of the upstream."""

    def __init__(self, peer, port, upstream_port, folder, over_h2=False):
        self.peer, self.upstream_port = peer, upstream_port
        self.over_h2 = over_h2
        self.log = os.path.join(folder, "latencies")
        uris = os.path.join(folder, "uris")
        scheme = "https" if over_h2 else "http"
        with open(uris, "w") as file:
            file.writelines(f"{scheme}://127.0.0.1:{port}{path(number)}\n" for number in range(100))
        self.command = ["h2load", "-t1", "-i", uris, *(f"-H{name}: {value}" for name, value in HEADERS.items())]
        if not over_h2:
            self.command.append("--h1")

    def warm_up(self):
        self._run(["-n2000", *self._saturating()])

    def saturate(self, seconds):
        """The number of calls that were answered, and their number per second."""
        return self._run([f"-D{round(seconds * 1000)}ms", *self._saturating()], seconds)

    def _saturating(self):
        """Over HTTP/2 as from four clients with many calls each: client-go has one connection."""
        return ["-c4", f"-m{AT_ONCE // 4}"] if self.over_h2 else [f"-c{AT_ONCE}"]

    def at_rate(self, rate, seconds):
        """The number of calls that were answered, and the microseconds that each took, sorted.

        h2load looks at the clock of a client every 10 ms at most, so that each has 100 calls a second; they begin half a millisecond apart,
        so that their calls do not come together.
        """
        clients = max(1, rate // 100)
        if os.path.exists(self.log):
            os.unlink(self.log)
        spread = ["-r2", "--rate-period=1ms"]
        options = [f"-c{clients}", f"-n{round(rate * seconds)}", "--rps=100", *spread, f"--log-file={self.log}"]
        done, _ = self._run(options, seconds)
        with open(self.log) as file:
            taken = sorted(int(line.split()[2]) for line in file)
        if len(taken) != done:
            raise Failed(f"{self.peer.name}: {done} calls have {len(taken)} latencies")
        return done, taken

    def _run(self, options, seconds=0):
        before = served(self.upstream_port)
        try:
            process = subprocess.run(
                self.command + options, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=seconds * 4 + PATIENCE
            )
        except subprocess.TimeoutExpired as hung:
            raise Failed(f"{self.peer.name}: the load does not end: {str(hung.stdout)[-1500:]}") from hung
        done, per_second = self._judge(process.stdout, process.returncode)
        if served(self.upstream_port) - before < done:
            raise Failed(f"{self.peer.name}: the upstream has seen fewer than {done} requests")
        return done, per_second

    def _judge(self, out, code):
        try:
            calls, statuses = counts(out, "requests: "), counts(out, "status codes: ")
            data = int(re.search(r"^traffic: .*\((\d+)\) data", out, re.MULTILINE)[1])
            per_second = float(re.search(r"^finished in .*, ([\d.]+) req/s", out, re.MULTILINE)[1])
        except (StopIteration, TypeError, ValueError, KeyError) as error:
            raise Failed(f"{self.peer.name}: h2load ended with {code}:\n{out[-1500:]}") from error
        done = calls["done"]
        if self.peer.without_reason and calls["failed"] == done and not any(statuses.values()):
            calls["failed"], statuses["2xx"] = 0, done
        wrong = calls["failed"] + calls["errored"] + calls["timeout"] + statuses["3xx"] + statuses["4xx"] + statuses["5xx"]
        if code or not done or wrong or statuses["2xx"] < done:
            raise Failed(f"{self.peer.name}: wrong answers under load:\n{out[-1500:]}")
        # At the end of the time, some answers are half read.
        if not len(BODY) * done <= data <= len(BODY) * (done + AT_ONCE):
            raise Failed(f"{self.peer.name}: {done} answers had {data} bytes together, not {len(BODY)} each")
        return done, per_second


def counts(out, begin):
    """`requests: 10 total, 9 done` as numbers by word."""
    line = next(line for line in out.splitlines() if line.startswith(begin))
    return {word: int(number) for number, word in (part.split()[:2] for part in line[len(begin):].split(", "))}


class Crowd:
    """Many connections of HTTP/1.1 that stay: idle after one call, or each with an open watch."""

    def __init__(self, name, port, number, watching):
        self.name, self.clients = name, []
        begun = time.monotonic()
        for count in range(number):
            client = Client(port)
            self.clients.append(client)
            try:
                if watching:
                    client.watch(watch_path(count))
                elif client.call(path(count)) != BODY.encode():
                    raise Failed(f"{name}: a wrong answer on connection {count}")
            except TimeoutError as stuck:
                raise Failed(f"{name} is stuck at connection {count} of {number}") from stuck
            if time.monotonic() - begun > 2 * PATIENCE:
                raise Failed(f"{name} took too long for {count} of {number} connections")
        time.sleep(0.5)    # for what is still being put away

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for client in self.clients:
            client.close()

    def check(self):
        lost = sum(not client.is_open() for client in self.clients)
        if lost:
            raise Failed(f"{self.name}: {lost} of {len(self.clients)} connections were lost")
