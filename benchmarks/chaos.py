"""Throughput of a chaos campaign on the scripted example agent.

Run: .venv/bin/python -m benchmarks.chaos [--runs 10000] [--jobs 2]
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections import Counter
from pathlib import Path

from agentguard.chaos import Campaign, CampaignRunner


def main() -> None:
    """Run a campaign on `examples.chaos_agent` and print its duration."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=10_000)
    parser.add_argument("--jobs", type=int, default=2)
    options = parser.parse_args()
    campaign = Campaign.model_validate(
        {
            "version": 1,
            "target": {"agent": "examples.chaos_agent:book_trip", "effects": ["book"]},
            "schedule": {"repeats": 1_000, "max_runs": options.runs},
            "abort": {"max_seconds": 3_600},
        }
    )
    runner = CampaignRunner(campaign)
    with tempfile.TemporaryDirectory() as folder:
        begin = time.perf_counter()
        result = runner.run(Path(folder), jobs=options.jobs)
        seconds = time.perf_counter() - begin
    outcomes = Counter(one.outcome.value for one in result.results)
    print(f"{len(result.results)} runs, {options.jobs} processes: {seconds:.1f} s; {dict(outcomes)}")


if __name__ == "__main__":
    main()
