"""The figures of benches/peers/scale as tables: medians over the rounds, and how much more than at the first point, within a round."""

import statistics

import dimensions
from report import QUIET, counted, machine, table, today

FLAT = 1.15    # times the CPU per call of the first point: more than this, and the document explains it
SHOWN = ("cpu", "p50", "p99", "memory")


class Growth:
    """The results of all points, by what grows."""

    def __init__(self, found, peer, command, others):
        self.found, self.peer, self.command, self.others = found, peer, command, others

    def markdown(self):
        parts = [self.about()]
        parts += [self.section(dimension) for dimension in dimensions.ALL if dimension.name in self.found]
        return "\n\n".join(parts)

    def about(self):
        number = min(len(rounds) for points in self.found.values() for rounds in points.values()) if self.found else 0
        lines = [
            f"{today()}, {machine()}: `{self.command}`, {counted(number, 'round')}, tidegate {self.peer.version}.",
            f"Others used {self.others:.0%} of the machine meanwhile.",
        ]
        if self.others > QUIET:
            lines.append("**The machine was not quiet: CPU per call and memory can be compared, p50 and p99 hardly.**")
        return "\n".join(lines)

    def section(self, dimension):
        points = self.found[dimension.name]
        first = next(iter(points))
        heads = [dimension.what, "CPU µs per call", "times the first", "p50 µs", "p99 µs", "MiB", f"KiB for each {dimension.unit}"]
        rows = []
        for number, rounds in points.items():
            cpu, p50, p99, memory = (median(rounds, key) for key in SHOWN)
            times = statistics.median(mine["cpu"] / base["cpu"] for mine, base in zip(rounds, points[first]))
            more = (memory - median(points[first], "memory")) * 1024
            each = f"{more / (number - first):.2f}" if number > first else "-"
            grown = f"**{times:.2f}**" if times > FLAT else f"{times:.2f}"
            rows.append([f"{number:,}", f"{cpu:.1f}", grown, f"{p50:.0f}", f"{p99:.0f}", f"{memory:.1f}", each])
        return table(heads, rows)


def median(rounds, key):
    return statistics.median(round[key] for round in rounds)


def chosen(parser, text, known):
    names = text.split(",") if text else known
    for name in names:
        if name not in known:
            parser.error(f"--only: there is no {name!r}; there are {', '.join(known)}")
    return [name for name in known if name in names]
