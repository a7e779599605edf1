"""Methods of an evaluation by name, with the baselines that every result table contains."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from agentguard.errors import EvaluationError
from agentguard.localize.base import (
    Localizer,
    SimpleLocalizer,
    Trainable,
    adapt_localizer,
    get_localizer_registry,
)

Method = Localizer | SimpleLocalizer | Trainable


@dataclass(frozen=True, slots=True, kw_only=True)
class MethodSpec:
    """Method by name.

    Attributes:
        label: name in tables.
        localizer: name of the localizer.
        options: options of the localizer.
    """

    label: str
    localizer: str
    options: Mapping[str, Any] = field(default_factory=dict)

    def build(self) -> Method:
        """Create the localizer. Raises UnknownPlugin or ConfigError."""
        return get_localizer_registry().get(self.localizer)(**self.options)


BASELINES = (
    MethodSpec(label="first_step", localizer="constant", options={"position": "first"}),
    MethodSpec(label="last_step", localizer="constant", options={"position": "last"}),
    MethodSpec(label="constant", localizer="constant"),
    MethodSpec(label="label_copy", localizer="label_copy"),
    MethodSpec(label="two_line", localizer="two_line"),
    MethodSpec(label="index_prior", localizer="index_prior"),
    MethodSpec(label="last_error", localizer="last_error"),
    MethodSpec(label="first_finding", localizer="first_finding"),
)


def resolve_method(method: str, options: Mapping[str, Any] | None = None) -> MethodSpec:
    """Return the spec of a method name: the baseline with that label, or else the localizer of that name."""
    for spec in BASELINES:
        if spec.label == method and not options:
            return spec
    option_list = ", ".join(f"{name}={value}" for name, value in sorted((options or {}).items()))
    label = f"{method}({option_list})" if option_list else method
    return MethodSpec(label=label, localizer=method, options=dict(options or {}))


def is_trainable(method: Method) -> bool:
    """Return whether a method can be trained."""
    return isinstance(method, Trainable)


def is_localizer(method: Method) -> bool:
    """Return whether a method can locate root causes without training."""
    return isinstance(method, SimpleLocalizer)


def as_localizer(method: Method) -> Localizer:
    """Return the method as a localizer. Raises EvaluationError if it must be trained first."""
    if not isinstance(method, SimpleLocalizer):
        raise EvaluationError(f"{method.name} needs training: use --cv question or --train")
    return adapt_localizer(method)


def as_trainable(method: Method) -> Trainable:
    """Return the method as a trainable. Raises EvaluationError if it cannot be trained."""
    if not isinstance(method, Trainable):
        raise EvaluationError(f"{method.name} cannot be trained")
    return method
