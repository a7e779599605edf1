"""The parts of a policy that concern a judge: who is asked, and what is done about unsafe replies.

::

    judge:                          # a chat model; the default localizer is then `fused`
      base_url: http://127.0.0.1:8000/v1
      model: qwen3-32b              # the first that the endpoint lists, if absent
      api_key_env: JUDGE_KEY        # the environment variable that holds the key
      deadline_s: 30
      second: {base_url: http://127.0.0.1:8001/v1}    # who must agree before an action with effects
      replicas: [http://10.0.0.1:8000/v1, http://10.0.0.2:8000/v1]    # in place of base_url: several servers
    judge:                          # or trained classifiers, served by vLLM's pooling runner
      kind: pooling
      base_url: http://127.0.0.1:8001/v1
      classifiers:
        - {question: run_failed, options: ["no", "yes"]}    # in the order of the model's classes
        - {question: "root_cause*", options: ["no", "yes"], by: step}
        - {question: response_safety, task: embed, head: safety.json, by: shown}
    safety:                         # what an agent says in the end, in four tiers
      unsafe: {threshold: 0.5, action: block}
      focused_attention: {threshold: 0.5, action: escalate}
      conditionally_safe: {threshold: 0.5, action: condition}
      unknown: pass                 # where the judges cannot say
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

ActionName = Literal["pass", "condition", "escalate", "block"]
PoolingTask = Literal["classify", "score", "embed"]
"""What a pooling server does with a text."""

EscalationSpec = str | tuple[str | Mapping[str, Mapping[str, Any] | None], ...]

_YAML_BOOLEANS: Final = {True: "yes", False: "no"}


class EndpointSettings(BaseModel):
    """An OpenAI-compatible endpoint of a model that judges, or several of the same model.

    Attributes:
        base_url: where it is, up to and with ``/v1``.
        replicas: in place of it, several servers: addresses, or mappings as in the ``backends`` section.
        pool: other options of that section, e.g. ``policy`` or ``health``, where there are replicas.
        model: the first that it lists, if absent.
        api_key_env: environment variable with its key.
        deadline_s: for all questions about a run.
        context_tokens: longest prompt, where it does not tell.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    base_url: Annotated[str, Field(min_length=8)] | None = None
    replicas: tuple[str | Mapping[str, Any], ...] = ()
    pool: Mapping[str, Any] | None = None
    model: Annotated[str, Field(min_length=1)] | None = None
    api_key_env: Annotated[str, Field(min_length=1)] | None = None
    deadline_s: Annotated[float, Field(gt=0, le=3_600, allow_inf_nan=False)] = 60.0
    context_tokens: Annotated[int, Field(ge=256)] | None = None

    @model_validator(mode="after")
    def _validate_address(self) -> EndpointSettings:
        if (self.base_url is None) == (not self.replicas):
            raise ValueError("name where it is: base_url, or replicas in place of it")
        if self.pool is not None and not self.replicas:
            raise ValueError("pool is for several replicas")
        return self


class ClassifierSettings(BaseModel):
    """What a served classifier was trained for; see `agentguard.judge.classifier.spec.ClassifierSpec`.

    Attributes:
        question: id of the questions it answers, or how their ids begin, with ``*`` at the end.
        task: which of the server's endpoints is asked.
        options: what the classes mean, in their order; the tiers of ``response_safety`` by their ids.
        by: what it reads: the run, a step at a time, or what the question shows.
        chosen: the option that means "this one" of a step.
        head: file with a head for the vectors of an embedding model
            (`agentguard.judge.classifier.linear_head.LinearHead`).
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    question: Annotated[str, Field(min_length=1)]
    task: PoolingTask = "classify"
    options: tuple[str, ...] = ()
    by: Literal["run", "step", "shown"] = "run"
    chosen: Annotated[str, Field(min_length=1)] = "yes"
    head: Path | None = None

    @field_validator("options", mode="before")
    @classmethod
    def _parse_options(cls, given: Any) -> Any:
        """YAML reads a bare ``yes`` or ``no`` as true or false."""
        if isinstance(given, list | tuple):
            return [_YAML_BOOLEANS.get(one, one) if isinstance(one, bool) else one for one in given]
        return given

    @field_validator("chosen", mode="before")
    @classmethod
    def _parse_chosen(cls, given: Any) -> Any:
        return _YAML_BOOLEANS[given] if isinstance(given, bool) else given


class QuestionJudgeSettings(EndpointSettings):
    """Who is asked: a chat model, or classifiers that were trained for the questions.

    Attributes:
        kind: which of the two.
        classifiers: what the served model was trained for, where it is a pooling judge.
    """

    kind: Literal["chat", "pooling"] = "chat"
    classifiers: tuple[ClassifierSettings, ...] = ()

    @model_validator(mode="after")
    def _validate_kind(self) -> QuestionJudgeSettings:
        if self.kind == "pooling" and not self.classifiers:
            raise ValueError("a judge of the kind pooling needs classifiers: what its model was trained for")
        if self.kind == "chat" and self.classifiers:
            raise ValueError("classifiers are for a judge of the kind pooling: say kind: pooling")
        return self

    def can_answer(self, question: str) -> bool:
        """Whether it may be able to answer questions of an id."""
        return self.kind == "chat" or any(
            question.startswith(one.question[:-1]) if one.question.endswith("*") else question == one.question
            for one in self.classifiers
        )


class JudgeSettings(QuestionJudgeSettings):
    """The judge of a policy.

    Attributes:
        swap: ask a chat model each question in both orders of its options; a classifier sees no order.
        second: another judge, which must agree before anything with effects is done on the judge's word.
    """

    swap: bool = True
    second: QuestionJudgeSettings | None = None

    @property
    def uses_both_orders(self) -> bool:
        """Whether each question is asked in both orders."""
        return self.swap and self.kind == "chat"


class TierSettings(BaseModel):
    """From which probability a tier counts, and what is done then; the tier's own action if absent."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    threshold: Annotated[float, Field(gt=0, le=1)] = 0.5
    action: ActionName | None = None


class SafetySettings(BaseModel):
    """Response safety; see `agentguard.judge.response_safety`.

    Attributes:
        unsafe, focused_attention, conditionally_safe: the tiers.
        unknown: what is done where the judges cannot say.
        alone: let one judge decide on actions with effects.
        on_condition, on_escalate, on_block: the ladders of strategies that carry out these actions.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    unsafe: TierSettings = TierSettings()
    focused_attention: TierSettings = TierSettings()
    conditionally_safe: TierSettings = TierSettings()
    unknown: ActionName = "pass"
    alone: bool = False
    on_condition: EscalationSpec = ("nudge",)
    on_escalate: EscalationSpec = ("hand_over", "stop")
    on_block: EscalationSpec = ("stop",)

    def list_escalations(self) -> dict[str, EscalationSpec]:
        """Action to its ladder."""
        return {"condition": self.on_condition, "escalate": self.on_escalate, "block": self.on_block}
