"""The parts of a policy that concern a judge: who is asked, and what is done about unsafe replies.

::

    judge:                          # a chat model; the default localizer is then `fused`
      base_url: http://127.0.0.1:8000/v1
      model: qwen3-32b              # the first that the endpoint lists, if absent
      api_key_env: JUDGE_KEY        # the environment variable that holds the key
      deadline_s: 30
      second: {base_url: http://127.0.0.1:8001/v1}    # who must agree before an action with effects
      replicas: [http://10.0.0.1:8000/v1, http://10.0.0.2:8000/v1]    # in place of base_url: several servers
    safety:                         # what an agent says in the end, in four tiers
      unsafe: {threshold: 0.5, action: block}
      focused_attention: {threshold: 0.5, action: escalate}
      conditionally_safe: {threshold: 0.5, action: condition}
      unknown: pass                 # where the judges cannot say
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

ActionName = Literal["pass", "condition", "escalate", "block"]
Rungs = str | tuple[str | Mapping[str, Mapping[str, Any] | None], ...]


class EndpointSettings(BaseModel):
    """An OpenAI-compatible endpoint of a chat model that judges, or several of the same model.

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
    def _is_somewhere(self) -> EndpointSettings:
        if (self.base_url is None) == (not self.replicas):
            raise ValueError("name where it is: base_url, or replicas in place of it")
        if self.pool is not None and not self.replicas:
            raise ValueError("pool is for several replicas")
        return self


class JudgeSettings(EndpointSettings):
    """The judge of a policy.

    Attributes:
        kind: what it is; a chat model.
        swap: ask each question in both orders of its options.
        second: another judge, which must agree before anything with effects is done on the judge's word.
    """

    kind: Literal["chat"] = "chat"
    swap: bool = True
    second: EndpointSettings | None = None


class TierSettings(BaseModel):
    """From which probability a tier counts, and what is done then; the tier's own action if absent."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    threshold: Annotated[float, Field(gt=0, le=1)] = 0.5
    action: ActionName | None = None


class SafetySettings(BaseModel):
    """Response safety; see `agentguard.judge.safety`.

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
    on_condition: Rungs = ("nudge",)
    on_escalate: Rungs = ("hand_over", "stop")
    on_block: Rungs = ("stop",)

    def ladders(self) -> dict[str, Rungs]:
        """Action to its ladder."""
        return {"condition": self.on_condition, "escalate": self.on_escalate, "block": self.on_block}
