"""What grows, one thing at a time: the gate's configuration at each point, how it comes to hold so much, and the metric that shows it."""

import collections
import re
import urllib.request

import crowds
from load import path
from peers import PLAIN, SECURE, Tidegate, filled
from prepare import path_of
from process import Failed, Process, free_port

CALLING = 20           # connections with calls, where their number is not what grows
PATHS = 100
CLASSES = 100          # of gates whose calls are spread over so many

Point = collections.namedtuple("Point", "dimension number gate port admin")


class Dimension:
    """One thing that grows: gates that differ in nothing else."""

    config = "scale.toml"
    mode = PLAIN
    unit = None        # of memory: for one more of what grows

    def start(self, number, bench):
        """A gate for a point of this dimension."""
        port, admin = free_port(), free_port()
        own = {"port": port, "admin": admin, "listen": f"127.0.0.1:{port}"}
        names = {**bench.names, **Tidegate("", "").names(self.mode, port, bench), **own}
        text = filled(self.config, {"more": self.more(number, bench), "origins": self.origins(number, bench), **names})
        name = f"{self.name}-{number}"
        config = f"{bench.folder}/{name}.toml"
        with open(config, "w") as file:
            file.write(text)
        log = f"{bench.folder}/{name}.log"
        gate = Process(name, [bench.tidegate, "run", "--config", config], port, log, bench.cores.proxy)
        return Point(self, number, gate, port, admin)

    def more(self, number, bench):
        return ""

    def origins(self, number, bench):
        return ""

    def requests(self, point):
        return [crowds.request(f"127.0.0.1:{point.port}", path(count)) for count in range(PATHS)]

    def callers(self, point):
        return crowds.Callers(point.gate.name, point.port, CALLING, self.requests(point))

    def fill(self, point, bench):
        """Brings the gate to hold what grows. Returns what has to be tended and closed, if anything."""

    def held(self, point):
        """How much of it the gate says that it holds."""
        raise NotImplementedError


class Open(Dimension):
    name, what = "open", "open connections, calls on 10 of them"
    points = [10, 100, 1000, 10_000]
    unit = "connection"

    def callers(self, point):
        return crowds.Callers(point.gate.name, point.port, point.number, self.requests(point), calling=10)

    def held(self, point):
        return total(point, "tidegate_client_connections")


class Turns(Open):
    name, what = "turns", "connections that calls go round"

    def callers(self, point):
        return crowds.Callers(point.gate.name, point.port, point.number, self.requests(point))


class Waiting(Dimension):
    name, what = "waiting", "calls that wait in another class"
    points = [1, 100, 10_000, 100_000]
    unit = "call"

    def more(self, number, bench):
        return '''queue = { max_wait = "8760h", max_waiting = 200000 }

[[gates.kubernetes.classes]]
name = "waiting"
match = { namespaces = ["waiting"] }
bucket = { rate = 0.004, burst = 1, start = "empty", adapt = "off" }    # the next call leaves after four minutes
own_bucket_only = true
'''

    def fill(self, point, bench):
        return crowds.Waiting(point.gate.name, point.port, point.number)

    def held(self, point):
        return total(point, "tidegate_waiting")


class Failing(Dimension):
    name, what = "failing", "failing keys"
    points = [1, 1000, 100_000, 1_000_000]
    unit = "key"

    def more(self, number, bench):
        return 'backoff = { base = "1h", max = "1h", forget_after = "auto", max_keys = 1000000 }\n'

    def fill(self, point, bench):
        crowds.fail(point.gate.name, point.port, point.number, bench.folder)

    def held(self, point):
        return total(point, "tidegate_keys_failing")


class Classes(Dimension):
    name, what = "classes", "classes that the call does not match"
    points = [1, 10, 100, 1000]
    unit = "class"

    def more(self, number, bench):
        return "".join(team(count, "bucket = { rate = 10.0, burst = 20 }") for count in range(number))

    def held(self, point):
        return sum('class="team_' in labels for labels, _ in metric(point, "tidegate_queue_length"))


class Origins(Dimension):
    name, what = "origins", "origins behind the egress listener, called in turn"
    points = [1, 8, 32, 128]
    config, mode = "scale-egress.toml", SECURE
    unit = "origin"

    def origins(self, number, bench):
        return ", ".join(f'"{host(count)}" = "127.0.0.1:{bench.secure}"' for count in range(number))

    def requests(self, point):
        """As many for each origin, so that each has the same calls."""
        return [crowds.request(host(count), f"http://{host(count)}{path(count)}") for count in range(point.number)]

    def held(self, point):
        return total(point, "tidegate_egress_origins")


class Shared(Dimension):
    name, what = "shared", "buckets shared through a store, from which the calls of 100 classes spend"
    points = [0, 1, 10, 100]
    unit = "bucket"

    def more(self, number, bench):
        teams = (team(count, f'within = "pool_{count % number}"' if number else "") for count in range(CLASSES))
        pools = (f'''
[[gates.kubernetes.classes]]
name = "pool_{count}"
bucket = {{ rate = 10000.0, burst = 70000, shared = {{ name = "pool_{count}", lease = "6s" }} }}
''' for count in range(number))
        return "".join(["\n[stores.main]\n" f'url = "unix:{bench.store}"\n' if number else "", *teams, *pools])

    def requests(self, point):
        paths = (f"/api/v1/namespaces/team-{count}/configmaps/cm" for count in range(CLASSES))
        return [crowds.request(f"127.0.0.1:{point.port}", each) for each in paths]

    def held(self, point):
        return sum(value >= 1 for _, value in metric(point, "tidegate_shared_members"))


ALL = [Open(), Turns(), Waiting(), Failing(), Classes(), Origins(), Shared()]


def team(count, settings):
    return f'''
[[gates.kubernetes.classes]]
name = "team_{count}"
match = {{ namespaces = ["team-{count}"] }}
{settings}
'''


def host(count):
    return f"origin-{count}.bench.example"


def metric(point, name):
    """The labels and values of a metric's series."""
    with urllib.request.urlopen(f"http://127.0.0.1:{point.admin}/metrics", timeout=60) as answer:
        text = answer.read().decode()
    found = re.findall(rf"^{name}(?:\{{(.*)\}})? (\S+)$", text, re.MULTILINE)
    return [(labels, float(value)) for labels, value in found]


def total(point, name):
    return sum(value for _, value in metric(point, name))


def store(bench):
    """A Valkey or Redis that keeps nothing, with a socket for the gates."""
    binary = path_of("valkey-server") or path_of("redis-server")
    if not binary:
        raise Failed("neither valkey-server nor redis-server is installed, which shared buckets need")
    port, bench.store = free_port(), f"{bench.folder}/store"
    command = [binary, "--bind", "127.0.0.1", "--port", str(port), "--unixsocket", bench.store, "--save", "", "--dir", bench.folder]
    return Process("store", command, port, f"{bench.folder}/store.log", bench.cores.upstream)
