"""Policy: the configuration of a guard, read from YAML and validated.

::

    version: 1
    detectors:                      # by name: options, or false to disable it
      exact_loop: {repeat: 4}
      goal_drift: false
    enabled_detectors: [exact_loop, tool_error]  # optional: only these detectors
    localizer: {name: embedded, risk: 0.3}
    detector_deadline_s: 0.5        # a detector that takes longer over one step counts as failed

A guard of a running agent also reads::

    detectors:
      exact_loop: {repeat: 3, on_fail: [hint, rollback, disable_tool, stop]}    # its own escalation policy
    recover:
      on_fail: [hint, {rollback: {prefer: fork}}, {stop: {patience: 12}}]   # of all other detectors
      threshold: 0.5                # minimum probability of a finding that starts a recovery
      effect_threshold: 0.3         # the same before a call of an undeclared or destructive tool runs
      max_hypotheses: 3             # hypotheses that a recovery may try
      verification_window: 4        # steps within which a recovery must show a new outcome
      redundancy: {effects: [write, destructive], candidates: 3, quorum: 2}   # these turns are voted on
    budgets: {rollbacks: 3, rollbacks_per_step: 1, hints: 3, extra_tokens: 20000, resamples: 50, repairs: 20}
    tools:
      book: {effect: write, key: [booking_id]}
      search: {effect: read, timeout_s: 10}
    tool_timeout_s: 60              # interrupt a tool after this time, if it declares no timeout
    on_guard_error: fail_open       # or fail_closed: a failed component of the guard stops the run
    live_model: {threshold: 0.9, step_threshold: 0.5}    # the embedded models lead to hints during a run
    schemata: schemata.jsonl        # a file or database; by default (true) those of the store; false for none

`agentguard.config.judge` defines the sections ``judge`` and ``safety``, `agentguard.config.acceptance` the
section ``acceptance``. Each detector, localizer and strategy validates its options when it is created.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

import yaml
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator
from pydantic_core import PydanticCustomError

from agentguard.config.acceptance import AcceptanceSettings, EscalationSpec
from agentguard.config.judge import JudgeSettings, SafetySettings
from agentguard.config.prices import TokenPrice
from agentguard.errors import ConfigError

_MAX_BYTES = 1_000_000

ESCALATION_KEY = "on_fail"
"""Key of the escalation policy among the settings of a detector; all other keys are its options."""


def _validate_detector_value(value: object) -> object:
    if value is None or value is False or isinstance(value, Mapping):
        return value
    raise PydanticCustomError(
        "detector_value", "write a mapping of options, or false to disable the detector"
    )


DetectorValue = Annotated[
    Mapping[str, Any] | Literal[False] | None, BeforeValidator(_validate_detector_value)
]
"""Options of a detector; false disables it."""


class LocalizerSettings(BaseModel):
    """Name of the localizer, and its options: every key except ``name`` is an option.

    Attributes:
        name: name of the localizer.
    """

    model_config = ConfigDict(frozen=True, extra="allow")

    name: str = "embedded"

    def to_options(self) -> dict[str, Any]:
        """Return the options without the name."""
        return dict(self.model_extra or {})


class RedundancySettings(BaseModel):
    """Selective redundancy: candidates vote on a turn that has no finding.

    Attributes:
        effects: effects of the proposed calls that start a vote.
        uncertainty_threshold: minimum uncertainty of a turn that starts a vote; null for no such vote.
        ask_localizer: true to include the localizer's probability of a failure in the uncertainty.
        candidates: number of candidates.
        quorum: number of equal candidates that decide; null for the majority.
        models: models of the candidates; empty for the model of the run.
        strategy: strategy that requests the candidates, instead of candidates, quorum and models.
        on_fail: strategies if the candidates do not agree, in order of escalation.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    effects: tuple[Literal["read", "write", "destructive"], ...] = ("write", "destructive")
    uncertainty_threshold: Annotated[float, Field(gt=0, lt=1)] | None = None
    ask_localizer: bool = False
    candidates: Annotated[int, Field(ge=2, le=15)] = 3
    quorum: Annotated[int, Field(ge=2, le=15)] | None = None
    models: tuple[str, ...] = ()
    strategy: str | Mapping[str, Mapping[str, Any] | None] | None = None
    on_fail: EscalationSpec = ("reprompt",)


