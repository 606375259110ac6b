"""Prints the functions that a binary ran, for the linker: `order.py BINARY CALLGRIND...` prints the names of the functions that
callgrind saw run and that the profile does not mark as hot; the hot ones lie together already."""

import re
import subprocess
import sys


def hot(binary):
    """The range of addresses in which the hot functions lie."""
    sections = subprocess.run(["readelf", "--wide", "--sections", binary], check=True, capture_output=True, text=True).stdout
    start, size = re.search(r" \.text\.hot +PROGBITS +([0-9a-f]+) [0-9a-f]+ ([0-9a-f]+)", sections).groups()
    return range(int(start, 16), int(start, 16) + int(size, 16))


def functions(binary):
    """Addresses and names."""
    symbols = subprocess.run(["nm", binary], check=True, capture_output=True, text=True).stdout
    return [(int(address, 16), name) for address, name in re.findall(r"^([0-9a-f]+) [tTwW] (\S+)$", symbols, re.MULTILINE)]


def ran(files):
    """Names, each without the quote and the number that callgrind adds to functions that call themselves."""
    seen = set()
    for file in files:
        with open(file, errors="replace") as lines:
            seen.update(re.findall(r"^c?fn=\(\d+\) ([^\s']+)", lines.read(), re.MULTILINE))
    return seen


def main(binary, *files):
    ran_through, apart = ran(files), hot(binary)
    for name in sorted({name for address, name in functions(binary) if name in ran_through and address not in apart}):
        print(name)


if __name__ == "__main__":
    main(*sys.argv[1:])
