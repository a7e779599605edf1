"""Settings of the judge and of response safety in a policy.

::

    judge:                          # a chat model; the default localizer is then `fused`
      base_url: http://127.0.0.1:8000/v1
      model: qwen3-32b              # default: the first model that the endpoint lists
      api_key_env: JUDGE_KEY        # the environment variable that holds the key
      deadline_s: 30
      max_concurrent: 16            # also: retries, context_tokens
      min_label_mass: 0.01          # below it, the model prefers a text that is not an option
      chat_template_kwargs: {enable_thinking: false}
      reasoning_tokens: 0           # above 0 the model reasons before each answer (gpt-oss)
      second: {base_url: http://127.0.0.1:8001/v1}    # must agree before an action with effects
      live: {threshold: 0.9, max_tokens: 200000}      # also classify new steps of a running agent
      replicas: [http://10.0.0.1:8000/v1, http://10.0.0.2:8000/v1]    # several servers instead of base_url

    judge:                          # or trained classifiers, served by vLLM's pooling runner
      kind: pooling
      base_url: http://127.0.0.1:8001/v1
      classifiers:
        - {question: run_failed, options: ["no", "yes"]}    # in the order of the model's classes
        - {question: "root_cause*", options: ["no", "yes"], by: step}
        - {question: response_safety, task: embed, head: safety.json, by: shown}

    safety:                         # final response of the agent, in four tiers
      unsafe: {threshold: 0.5, action: block}
      focused_attention: {threshold: 0.5, action: escalate}
      conditionally_safe: {threshold: 0.5, action: condition}
      unknown: pass                 # if the judges cannot answer
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from agentguard.config.acceptance import EscalationSpec

ActionName = Literal["pass", "condition", "escalate", "block"]
PoolingTask = Literal["classify", "score", "embed"]
"""Operation of a pooling server on a text."""

_YAML_BOOLEANS: Final = {True: "yes", False: "no"}


class EndpointSettings(BaseModel):
    """Settings of an OpenAI-compatible endpoint of a judge model, or of several replicas of it.

    Attributes:
        base_url: base URL of the endpoint, including ``/v1``.
        replicas: several servers instead of ``base_url``: URLs, or mappings as in the ``backends`` section.
        pool: other options of the ``backends`` section for the replicas, e.g. ``health``.
        model: name of the model; null for the first that the endpoint lists.
        api_key_env: environment variable with the key.
        deadline_s: deadline for all questions about a run.
        context_tokens: maximum prompt length, if the endpoint does not report it.
        max_concurrent: concurrent calls.
        retries: maximum number of retries after transient faults.
        chat_template_kwargs: arguments of the model's chat template, e.g. ``{enable_thinking: false}``.
        min_label_mass: minimum probability of all options together before masking. Below it, the model
            prefers another text, and the answer is an error.
        reasoning_tokens: tokens that a chat model may use to reason before each answer; 0 for none.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    base_url: Annotated[str, Field(min_length=8)] | None = None
    replicas: tuple[str | Mapping[str, Any], ...] = ()
    pool: Mapping[str, Any] | None = None
    model: Annotated[str, Field(min_length=1)] | None = None
    api_key_env: Annotated[str, Field(min_length=1)] | None = None
    deadline_s: Annotated[float, Field(gt=0, le=3_600, allow_inf_nan=False)] = 60.0
    context_tokens: Annotated[int, Field(ge=256)] | None = None
    max_concurrent: Annotated[int, Field(ge=1, le=1_024)] = 8
    retries: Annotated[int, Field(ge=0, le=10)] = 0
    chat_template_kwargs: Mapping[str, Any] | None = None
    min_label_mass: Annotated[float, Field(ge=0, lt=1)] = 0.01
    reasoning_tokens: Annotated[int, Field(ge=0, le=65_536)] = 0

    @model_validator(mode="after")
    def _validate_address(self) -> EndpointSettings:
        if (self.base_url is None) == (not self.replicas):
            raise ValueError("set either base_url or replicas")
        if self.pool is not None and not self.replicas:
            raise ValueError("pool needs replicas")
        return self


