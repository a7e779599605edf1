"""Digest of the content of a run, to recognise a run that was read before."""

from __future__ import annotations

import hashlib

import orjson

from agentguard.trajectory.model import Trajectory
from agentguard.trajectory.serialization import encode_meta, encode_step


def compute_content_digest(run: Trajectory) -> bytes:
    """Return a hash of 16 bytes over all fields, steps and branches of a run."""
    digest = hashlib.blake2b(orjson.dumps(encode_meta(run), default=str), digest_size=16)
    lines = [("", 0, run.steps), *((branch.id, branch.fork_step, branch.steps) for branch in run.branches)]
    for id, fork_step, steps in lines:
        digest.update(orjson.dumps([id, fork_step, len(steps)]))
        for step in steps:
            digest.update(orjson.dumps(encode_step(step), default=str))
    return digest.digest()
