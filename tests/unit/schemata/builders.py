"""Schemata written for the tests of the cache, the stores and the signals."""

from __future__ import annotations

from agentguard.schemata.model import ErrorSchema, Provenance, SchemaOrigin

KINDS = {
    "loop": ("The same move is repeated with the same outcome.", "Nothing new came of it."),
    "made_up": ("A value was made up without any source.", "It was used as if it had been measured."),
    "ignored": ("An error came back and was passed over.", "The next step goes on as if all were well."),
}


def schema(
    kind: str = "loop",
    run: str = "r1",
    *,
    codes: tuple[str, ...] = (),
    origin: SchemaOrigin = SchemaOrigin.NATURAL,
    group: str = "",
    correction: str = "",
) -> ErrorSchema:
    """Return a schema of one failure; two schemata of a kind have the same content."""
    return ErrorSchema(
        id=f"{kind}-{run}",
        signature=KINDS[kind],
        traits={f"finding:{kind}": 1.0},
        codes=codes,
        correction=correction,
        provenance=Provenance(method="embedded", runs=(run,), groups=(group or run,), origin=origin),
    )
