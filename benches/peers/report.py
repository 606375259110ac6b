"""The figures as tables: medians over the rounds, ratios within a round, and the bars that they must meet."""

import datetime
import os
import re
import statistics

from peers import BOTH, MODES, PLAIN, SECURE
from process import Failed, read

QUIET = 0.05    # of the machine, used by others: more than this, and the figures are not worth much

# The most that tidegate's figure may be, as a multiple of another's.
RATIOS = [
    (PLAIN, "cpu_full", "floor", 1.10),
    (PLAIN, "cpu_full", "nginx", 1.00),
    (PLAIN, "cpu_full", "haproxy", 1.10),
    (PLAIN, "cpu_full", "envoy", 0.33),
    (PLAIN, "cpu_full", "kubectl", 0.10),
    (SECURE, "cpu_full", "floor", 1.15),
    (SECURE, "cpu_full", "nginx", 0.75),
    (SECURE, "cpu_full", "haproxy", 1.00),
    (SECURE, "cpu_full", "envoy", 0.38),
    (SECURE, "cpu_full", "kubectl", 0.22),
    (BOTH, "cpu_full", "floor", 0.90),
    (BOTH, "cpu_full", "haproxy", 1.00),
    (BOTH, "cpu_full", "envoy", 0.45),
    (PLAIN, "p50", "nginx", 1.10),
    (SECURE, "p50", "nginx", 1.10),
    (PLAIN, "cpu_full", "tidegate-none", None),
    (SECURE, "cpu_full", "tidegate-none", None),
    (BOTH, "cpu_full", "tidegate-none", None),
]
WORDS = {"cpu_full": "CPU per call at saturation", "p50": "p50 at 2,000/s"}

# And as absolute figures.
SIZES = [
    ("rest", "rest", "memory at rest", "MiB", 5),
    ("rest", "each", "memory per idle connection", "KiB", 3),
    ("watches", "each", "memory per open watch, TLS h2 upstream", "KiB", 8),
    ("start", "milliseconds", "start to listening", "ms", 20),
]
BINARY_BAR = 10         # MiB
WATCHES_BAR = 1.2       # times the same without watches


