"""Settings of the acceptance test in a policy.

::

    acceptance:                     # checks of the last text of a run; all of them must pass
      rules:
        - {schema: {type: object, required: [order]}}
        - {matches: "^[0-9]{4}-[0-9]{2}-[0-9]{2}$", field: date}
        - {from_task: order, pattern: "order ([0-9]+)"}
        - {contains: [refund, "7 days"]}
        - {excludes: "as an AI"}
        - {number: total, minimum: 0, maximum: 500}
        - {calls: book, minimum: 1, maximum: 1}
      question:                     # one question for the policy's judge
        text: Is every statement of the answer supported by the sources?
        source_tools: [search]      # results of these tools are sources
        source_files: [terms.md]    # text files are sources, too
      on_fail: [{restart: {times: 2}}, escalate]    # default: recover.on_fail
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, model_validator

EscalationSpec = str | tuple[str | Mapping[str, Mapping[str, Any] | None], ...]
"""One strategy, or several in order of escalation: names, or mappings of a name to its options."""


class AcceptanceQuestionSettings(BaseModel):
    """Settings of the question for the judge.

    Attributes:
        text: question that the judge must answer with yes.
        source_tools: tools whose results are sources.
        source_files: UTF-8 text files that are sources.
        min_probability: minimum probability of yes for an accepted output.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    text: Annotated[str, Field(min_length=1)]
    source_tools: tuple[str, ...] = ()
    source_files: tuple[Path, ...] = ()
    min_probability: Annotated[float, Field(gt=0, lt=1)] = 0.5


class AcceptanceSettings(BaseModel):
    """Settings of the acceptance test.

    Attributes:
        rules: rules as for `agentguard.recover.AcceptanceTest.from_data`.
        question: question for the policy's judge.
        on_fail: escalation policy after a refusal; by default that of all detectors.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    rules: tuple[Mapping[str, Any], ...] = ()
    question: AcceptanceQuestionSettings | None = None
    on_fail: EscalationSpec | None = None

    @model_validator(mode="after")
    def _validate_content(self) -> AcceptanceSettings:
        if not self.rules and self.question is None:
            raise ValueError("set rules, a question, or both")
        return self
