"""Time of `import agentguard`, compared with an empty interpreter.

Run: .venv/bin/python benchmarks/import_time.py [--json]
Bar: at most 0.25 s, and no scikit-learn.
"""

import json
import statistics
import subprocess
import sys
import time

HEAVY = ("sklearn", "scipy", "numpy", "pydantic", "rich", "typer", "yaml")


def seconds(code: str) -> float:
    start = time.perf_counter()
    subprocess.run([sys.executable, "-c", code], check=True)
    return time.perf_counter() - start


def main() -> None:
    pairs = [(seconds("pass"), seconds("import agentguard")) for _ in range(15)]
    code = f"import sys, agentguard; print([m for m in {HEAVY!r} if m in sys.modules])"
    heavy = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout
    result = {
        "empty_s": statistics.median(a for a, _ in pairs),
        "agentguard_s": statistics.median(b for _, b in pairs),
        "added_s": statistics.median(b - a for a, b in pairs),
        "heavy_modules": heavy.strip(),
    }
    if "--json" in sys.argv:
        print(json.dumps(result))
        return
    for name, value in result.items():
        print(f"{name:15} {value if isinstance(value, str) else f'{value:.4f}'}")


if __name__ == "__main__":
    main()
