"""Facts for the fingerprint of a batch job: detectors, model, taxonomies and schemata."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import orjson

from agentguard.detect.base import detectors
from agentguard.judge.embedded.model_card import load_card
from agentguard.taxonomy.catalog import TaxonomyCatalog


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


def digest_schemata(location: bool | str) -> str:
    """Return a digest of the schemata at a location, in hexadecimal digits; empty without a location."""
    if isinstance(location, bool):
        return ""
    from agentguard.schemata.persistence import open_schema_store
    from agentguard.schemata.serialization import encode_schema

    with open_schema_store(location) as store:
        encoded = orjson.dumps(
            [encode_schema(schema) for schema in store.load()], option=orjson.OPT_SORT_KEYS
        )
    return hashlib.sha256(encoded).hexdigest()[:16]
