"""The figures of benches/peers/scale as a picture: an SVG file that prints in black on white and follows the reader's dark mode, in the
styles of crates/simulate/src/chart."""

import html
import math
import os

import growth
import peers
from process import read

WIDTH, HEIGHT = 960, 744
STYLE = os.path.join(os.path.dirname(os.path.dirname(peers.HERE)), "src", "chart", "svg.css")
# Two styles more than a chart of the gate's has.
MORE = """.line5{stroke:#56b4e9;stroke-width:2.2;fill:none;stroke-dasharray:12 4}
    .line6{stroke:#59636e;stroke-width:2.2;fill:none;stroke-dasharray:5 3}
    @media (prefers-color-scheme:dark){ .line5{stroke:#0072b2} .line6{stroke:#a3adb8} }
    @media print{ .line5{stroke:#56b4e9} .line6{stroke:#59636e} }
"""
NAMES = {
    "open": "open connections",
    "turns": "connections with calls",
    "waiting": "waiting calls",
    "failing": "failing keys",
    "classes": "classes",
    "origins": "origins",
    "shared": "shared buckets",
}
TITLE = "What a call costs as other things grow"
NOTE = "2,000 calls a second at every point; across: how many there are of what the line names"
PANELS = [("cpu", "CPU per call, µs", False), ("memory", "resident memory, MiB", True), ("p50", "p50, µs", False), ("p99", "p99, µs", True)]
LAST = 6               # powers of ten across


def draw(found):
    """The whole file."""
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-labelledby="title note" '
        "font-family=\"system-ui, -apple-system, 'Segoe UI', Helvetica, Arial, sans-serif\">\n"
        f'<title id="title">{TITLE}</title><desc id="note">{NOTE}</desc>\n<style>\n{read(STYLE)}{MORE}</style>\n'
        f'<rect class="paper" width="{WIDTH}" height="{HEIGHT}"/>\n'
        f'<text class="title ink" x="64" y="32">{TITLE}</text>\n<text class="note soft" x="64" y="54">{NOTE}</text>\n',
        legend(found),
    ]
    for place, panel in enumerate(PANELS):
        parts.append(Panel(found, *panel, left=64 + place % 2 * 470, top=150 + place // 2 * 306).draw())
    return "".join(parts) + "</svg>\n"


def legend(found):
    parts, names = [], [name for name in NAMES if name in found]
    for place, name in enumerate(names):
        x, y = 64 + place % 4 * 220, 80 + place // 4 * 22
        parts.append(f'<path class="line{list(NAMES).index(name)}" d="M{x} {y - 4}H{x + 34}"/>'
                     f'<text class="name ink" x="{x + 42}" y="{y}">{NAMES[name]}</text>\n')
    return "".join(parts)


class Panel:
    """One measure of all points; what grows is tenfold from mark to mark, and so is the measure if its points are far apart."""

    wide, high = 394, 232

    def __init__(self, found, key, name, tenfold, left, top):
        self.name, self.left, self.top = name, left, top
        self.lines = {what: [(number, growth.median(rounds, key)) for number, rounds in points.items()] for what, points in found.items()}
        values = [value for line in self.lines.values() for _, value in line]
        self.tenfold = tenfold
        if tenfold:
            first, last = math.floor(math.log10(min(values))), math.ceil(math.log10(max(values)))
            self.ticks = [10.0 ** power for power in range(first, max(last, first + 1) + 1)]
        else:
            step = steps(max(values))
            self.ticks = [step * count for count in range(math.ceil(max(values) / step) + 1)]

    def x(self, number):
        return self.left + math.log10(max(1, number)) / LAST * self.wide

    def y(self, value):
        end = self.ticks[-1]
        part = math.log(value / self.ticks[0]) / math.log(end / self.ticks[0]) if self.tenfold else value / end
        return self.top + (1 - part) * self.high

    def draw(self):
        right, foot = self.left + self.wide, self.top + self.high
        parts = [f'<text class="name ink" x="{self.left}" y="{self.top - 12}">{html.escape(self.name)}</text>\n']
        for tick in self.ticks:
            y = self.y(tick)
            parts.append(f'<path class="grid" d="M{self.left} {y:.1f}H{right}"/>'
                         f'<text class="tick soft" x="{self.left - 8}" y="{y + 4:.1f}" text-anchor="end">{tick:,g}</text>')
        for power in range(LAST + 1):
            x, label = self.x(10 ** power), f"{10 ** power:,}" if power < LAST else "a million"
            parts.append(f'<path class="axis" d="M{x:.1f} {foot}V{foot + 5}"/>'
                         f'<text class="tick soft" x="{x:.1f}" y="{foot + 20}" text-anchor="middle">{label}</text>')
        parts.append(f'<path class="axis" fill="none" d="M{self.left} {self.top}V{foot}H{right}"/>\n')
        for what, line in self.lines.items():
            path = "L".join(f"{self.x(number):.1f} {self.y(value):.1f}" for number, value in line)
            parts.append(f'<path class="line{list(NAMES).index(what)}" stroke-linejoin="round" d="M{path}">'
                         f'<title>{NAMES[what]}</title></path>\n')
        return "".join(parts)


def steps(highest):
    """The smallest of 1, 2, 5, 10, 20, ... that needs at most five steps."""
    power = 10.0 ** math.floor(math.log10(highest / 5))
    return next(step for step in (power, 2 * power, 5 * power, 10 * power) if step * 5 >= highest * 0.999)
