"""The measurements of a peer, and their order: every peer once, then every peer again, so that a change on the machine affects all."""

import collections
import os
import resource
import time

import load
from peers import MODES, PLAIN, SECURE, BOTH, filled
from process import Process, cores, free_port
from prepare import certificates, path_of, say

RATE = 2000            # calls a second
WATCHES = 5000
IDLE = 5000
STARTS = 10

Plan = collections.namedtuple("Plan", "rounds crowds saturated steady idle watches starts")


def open_files():
    """Allows as many open files as may be, and returns their number."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return hard


def plan(rounds, quick):
    """The number of connections that the limit on open files allows: nginx needs two for each."""
    room = max(0, (open_files() - 1500) // 2)
    if quick:
        return Plan(1, 1, 1, 1, min(200, room), min(200, room), 2)
    return Plan(rounds, max(1, rounds // 2), 2, 2, min(IDLE, room), min(WATCHES, room), STARTS)


class Bench:
    """The upstream, and the values for every peer's file."""

    def __init__(self, folder, plan):
        self.folder, self.plan, self.cores = folder, plan, cores()
        os.sched_setaffinity(0, self.cores.load)
        files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        self.names = {"tmp": folder, "files": files, "connections": min(9000, (files - 500) // 2), **certificates(folder)}
        self.plain, self.secure = free_port(), free_port()
        mine = {"plain": self.plain, "secure": self.secure, "body": load.BODY, "event": load.EVENT}
        config = os.path.join(folder, "upstream.conf")
        with open(config, "w") as file:
            file.write(filled("upstream.conf", {**self.names, **mine}))

    def __enter__(self):
        command = [path_of("nginx"), "-c", os.path.join(self.folder, "upstream.conf")]
        self.upstream = Process("upstream", command, self.plain, os.path.join(self.folder, "upstream.log"), self.cores.upstream)
        load.check("upstream", self.plain, False, "HTTP/1.1")
        return self

    def __exit__(self, *_):
        self.upstream.end()

    def run(self, peers, modes, found):
        """Adds the results of each round to `found`, by section and peer; the mode is the section of calls. The heaviest comes last."""
        for mode in modes:
            for number in range(self.plan.rounds):
                for peer in (peer for peer in peers if mode in peer.modes):
                    say(f"{MODES[mode]}, round {number + 1} of {self.plan.rounds}: {peer.name}")
                    found[mode, peer.name].append(self.calls(peer, mode))
        for number in range(self.plan.starts):
            say(f"starts, round {number + 1} of {self.plan.starts}")
            for peer in peers:
                found["start", peer.name].append(self.start(peer))
        for number in range(self.plan.crowds):
            for peer in peers:
                say(f"at rest, round {number + 1} of {self.plan.crowds}: {peer.name}")
                found["rest", peer.name].append(self.rest(peer))
        for number in range(self.plan.crowds):
            for peer in (peer for peer in peers if SECURE in peer.modes and SECURE in modes):
                say(f"watches, round {number + 1} of {self.plan.crowds}: {peer.name}")
                found["watches", peer.name].append(self.watches(peer))

    def start(self, peer):
        process, _ = peer.start(PLAIN, self)
        process.end()
        return {"milliseconds": process.started_in * 1000}

    def started(self, peer, mode):
        process, port = peer.start(mode, self)
        try:
            load.check(peer.name, port, mode == BOTH, peer.protocol(mode))
        except BaseException:
            process.end()
            raise
        return process, load.Load(peer, port, self.plain, self.folder, mode == BOTH), port

    def calls(self, peer, mode):
        process, calls, _ = self.started(peer, mode)
        with process:
            calls.warm_up()
            before, kernel, begun = process.cpu(), process.kernel(), time.perf_counter()
            done, per_second = calls.saturate(self.plan.saturated)
            spent, took = process.cpu() - before, time.perf_counter() - begun
            shares = {"busy": spent / took, "kernel": (process.kernel() - kernel) / spent}
            return {"per_second": per_second, "cpu_full": spent / done * 1e5, **shares, **self.steady(process, calls)}

    def steady(self, process, calls):
        before = process.cpu()
        done, taken = calls.at_rate(RATE, self.plan.steady)
        spent = process.cpu() - before
        return {"cpu_steady": spent / done * 1e5, "p50": taken[len(taken) // 2], "p99": taken[len(taken) * 99 // 100]}

    def watches(self, peer):
        """One process without watches, then with them."""
        process, calls, port = self.started(peer, SECURE)
        with process:
            calls.warm_up()
            without = self.steady(process, calls)
            before = process.memory()
            with load.Crowd(peer.name, port, self.plan.watches, watching=True) as crowd:
                each = (process.memory() - before) / 1024 / max(1, self.plan.watches)
                among = self.steady(process, calls)
                crowd.check()
            return {"each": each, **{f"{name}_without": value for name, value in without.items()}, **among}

    def rest(self, peer):
        process, _, port = self.started(peer, PLAIN)
        with process:
            before = process.memory()
            with load.Crowd(peer.name, port, self.plan.idle, watching=False) as crowd:
                each = (process.memory() - before) / 1024 / max(1, self.plan.idle)
                crowd.check()
            return {"rest": before / 2**20, "each": each}
