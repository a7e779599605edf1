"""Record the project's sample runs: a scripted tool-calling agent plays games of TextWorld.

    python examples/record_samples.py --out samples --seed 7

The same seed writes the same bytes. Needs the extra ``textworld``; takes one to two minutes.
"""

from __future__ import annotations

import argparse
import importlib.util
import sys
from pathlib import Path

# As a script, Python puts only this folder on the path, but the agent is imported from the root.
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))


def main() -> int:
    """Parse the arguments and record; return 2 if TextWorld is not installed."""
    parser = argparse.ArgumentParser(description="Record the project's sample runs in TextWorld.")
    parser.add_argument("--out", type=Path, default=Path("samples"), help="folder to write to")
    parser.add_argument("--seed", type=int, default=7, help="seed of the agent's wording")
    parser.add_argument("--only", help="record the run of this name alone, without labels")
    options = parser.parse_args()
    if importlib.util.find_spec("textworld") is None:
        print("textworld is not installed: pip install agentguard-lab", file=sys.stderr)
        return 2
    from examples.textworld_agent.record import record_all

    for path in record_all(options.out, options.seed, options.only):
        print(f"{path}  {path.stat().st_size:,} bytes")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
