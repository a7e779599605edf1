"""Accuracy of the methods on the failed samples of this repository (injected errors).

Run: .venv/bin/python benchmarks/samples.py
Twelve failed runs and three passed ones, in a log format that no training has seen: a smoke test, not a
score.
"""

from pathlib import Path

import yaml

import agentguard
from agentguard.guard import Guard

SAMPLES = Path(__file__).resolve().parents[1] / "samples"
METHODS = ("embedded", "first_finding", "last_error", "two_line")


def main() -> None:
    labels = yaml.safe_load((SAMPLES / "labels.yaml").read_text(encoding="utf-8"))["runs"]
    runs = {name: agentguard.load_trajectory(SAMPLES / name) for name in labels}
    print(f"{'method':15} failed  exact  within 1  top 3  passed  called failed")
    for method in METHODS:
        guard = Guard(localizer=method)
        exact = near = among = alarms = 0
        for name, label in labels.items():
            diagnosis = guard.diagnose(runs[name])
            if not label["failed"]:
                alarms += diagnosis.verdict == "failed"
                continue
            named = [h.step for h in diagnosis.hypotheses]
            true = label["root_cause"]["step"]
            exact += named[:1] == [true]
            near += bool(named) and abs(named[0] - true) <= 1
            among += true in named[:3]
        failed = sum(label["failed"] for label in labels.values())
        passed = len(labels) - failed
        print(f"{method:15} {failed:6} {exact:6} {near:9} {among:6} {passed:7} {alarms:14}")


if __name__ == "__main__":
    main()