class RecoverSettings(BaseModel):
    """Settings of recovery in a running agent.

    Attributes:
        on_fail: strategies of a recovery, in order of escalation.
        threshold: minimum probability of a finding that starts a recovery.
        effect_threshold: minimum probability of a finding that stops a call of an undeclared or destructive
            tool.
        effect_on_fail: strategies for a stopped call, in order; null for ``[reprompt, escalate, stop]``.
        repeated_call_on_fail: strategies for the repetition of a successful call of an undeclared or
            destructive tool, in order; null for ``[reprompt, escalate]``. After the last strategy, the call
            runs.
        max_hypotheses: maximum number of hypotheses that a recovery tries.
        verification_window: number of steps after a recovery that decide its outcome.
        redundancy: selective redundancy; null for none.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    on_fail: EscalationSpec | None = None
    threshold: Annotated[float, Field(gt=0, le=1)] = 0.5
    effect_threshold: Annotated[float, Field(gt=0, le=1)] = 0.3
    effect_on_fail: EscalationSpec | None = None
    repeated_call_on_fail: EscalationSpec | None = None
    max_hypotheses: Annotated[int, Field(ge=1, le=20)] = 3
    verification_window: Annotated[int, Field(ge=1, le=1000)] = 4
    redundancy: RedundancySettings | None = None


class BudgetSettings(BaseModel):
    """Limits on the recoveries of one run; null means no limit.

    Attributes:
        rollbacks: number of rollbacks, including restarts.
        rollbacks_per_step: number of rollbacks to the same step.
        hints: number of hints.
        extra_tokens: tokens of recoveries, including repeated turns.
        extra_calls: model calls of recoveries.
        seconds: wall time of recoveries.
        resamples: number of further candidates in votes.
        repairs: number of repairs.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    rollbacks: Annotated[int, Field(ge=0)] | None = 3
    rollbacks_per_step: Annotated[int, Field(ge=0)] | None = 1
    hints: Annotated[int, Field(ge=0)] | None = 3
    extra_tokens: Annotated[int, Field(ge=0)] | None = 20_000
    extra_calls: Annotated[int, Field(ge=0)] | None = None
    seconds: Annotated[float, Field(ge=0, allow_inf_nan=False)] | None = None
    resamples: Annotated[int, Field(ge=0)] | None = 50
    repairs: Annotated[int, Field(ge=0)] | None = 20


class LiveModelSettings(BaseModel):
    """Settings of the embedded outcome and step models for a running agent.

    Attributes:
        threshold: minimum probability of failure that sends the agent a hint at the next boundary.
        step_threshold: minimum probability of a step as root cause that sends the agent a hint about it; null
            for none.
        model: folder of a model from ``agentguard judge train``; by default the packaged model.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    threshold: Annotated[float, Field(gt=0, le=1)] = 0.9
    step_threshold: Annotated[float, Field(gt=0, le=1)] | None = None
    model: Path | None = None


ToolTimeoutSeconds = Annotated[float, Field(gt=0, le=86_400)]


class ToolSettings(BaseModel):
    """Declaration of a tool: its effects on the environment, and its timeout.

    Attributes:
        effect: ``read`` changes nothing, ``write`` adds data, ``destructive`` may change or destroy data.
        idempotent: true if a repeated call has no further effect.
        repeatable: true if equal calls in one run are intended, each with its own effect.
        key: arguments that identify the effect; calls with equal keys are the same effect.
        timeout_s: seconds after which the guard interrupts a call; null for ``tool_timeout_s``.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    effect: Literal["read", "write", "destructive"]
    idempotent: bool = False
    repeatable: bool = False
    key: tuple[str, ...] = ()
    timeout_s: ToolTimeoutSeconds | None = None


