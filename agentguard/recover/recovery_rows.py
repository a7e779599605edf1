"""Recoveries as rows of the store."""

from __future__ import annotations

import time
from collections.abc import Mapping
from functools import cache
from typing import TYPE_CHECKING, Any

from agentguard.detect.serialization import to_json_data
from agentguard.errors import FormatError
from agentguard.recover.actions import (
    Compensate,
    DisableTools,
    Escalate,
    Reject,
    Repair,
    Restart,
    Rewind,
    Sample,
    SendMessage,
    Stop,
)
from agentguard.recover.plan import Recovery, RecoveryOutcome, RecoveryTier
from agentguard.recover.strategies import STRATEGY_ALIASES
from agentguard.store.db.rows import RecoveryRow, compute_digest

if TYPE_CHECKING:
    from pydantic import TypeAdapter

OUTCOME_LABELS = {
    RecoveryOutcome.PENDING: "planned",
    RecoveryOutcome.CONFIRMED: "recovered",
    RecoveryOutcome.REFUTED: "failed",
    RecoveryOutcome.UNKNOWN: "unknown",
}
"""Label of each outcome in the store and in its views."""


def to_recovery_row(recovery: Recovery, *, tenant: str = "") -> RecoveryRow:
    """Return the row of a recovery; the row with the outcome replaces the first row of the recovery."""
    plan = recovery.plan
    return RecoveryRow(
        id=compute_digest(recovery.run, str(recovery.id))[:32],
        tenant=tenant,
        run_id=recovery.run,
        strategy=plan.strategy,
        step=plan.step,
        outcome=OUTCOME_LABELS[recovery.outcome],
        schema_id=recovery.schemata[0] if recovery.schemata else "",
        updated_at=time.time(),
        data=encode_recovery(recovery),
    )


def encode_recovery(recovery: Recovery) -> dict[str, Any]:
    """Return a recovery as JSON data; the key ``action`` of each action has its tag."""
    data = to_json_data(recovery)
    for encoded, action in zip(data["plan"]["actions"], recovery.plan.actions, strict=True):
        encoded["action"] = _ACTION_TAGS[type(action)]
        if isinstance(action, Sample):
            encoded[_INSTRUCTIONS_KEY] = encoded.pop("instructions")
    data["plan"]["tier"] = recovery.plan.tier.name.lower()
    return data


def decode_recovery(data: Mapping[str, Any]) -> Recovery:
    """Return the recovery of the data of `encode_recovery`. Raises FormatError that names the wrong field."""
    from pydantic import ValidationError

    try:
        plan = dict(data["plan"])
        plan["actions"] = tuple(_decode_action(one) for one in plan["actions"])
        plan["strategy"] = STRATEGY_ALIASES.get(plan["strategy"], plan["strategy"])
        tier = str(plan["tier"])
        plan["tier"] = RecoveryTier[STRATEGY_ALIASES.get(tier, tier).upper()]
        return _build_adapter(Recovery).validate_python({**data, "plan": plan})  # type: ignore[no-any-return]
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(str(part) for part in first["loc"])
        raise FormatError(first["msg"], field=f"recovery.{field}") from None
    except (KeyError, TypeError, ValueError) as error:
        raise FormatError(f"the plan is not valid ({type(error).__name__})", field="recovery.plan") from None


def _decode_action(data: Mapping[str, Any]) -> Any:
    fields = {"instructions" if key == _INSTRUCTIONS_KEY else key: value for key, value in data.items()}
    return _build_adapter(_ACTION_TYPES[data["action"]]).validate_python(fields)


# Stored plans contain this key and these tags: a field or a class may be renamed, its key or tag may not.
_INSTRUCTIONS_KEY = "tells"
_ACTION_TYPES: dict[str, type] = {
    "Tell": SendMessage,
    "Reject": Reject,
    "Rewind": Rewind,
    "Compensate": Compensate,
    "Withhold": DisableTools,
    "Restart": Restart,
    "Repair": Repair,
    "Sample": Sample,
    "HandOver": Escalate,
    "Stop": Stop,
}
_ACTION_TAGS = {kind: tag for tag, kind in _ACTION_TYPES.items()}


@cache
def _build_adapter(kind: type) -> TypeAdapter[Any]:
    from pydantic import TypeAdapter

    return TypeAdapter(kind)
