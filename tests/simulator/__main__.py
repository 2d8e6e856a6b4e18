"""`python -m simulator --seeds 0:300`: play histories, print the story of one that fails."""

from __future__ import annotations

import argparse
import sys
import time

from simulator.checker import Violation
from simulator.history import History


def main() -> int:
    parser = argparse.ArgumentParser(prog="simulator", description=__doc__)
    parser.add_argument("--seeds", default="0:300", help="FIRST:END, or one seed")
    parser.add_argument("--seconds", type=float, default=0.0, help="stop after so long; 0: never")
    parser.add_argument("--story", action="store_true", help="print the story of every seed")
    found = parser.parse_args()
    first, _, end = found.seeds.partition(":")
    began = time.monotonic()
    played = 0
    for seed in range(int(first), int(end) if end else int(first) + 1):
        history = History(seed)
        try:
            history.run()
        except Violation as violation:
            sys.stdout.write(f"{violation}\n")
            return 1
        played += 1
        if found.story:
            sys.stdout.write(history.story() + "\n")
        if found.seconds and time.monotonic() - began > found.seconds:
            break
    sys.stdout.write(f"{played} histories in {time.monotonic() - began:.1f} s\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
