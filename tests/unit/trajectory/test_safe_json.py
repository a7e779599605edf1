"""Memory of encoded values, which callers keep: headers of runs, queued events."""

import tracemalloc

from agentguard.trajectory.safe_json import dumps


def test_encoded_value_occupies_its_length() -> None:
    tracemalloc.start()
    try:
        kept = [dumps({"id": number}) for number in range(500)]
        size, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert size / len(kept) < 512