class Policy(BaseModel):
    """Validated policy; frozen.

    Attributes:
        version: version of the format.
        detectors: options by detector; ``false`` disables a detector.
        enabled_detectors: names of the only detectors to run; null for all.
        detector_deadline_s: time limit of a detector for one step.
        on_guard_error: continue (``fail_open``) or stop (``fail_closed``) the run if a part of the guard
            fails.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    version: Literal[1] = 1
    detectors: Mapping[str, DetectorValue] = Field(default_factory=dict)
    enabled_detectors: tuple[str, ...] | None = None
    localizer: LocalizerSettings | None = None
    detector_deadline_s: Annotated[float, Field(gt=0, le=60)] = 0.5
    recover: RecoverSettings = RecoverSettings()
    budgets: BudgetSettings = BudgetSettings()
    tools: Mapping[str, ToolSettings] = Field(default_factory=dict)
    tool_timeout_s: ToolTimeoutSeconds | None = None
    """Timeout in seconds of tools without ``timeout_s``."""
    on_guard_error: Literal["fail_open", "fail_closed"] = "fail_open"
    schemata: bool | str = True
    """Schemata of earlier failures: true for those of the guard's store, else of the default store if it
    exists; a file or database; or false for none."""
    judge: JudgeSettings | None = None
    """Judge of all localizers that need one; the default localizer is then `fused`."""
    safety: SafetySettings | None = None
    """Response safety; needs the judge."""
    live_model: LiveModelSettings | None = None
    """Embedded outcome and step models for a running agent."""
    acceptance: AcceptanceSettings | None = None
    """Acceptance test of the output of a run; its question needs the judge."""
    prices: Mapping[str, TokenPrice] = Field(default_factory=dict)
    """Pattern of model names to price in US dollars per million tokens; the first match applies."""

    @model_validator(mode="after")
    def _validate_live_model(self) -> Policy:
        if self.live_model is not None and self.judge is not None and self.judge.live is not None:
            raise ValueError("live_model and judge.live exclude each other: remove one")
        return self

    @model_validator(mode="after")
    def _validate_acceptance_judge(self) -> Policy:
        asks = self.acceptance is not None and self.acceptance.question is not None
        if asks and (self.judge is None or self.judge.kind != "chat"):
            raise ValueError("acceptance.question needs a chat model: set judge: {base_url: ...}")
        is_single = self.judge is not None and self.judge.second is None
        if asks and is_single and self._compensates_refusals():
            raise ValueError(
                "acceptance.on_fail: compensate undoes effects, which two judges must decide: set "
                "judge.second, or remove compensate"
            )
        return self

    def _compensates_refusals(self) -> bool:
        """Return whether a refusal of the acceptance test may undo effects."""
        policy = self.list_escalations().get("acceptance", self.recover.on_fail) or ()
        levels = [policy] if isinstance(policy, str) else policy
        return any("compensate" in (one if isinstance(one, Mapping) else (one,)) for one in levels)

    @model_validator(mode="after")
    def _validate_safety_judge(self) -> Policy:
        if self.safety is not None and self.judge is None:
            raise ValueError("safety needs a judge: set judge: {base_url: ...}")
        if self.safety is not None and self.judge is not None:
            for one in (self.judge, self.judge.second):
                if one is not None and not one.can_answer("response_safety"):
                    raise ValueError("safety needs a classifier for response_safety in each judge")
        return self

    def resolve_localizer(self) -> LocalizerSettings:
        """Return the configured localizer; by default `fused` with a judge and `embedded` without one."""
        return self.localizer or LocalizerSettings(name="embedded" if self.judge is None else "fused")

    def list_escalations(self) -> dict[str, Any]:
        """Return the escalation policies of detectors and other triggers that have their own."""
        own = {
            name: options[ESCALATION_KEY]
            for name, options in self.detectors.items()
            if options and ESCALATION_KEY in options
        }
        if self.acceptance is not None and self.acceptance.on_fail is not None:
            own["acceptance"] = self.acceptance.on_fail
        if self.recover.effect_on_fail is not None:
            own["effect"] = self.recover.effect_on_fail
        if self.recover.repeated_call_on_fail is not None:
            own["repeated_call"] = self.recover.repeated_call_on_fail
        return own

    def get_detector_options(self, detector: str) -> dict[str, Any]:
        """Return the options of a detector without its escalation policy."""
        options = self.detectors.get(detector) or {}
        return {key: value for key, value in options.items() if key != ESCALATION_KEY}

    @classmethod
    def load(cls, path: str | Path) -> Policy:
        """Read a policy from a YAML file. Raises ConfigError that names the file and the field."""
        return cls.parse(load_yaml(path), source=str(path))

    @classmethod
    def parse(cls, document: object, *, source: str = "policy") -> Policy:
        """Validate a parsed policy. Raises ConfigError with every field that is wrong."""
        try:
            return cls.model_validate(document)
        except ValidationError as error:
            raise ConfigError(f"{source}: {format_validation_error(error, cls)}") from None


def load_yaml(path: str | Path) -> object:
    """Return the content of a YAML file; an empty mapping for an empty file.

    Raises:
        ConfigError: the file cannot be read, is too large or is not YAML; the message names it.
    """
    file = Path(path)
    try:
        if file.stat().st_size > _MAX_BYTES:
            raise ConfigError(f"{file}: larger than {_MAX_BYTES:,} bytes")
        document = yaml.safe_load(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"{file}: cannot be read: {error.strerror}") from None
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError, ValueError) as error:
        raise ConfigError(f"{file}: is not valid YAML{_format_position(error)}") from None
    return {} if document is None else document


def format_validation_error(error: ValidationError, model: type[BaseModel]) -> str:
    """Return every invalid field in one line, without the given values.

    Args:
        error: the error of pydantic.
        model: the validated model; for an unknown field, the error lists the fields of its section.
    """
    parts = []
    for item in error.errors(include_input=False, include_url=False):
        location = item["loc"]
        is_rule = item["type"] == "value_error"
        field = ".".join(str(part) for part in location) or ("" if is_rule else "the document")
        text = item["msg"].removeprefix("Value error, ")
        if item["type"] == "extra_forbidden":
            text = _describe_unknown_field(str(location[-1]), _find_section(model, location[:-1]))
        parts.append(f"{field}: {text}" if field else text)
    return "; ".join(parts)


def _describe_unknown_field(name: str, section: type[BaseModel] | None) -> str:
    if section is None:
        return "unknown setting"
    names = [field.alias or name for name, field in section.model_fields.items()]
    similar = get_close_matches(name, names, n=1)
    suggestion = f"did you mean {similar[0]!r}? " if similar else ""
    return f"unknown setting ({suggestion}known: {', '.join(names)})"


def _find_section(model: type[BaseModel], location: Sequence[int | str]) -> type[BaseModel] | None:
    """Return the model at a location, in which indices and keys have no field; None if it is ambiguous."""
    section = model
    for part in location:
        fields = section.model_fields
        field = next((one for name, one in fields.items() if part in (name, one.alias)), None)
        if field is None:
            continue
        sections = set(_iter_models(field.annotation))
        if len(sections) != 1:
            return None
        section = sections.pop()
    return section


def _iter_models(annotation: object) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for argument in get_args(annotation):
        yield from _iter_models(argument)


def _format_position(error: Exception) -> str:
    mark = getattr(error, "problem_mark", None)
    return f" (line {mark.line + 1}, column {mark.column + 1})" if mark else ""
