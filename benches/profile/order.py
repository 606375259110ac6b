"""Prints the functions that a binary ran, for the linker: `order.py BINARY CALLGRIND...`, with one file of callgrind's for each run, which
names the instructions (`--dump-instr=yes --compress-pos=no`), since parts of functions have names of their own that callgrind does not know.
Functions that more runs had come first, since a start and a first call are among them: what is resident at rest lies together. Among these
come first those that took most instructions.

Some functions run on every start, but not under valgrind: those that read the kernel's own library (vDSO), and those that glibc chooses for
processors that valgrind does not imitate."""

import bisect
import collections
import re
import subprocess
import sys

VDSO = ["_dl_new_object", "_dl_setup_hash", "_dl_lookup_symbol_x"]
PROCESSOR = re.compile(r"_(sse|ssse|avx|evex|fma)\w*$")
NEWER = re.compile(r"_(evex|avx512)(?!\w*_rtm)\w*$")


def functions(binary):
    """The names of the functions, by address; some have several."""
    symbols = subprocess.run(["nm", binary], check=True, capture_output=True, text=True).stdout
    found = collections.defaultdict(list)
    for address, name in re.findall(r"^([0-9a-f]+) [tTwWi] (\S+)$", symbols, re.MULTILINE):
        found[int(address, 16)].append(name)
    return found


def ran(file, addresses):
    """The instructions that each function took, by its address."""
    took = collections.Counter()
    with open(file, errors="replace") as lines:
        for line in lines:
            if line.startswith("calls="):
                next(lines)    # what the called function took
            elif line.startswith("0x"):
                address, _line, count = line.split()
                took[addresses[bisect.bisect_right(addresses, int(address, 16)) - 1]] += int(count)
    return took


def main(binary, *files):
    named = functions(binary)
    addresses = [0, *sorted(named)]
    runs, took = collections.Counter(), collections.Counter()
    for file in files:
        for address, count in ran(file, addresses).items():
            for name in named.get(address, []):
                runs[name] += 1
                took[name] += count
    runs.update({name: len(files) for name in VDSO})
    chosen = {PROCESSOR.sub("", name): count for name, count in runs.items() if PROCESSOR.search(name)}
    known = {name for names in named.values() for name in names}
    for name in known:
        if NEWER.search(name) and (stem := PROCESSOR.sub("", name)) in chosen:
            runs[name] = chosen[stem]
    for name in sorted(known & runs.keys(), key=lambda name: (-runs[name], -took[name], name)):
        print(name)


if __name__ == "__main__":
    main(*sys.argv[1:])
