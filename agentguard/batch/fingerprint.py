"""Facts for the fingerprint of a batch job: detectors, model and taxonomies."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from agentguard.detect.base import detectors
from agentguard.judge.embedded.model_io import load_card
from agentguard.taxonomy.loader import TaxonomyCatalog


def describe_judgement() -> dict[str, Any]:
    """Return the installed detectors, and digests of the embedded model and the taxonomies."""
    return {
        "detectors": sorted(detectors()),
        "model": load_card().get("sha256"),
        "taxonomies": digest_files(TaxonomyCatalog.load().files()),
    }


def digest_files(paths: Sequence[Path]) -> str:
    """Return a digest of the names and the contents of files in hexadecimal digits."""
    digest = hashlib.sha256()
    for path in paths:
        digest.update(path.name.encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:16]