class Report:
    """The results of `Bench.run` for these peers."""

    def __init__(self, found, peers, missing, plan, command, others, loader):
        self.found, self.peers, self.missing, self.plan = found, peers, missing, plan
        self.command, self.others, self.loader = command, others, loader

    def markdown(self):
        parts = [self.about()]
        parts += [self.calls(mode) for mode in MODES if self.of(mode)]
        parts += [self.sizes(), self.watches(), self.bars()]
        return "\n\n".join(part for part in parts if part)

    # The command, the machine and the time.

    def about(self):
        versions = ", ".join(f"{peer.name} {peer.version}" for peer in self.peers if peer.name != "tidegate-none")
        lines = [
            f"{today()}, {machine()}: `{self.command}`, {counted(self.plan.rounds, 'round')}.",
            f"Others used {self.others:.0%} of the machine meanwhile.",
            f"Versions: {versions}; load by h2load {self.loader}.",
        ]
        if self.others > QUIET:
            lines.append("**The machine was not quiet: these figures prove nothing.**")
        lines += [f"Left out: {name} ({why})." for name, why in self.missing.items()]
        return "\n".join(lines)

    # The tables.

    def calls(self, mode):
        heads = ["proxy", "CPU s per 100,000 calls, saturated", "at 2,000/s", "p50 µs", "p99 µs"]
        rows = []
        for peer in self.of(mode):
            figure = lambda key: self.median(mode, peer, key)
            figures = [f"{figure('cpu_full'):.2f}", f"{figure('cpu_steady'):.2f}", f"{figure('p50'):.0f}", f"{figure('p99'):.0f}"]
            rows.append([peer, *figures, self.times(mode, "cpu_full", peer)])
        title = f"### {MODES[mode]}" + ("\n\nnginx speaks HTTP/1.1 over TLS upstream." if mode == SECURE else "")
        return f"{title}\n\n{table([*heads, 'tidegate ÷ this, saturated'], rows)}\n\n{self.spread(mode)}".strip()

    def sizes(self):
        heads = ["proxy", "MiB at rest", "KiB per idle connection", "KiB per open watch, TLS h2 upstream", "ms from start to listening", "MiB of binary"]
        rows = []
        for peer in self.peers:
            columns = [("rest", "rest"), ("rest", "each"), ("watches", "each"), ("start", "milliseconds")]
            figures = [self.text(section, peer.name, key) for section, key in columns]
            rows.append([peer.name, *figures, f"{binary_size(peer):.1f}"])
        about = f"{self.plan.idle:,} idle connections, {self.plan.watches:,} watches."
        return f"### Memory, start and size\n\n{about}\n\n{table(heads, rows)}"

    def watches(self):
        rows = []
        for peer in self.of("watches"):
            row = [peer]
            for key, form in (("cpu_steady", "{:.2f}"), ("p50", "{:.0f}")):
                with_and_without = [form.format(self.median("watches", peer, name)) for name in (f"{key}_without", key)]
                row += [*with_and_without, f"{self.grown(peer, key):.2f}"]
            rows.append(row)
        count = f"{self.plan.watches:,}"
        heads = ["proxy", "CPU s per 100,000 calls alone", f"among {count} watches", "times", "p50 µs alone", f"among {count} watches", "times"]
        title = f"### {count} watches and 2,000 calls a second together\n\nHTTP/1.1 to TLS h2."
        return f"{title}\n\n{table(heads, rows)}" if rows else ""

    def bars(self):
        rows = [*self.ratio_bars(), *self.watch_bars(), *self.size_bars()]
        return f"### Against the bars\n\n{table(['tidegate, limits on', 'figure', 'bar', 'met'], rows)}" if rows else ""

    def ratio_bars(self):
        for section, key, other, limit in RATIOS:
            ratio = self.ratio(section, key, other)
            if ratio is not None:
                bar = f"at most {limit:.2f}" if limit else "-"
                yield [f"{WORDS[key]}, {MODES[section]}", f"{ratio:.2f} x {other}", bar, verdict(ratio, limit)]

    def watch_bars(self):
        if "tidegate" not in self.of("watches"):
            return
        for key, words in (("cpu_steady", "CPU per call"), ("p50", "p50")):
            grown = self.grown("tidegate", key)
            measure = f"{words} at 2,000/s among {self.plan.watches:,} watches"
            yield [measure, f"{grown:.2f} x alone", f"at most {WATCHES_BAR:.2f}", verdict(grown, WATCHES_BAR)]

    def size_bars(self):
        figures = [(words, self.median(section, "tidegate", key), unit, limit) for section, key, words, unit, limit in SIZES
                   if "tidegate" in self.of(section)]
        figures += [("binary, static", binary_size(peer), "MiB", BINARY_BAR) for peer in self.peers if peer.name == "tidegate"]
        for words, figure, unit, limit in figures:
            yield [words, f"{figure:.1f} {unit}", f"at most {limit} {unit}", verdict(figure, limit)]

    # The figures.

    def of(self, section):
        """The peers that were measured in a section."""
        return [peer.name for peer in self.peers if self.found.get((section, peer.name))]

    def median(self, section, name, key):
        return statistics.median(figures[key] for figures in self.found[section, name])

    def text(self, section, name, key):
        return f"{self.median(section, name, key):.1f}" if name in self.of(section) else "-"

    def ratio(self, section, key, other, name="tidegate"):
        """The median of the ratios of each round: a disturbance in a round affects both sides."""
        if not {name, other} <= set(self.of(section)):
            return None
        pairs = zip(self.found[section, name], self.found[section, other])
        return statistics.median(mine[key] / theirs[key] for mine, theirs in pairs)

    def times(self, section, key, other):
        ratio = self.ratio(section, key, other)
        return "-" if ratio is None else f"{ratio:.2f}"

    def grown(self, name, key):
        """The factor by which a figure grows with the watches."""
        return statistics.median(round[key] / round[f"{key}_without"] for round in self.found["watches", name])

    def spread(self, mode):
        """The difference between rounds, which shows how far to trust a figure."""
        if self.plan.rounds == 1:
            return ""
        widest = {}
        for name in self.of(mode):
            figures = [round["cpu_full"] for round in self.found[mode, name]]
            widest[name] = (max(figures) - min(figures)) / statistics.median(figures)
        name = max(widest, key=widest.get)
        return f"CPU per call differed between rounds by {widest[name]:.0%} at most ({name})."


def today():
    return datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d")


def machine():
    model = re.search(r"^model name\s*: (.*)$", read("/proc/cpuinfo"), re.MULTILINE)
    return f"{os.cpu_count()} cores of {model[1] if model else 'an unknown kind'}"


def counted(number, word):
    return f"{number:,} {word}" + ("" if number == 1 else "s")


def binary_size(peer):
    return os.path.getsize(os.path.realpath(peer.binary)) / 2**20


def verdict(figure, limit):
    return "-" if limit is None else "yes" if figure <= limit else "**no**"


def table(heads, rows):
    lines = [heads, ["---"] + ["--:"] * (len(heads) - 1), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def write(path, text, name="peers"):
    """Puts the tables between the markers of a document."""
    whole, begin, end = read(path), f"<!-- {name}: begin -->", f"<!-- {name}: end -->"
    if whole.count(begin) != 1 or whole.count(end) != 1:
        raise Failed(f"{path} must have {begin} and {end} once each")
    before, rest = whole.split(begin)
    after = rest.split(end)[1]
    with open(path, "w") as file:
        file.write(f"{before}{begin}\n\n{text}\n\n{end}{after}")
