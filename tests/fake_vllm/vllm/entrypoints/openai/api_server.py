"""Fake of vLLM's server for tests of its supervisor: same command, immediate answers.

It ends at SIGTERM after the active requests. As vLLM, it refuses unknown flags. ``FAKE_VLLM_BREAKS=N`` makes
the first N starts exit at once.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import threading
from pathlib import Path

ROOT = Path(__file__).resolve().parents[5]
sys.path.insert(0, str(ROOT))

from tests.unit.judge.chat_server import Script, serving_on  # noqa: E402

FLAGS = (
    "--model",
    "--served-model-name",
    "--host",
    "--port",
    "--shutdown-timeout",
    "--max-num-queued-reqs",
    "--enable-prefix-caching",
    "--enable-prompt-tokens-details",
)


def main() -> None:
    if "--help=all" in sys.argv:
        print("\n".join(FLAGS))
        return
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", required=True)
    parser.add_argument("--served-model-name", required=True)
    parser.add_argument("--host", required=True)
    parser.add_argument("--port", type=int, required=True)
    args, others = parser.parse_known_args()
    if unknown := [word for word in others if word.startswith("--") and word not in FLAGS]:
        parser.error(f"unrecognized arguments: {' '.join(unknown)}")
    if (marks := os.environ.get("FAKE_VLLM_BREAKS")) is not None and _broken(Path(marks)):
        print("CUDA out of memory", flush=True)
        sys.exit(1)
    ended = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: ended.set())
    with serving_on(args.host, args.port, Script(models=(args.served_model_name,))):
        ended.wait()


def _broken(marks: Path) -> bool:
    """Return whether this start must fail; each failing start takes a line from a file."""
    lines = marks.read_text().splitlines()
    marks.write_text("".join(f"{line}\n" for line in lines[1:]))
    return bool(lines)


if __name__ == "__main__":
    main()
