"""Time to replay bundles in sealed mode.

python benchmarks/bundles.py [NUMBER]
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

from agentguard.bundles import read_bundle, record_run, replay_bundle

sys.path.insert(0, str(Path(__file__).parents[1]))
from examples.bundle_replay import book_seat, guard


def main() -> None:
    """Record bundles, then read and replay each of them."""
    number = int(sys.argv[1]) if len(sys.argv) > 1 else 100
    with tempfile.TemporaryDirectory() as folder:
        files = [Path(folder) / f"{position}.agb" for position in range(number)]
        for file in files:
            record_run(book_seat, file, guard=guard)
        start = time.perf_counter()
        equal = sum(replay_bundle(read_bundle(file), book_seat).is_equal for file in files)
        print(f"{number} bundles, {equal} equal: {time.perf_counter() - start:.2f} s")


if __name__ == "__main__":
    main()
