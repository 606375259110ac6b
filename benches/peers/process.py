"""Processes that the bench starts: pinned, timed, measured, and ended by their ids."""

import atexit
import collections
import os
import signal
import socket
import subprocess
import time

PAGE = os.sysconf("SC_PAGE_SIZE")
TICK = os.sysconf("SC_CLK_TCK")
PATIENCE = 120    # seconds until something that neither listens nor answers is a failure; a busy machine is none

Cores = collections.namedtuple("Cores", "proxy load upstream")


class Failed(Exception):
    """The reason why the run has no result: an answer was wrong, or a process did not start."""


def cores():
    """One core for the proxy alone, another for the load, and the upstream beside the load unless there is a third."""
    found = sorted(os.sched_getaffinity(0))
    if len(found) < 2:
        raise Failed("two cores are needed: what makes the load must not run on the proxy's")
    return Cores({found[0]}, {found[1]}, {found[min(2, len(found) - 1)]})


_ports = iter(range(18000, 30000))


def free_port():
    """A port below those for outgoing connections, so that none of thousands takes it meanwhile."""
    for port in _ports:
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
                return port
            except OSError:
                continue
    raise Failed("no port is free")


def read(path):
    with open(path, errors="replace") as file:
        return file.read()


def tree(pid):
    """A process and its descendants: nginx has a master and a worker."""
    found, todo = [], [pid]
    while todo:
        pid = todo.pop()
        try:
            for thread in os.listdir(f"/proc/{pid}/task"):
                todo += map(int, read(f"/proc/{pid}/task/{thread}/children").split())
        except (FileNotFoundError, ProcessLookupError):
            continue
        found.append(pid)
    return found


def ticks(pid):
    """A process's own time, and the kernel's time for it."""
    own, kernel = read(f"/proc/{pid}/stat").rsplit(") ", 1)[1].split()[11:13]
    return int(own), int(kernel)


class Process:
    """A process that listens: it runs once this is made."""

    running = []

    def __init__(self, name, argv, port, log, cpus):
        self.name, self.log = name, log
        own = os.sched_getaffinity(0)
        with open(log, "wb") as out:
            os.sched_setaffinity(0, cpus)    # it inherits them, from its first instruction on
            try:
                begun = time.perf_counter()
                self.process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT)
            finally:
                os.sched_setaffinity(0, own)
        self.pid = self.process.pid
        Process.running.append(self)
        self._await_listening(port, begun)
        self.started_in = time.perf_counter() - begun

    def _await_listening(self, port, begun):
        while True:
            if self.process.poll() is not None:
                Process.running.remove(self)
                raise Failed(f"{self.name} ended with {self.process.returncode}:\n{read(self.log)[-2000:]}")
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    return
            if time.perf_counter() - begun > PATIENCE:
                raise Failed(f"{self.name} does not listen on port {port}:\n{read(self.log)[-2000:]}")
            time.sleep(0.0002)

    def cpu(self):
        """Seconds on a core so far, of the whole tree: to the nanosecond by its threads, unless some have ended since."""
        total = 0
        for pid in tree(self.pid):
            exact = 0
            for thread in os.listdir(f"/proc/{pid}/task"):
                try:
                    exact += int(read(f"/proc/{pid}/task/{thread}/schedstat").split()[0])
                except (FileNotFoundError, ProcessLookupError):
                    pass
            total += max(exact / 1e9, sum(ticks(pid)) / TICK)
        return total

    def kernel(self):
        """The kernel's part of these seconds: sampled, ten milliseconds at a time."""
        return sum(ticks(pid)[1] for pid in tree(self.pid)) / TICK

    def memory(self):
        """Resident bytes of the whole tree."""
        return sum(int(read(f"/proc/{pid}/statm").split()[1]) for pid in tree(self.pid)) * PAGE

    def end(self):
        """Asks it to end, and kills it after three seconds, with the processes that it started."""
        Process.running.remove(self)
        pids = tree(self.pid)
        self.process.terminate()
        try:
            self.process.wait(3)
        except subprocess.TimeoutExpired:
            for pid in pids:
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    pass
            self.process.wait()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.end()


@atexit.register
def end_all():
    for process in list(Process.running):
        process.end()


class Others:
    """The part of the machine that other programs used, which can make the figures of a run worthless."""

    def __init__(self):
        self.begun = self._sample()

    @staticmethod
    def _sample():
        fields = [int(field) for field in read("/proc/stat").split("\n", 1)[0].split()[1:9]]
        user, nice, system, _, _, _, _, stolen = fields    # interrupts count for no program; most come from the bench's own packets
        busy = (user + nice + system + stolen) / TICK
        mine = sum(os.times()[:4])
        return busy - mine, sum(fields) / TICK

    def share(self):
        """Call this when all processes have ended: their time counts only then."""
        (others, whole), (others_before, whole_before) = self._sample(), self.begun
        return max(0.0, (others - others_before) / max(whole - whole_before, 0.01))
