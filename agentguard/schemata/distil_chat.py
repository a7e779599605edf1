"""The chat distiller: a model writes signature, context and heuristics of a failure, in one call.

After CORRECT (arXiv 2509.24088). The model reads the run and, marked, the step at fault, and answers under a
JSON schema whose strings and lists are bounded. Nothing it writes is believed to be free of the label or the
topic: each sentence that names an agent or says which step it was is dropped, the topic is taken out of the
others (`agentguard.schemata.plain`), and those of which too little is left are dropped too. Traits, codes,
module, correction and provenance are those of the embedded distiller, so that schemata of both can be found
and merged alike.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from agentguard.detect.base import Finding
from agentguard.errors import ConfigError, JudgeError
from agentguard.judge.chat import conversation
from agentguard.judge.endpoint import Endpoint
from agentguard.judge.prompts import block, fenced, nonce_of, render
from agentguard.judge.wire import Failed
from agentguard.schemata.distil import EmbeddedDistiller, identity
from agentguard.schemata.model import Schema
from agentguard.schemata.plain import GAP, Plainer
from agentguard.trajectory.model import Record, Step, Trajectory

_CONTEXT: Final = 8_192
_MAX_TOKENS: Final = 600
_CHARACTERS: Final = 3
_EXCERPT: Final = 1_500
_ASKED: Final = (
    "The step above is where this run went wrong. Describe the kind of failure so that it can be recognised "
    "in runs on other tasks. signature: how the failure shows. context: the situation it arises in. "
    "heuristics: how to tell it from what only looks like it. Write short general sentences. Name no agent, "
    "no person, no place, no number, no step, and nothing of the task. Answer with one JSON object."
)
_SENTENCE: Final = {"type": "string", "minLength": 10, "maxLength": 200}
FORM: Final[Mapping[str, Any]] = {
    "type": "object",
    "properties": {
        "signature": {"type": "array", "items": _SENTENCE, "minItems": 1, "maxItems": 3},
        "context": {"type": "array", "items": _SENTENCE, "maxItems": 2},
        "heuristics": {"type": "array", "items": _SENTENCE, "maxItems": 3},
    },
    "required": ["signature", "context", "heuristics"],
    "additionalProperties": False,
}
"""What the model may answer: bounded, so that it ends before its tokens do."""

_TURN: Final = r"(?:step|turn|message|round|index)s?"
_PLACE: Final = re.compile(
    rf"\b(?:first|second|third|fourth|fifth|sixth|seventh|eighth|ninth|tenth|last|final|initial|opening|\d+\w*)"
    rf"[\s-]+{_TURN}\b|\b{_TURN}\W{{0,3}}(?:number|no\.?|one|two|three|four|five|six|seven|eight|nine|ten|\d)",
    re.IGNORECASE,
)
_WORD: Final = re.compile(r"[^\W\d_]+")
_KEPT: Final = 0.5
_FEWEST: Final = 3


class ChatDistiller:
    """Distils schemata through a chat model.

    Args:
        endpoint: who writes.
        deadline_s: seconds for one schema; the endpoint's own deadline bounds it as well.
    """

    def __init__(self, endpoint: Endpoint, *, deadline_s: float | None = None) -> None:
        self.endpoint = endpoint
        self._deadline_s = deadline_s
        self._embedded = EmbeddedDistiller()
        self._secret = secrets.token_bytes(32)

    @property
    def name(self) -> str:
        """``"chat:<model>"``, as provenance records it."""
        known = self.endpoint.known
        return f"chat:{known.model if known else self.endpoint.model or 'unknown'}"

    def distil(self, record: Record, findings: Sequence[Finding]) -> Schema | None:
        """The schema of an annotated failure; None where the embedded distiller sees none either.

        Raises:
            JudgeError: the model could not be asked, its answer does not fit the form, or nothing of its
                signature may be kept.
        """
        cause = record.annotation.root_cause
        known = self._embedded.distil(record, findings)
        if known is None or cause is None or cause.step is None:
            return None
        run = record.trajectory
        said = self.endpoint.loop.run(self._asked(run, run.steps[cause.step]))
        kept = {part: _kept(said[part], run) for part in ("signature", "context", "heuristics")}
        if not kept["signature"]:
            raise JudgeError(
                f"{self.name} wrote no sentence on how the failure shows that says nothing of the task, the "
                "agent or the step"
            )
        parts = (kept["signature"], kept["context"], kept["heuristics"])
        return replace(
            known,
            id=identity(run.id, parts, known.codes),
            signature=parts[0],
            context=parts[1],
            heuristics=parts[2],
            provenance=replace(known.provenance, method=self.name),
        )

    async def _asked(self, run: Trajectory, step: Step) -> Mapping[str, Any]:
        facts = await self.endpoint.facts(self._deadline_s)
        if isinstance(facts, Failed):
            raise _error(self.name, facts)
        nonce = nonce_of(
            run, b""
        )  # what is written is checked word by word; nothing hangs on the fence alone
        excerpt = fenced([block(step, _EXCERPT)], title="step at fault", nonce=nonce)
        room = ((facts.context or _CONTEXT) - _MAX_TOKENS) * _CHARACTERS - len(excerpt) - len(_ASKED) - 500
        try:
            shown = render(run, nonce=nonce, limit=room)
        except ConfigError as error:
            raise JudgeError(str(error)) from None
        messages = conversation(shown, (), excerpt + _ASKED)
        written = await self.endpoint.write(
            messages, FORM, max_tokens=_MAX_TOKENS, deadline_s=self._deadline_s
        )
        if isinstance(written, Failed):
            raise _error(self.name, written)
        return written[0]


def _kept(sentences: Iterable[str], run: Trajectory) -> tuple[str, ...]:
    """The sentences that give nothing away, without their topic, each once."""
    plainer = Plainer(run)
    names = _names(run)
    kept = [
        plain
        for said in sentences
        if not _PLACE.search(said) and not (names and names.search(said))
        if (plain := _plain(said, plainer))
    ]
    return tuple(dict.fromkeys(kept))


def _plain(said: str, plainer: Plainer) -> str:
    """A sentence without its topic; empty if it then says too little, or still tells a place."""
    left = plainer(said)
    words = [word for word in _WORD.findall(left) if word != GAP]
    whole = _WORD.findall(said)
    if len(words) < max(_FEWEST, _KEPT * len(whole)) or _PLACE.search(left):
        return ""
    text = left.strip(f" .{GAP}")
    return f"{text[:1].upper()}{text[1:]}."


def _names(run: Trajectory) -> re.Pattern[str] | None:
    """Agents' names, in the forms a writer would give them: with spaces for underscores as well."""
    names = {step.agent for step in run.steps if len(step.agent) > 1}
    forms = names | {re.sub(r"[_\W]+", " ", name).strip() for name in names}
    told = sorted((re.escape(form) for form in forms if form), key=len, reverse=True)
    return re.compile(rf"(?<!\w)(?:{'|'.join(told)})(?!\w)", re.IGNORECASE) if told else None


def _error(name: str, failed: Failed) -> JudgeError:
    return JudgeError(f"{name} wrote no schema: {failed.message} ({failed.fault})")