class ClassifierSettings(BaseModel):
    """Served classifier of a pooling judge: its question, task and classes.

    Attributes:
        question: id of the question that it answers, or a prefix of ids followed by ``*``.
        task: endpoint of the server to call.
        options: meanings of the classes, in order; for ``response_safety``, the ids of the tiers.
        by: input of the classifier: the run, one step at a time, or the text shown in the question.
        chosen: the option that selects a step.
        head: file of a `LinearHead` for the vectors of an embedding model.
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
    def _parse_options(cls, value: Any) -> Any:
        """Restore a bare ``yes`` or ``no``, which YAML reads as true or false."""
        if isinstance(value, list | tuple):
            return [_YAML_BOOLEANS.get(one, one) if isinstance(one, bool) else one for one in value]
        return value

    @field_validator("chosen", mode="before")
    @classmethod
    def _parse_chosen(cls, value: Any) -> Any:
        return _YAML_BOOLEANS[value] if isinstance(value, bool) else value


class QuestionJudgeSettings(EndpointSettings):
    """Settings of a judge: a chat model, or classifiers that were trained for the questions.

    Attributes:
        kind: chat model or classifiers.
        classifiers: the classifiers of a pooling judge.
    """

    kind: Literal["chat", "pooling"] = "chat"
    classifiers: tuple[ClassifierSettings, ...] = ()

    @model_validator(mode="after")
    def _validate_kind(self) -> QuestionJudgeSettings:
        if self.kind == "pooling" and not self.classifiers:
            raise ValueError("a judge of kind pooling needs classifiers")
        if self.kind == "chat" and self.classifiers:
            raise ValueError("classifiers need kind: pooling")
        return self

    def can_answer(self, question: str) -> bool:
        """Return whether the judge has a chat model, or a classifier for questions with this id."""
        return self.kind == "chat" or any(
            question.startswith(one.question[:-1]) if one.question.endswith("*") else question == one.question
            for one in self.classifiers
        )


class LiveJudgeSettings(BaseModel):
    """Settings of the judge for a running agent.

    Attributes:
        threshold: minimum probability of a mistake that starts a recovery at the next boundary.
        max_pending: maximum number of waiting questions of all runs.
        max_tokens: maximum number of tokens for one run.
        max_cost_usd: maximum cost of one run in US dollars; needs a price of the judge's model in ``prices``.
        hold_effects: true to hold calls with effects until the judge and ``second`` have answered. Both must
            agree to stop a call.
        hold_s: longest wait for both judges in seconds; after it, the call runs.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    threshold: Annotated[float, Field(gt=0, le=1)] = 0.9
    max_pending: Annotated[int, Field(ge=1, le=10_000)] = 32
    max_tokens: Annotated[int, Field(ge=0)] = 200_000
    max_cost_usd: Annotated[float, Field(ge=0, allow_inf_nan=False)] | None = None
    hold_effects: bool = False
    hold_s: Annotated[float, Field(gt=0, le=600)] = 5.0


class JudgeSettings(QuestionJudgeSettings):
    """Settings of the judge of a policy.

    Attributes:
        live: settings to classify new steps of a running agent, too; null to judge only ended runs.
        swap: true to ask a chat model each question in both orders of its options; no effect on classifiers.
        second: another judge that must agree before the guard takes an action with effects.
    """

    swap: bool = True
    second: QuestionJudgeSettings | None = None
    live: LiveJudgeSettings | None = None

    @model_validator(mode="after")
    def _validate_hold(self) -> JudgeSettings:
        if self.live is not None and self.live.hold_effects and self.second is None:
            raise ValueError("live.hold_effects needs two judges: set second: {base_url: ...}")
        return self

    @property
    def uses_both_orders(self) -> bool:
        """Return whether each question is asked in both orders."""
        return self.swap and self.kind == "chat"


class TierSettings(BaseModel):
    """Settings of a tier.

    Attributes:
        threshold: minimum probability of the tier.
        action: action of the guard; null for the default action of the tier.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    threshold: Annotated[float, Field(gt=0, le=1)] = 0.5
    action: ActionName | None = None


class SafetySettings(BaseModel):
    """Settings of response safety.

    Attributes:
        unsafe, focused_attention, conditionally_safe: threshold and action of the tier.
        unknown: action if the judges cannot answer.
        alone: true to let one judge decide on actions with effects.
        requests: true to rate the messages of users, too, in a diagnosis; they lead to findings, never to an
            action.
        on_condition, on_escalate, on_block: strategies of the action, in order of escalation.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    unsafe: TierSettings = TierSettings()
    focused_attention: TierSettings = TierSettings()
    conditionally_safe: TierSettings = TierSettings()
    unknown: ActionName = "pass"
    alone: bool = False
    requests: bool = False
    on_condition: EscalationSpec = ("hint",)
    on_escalate: EscalationSpec = ("escalate", "stop")
    on_block: EscalationSpec = ("stop",)

    def list_escalations(self) -> dict[str, EscalationSpec]:
        """Return the escalation policy of each action."""
        return {"condition": self.on_condition, "escalate": self.on_escalate, "block": self.on_block}
