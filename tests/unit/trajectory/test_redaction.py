from __future__ import annotations

import json
import time
from typing import Any

import pytest

from agentguard.errors import ConfigError
from agentguard.trajectory.event_log.recorder import build_events
from agentguard.trajectory.model import (
    Annotation,
    Branch,
    Observation,
    Record,
    Source,
    Step,
    ToolCall,
    Trajectory,
)
from agentguard.trajectory.redaction import Redactor
from agentguard.trajectory.serialization import encode_meta, encode_step

KEY = "sk-" + "Ab1" * 8
# Written in parts, so that no scanner takes these synthetic values for real ones.
SECRETS = {
    "api_key": [
        KEY,
        "ghp_" + "a1B2" * 9,
        "ag-" + "a1B2_-" * 7 + "z",
        "AKIA" + "ABCD1234EFGH5678",
        "xoxb-" + "123456789012-abcdef",
        "AIza" + "Sy0" * 12,
        "hf_" + "q7" * 15,
        "sk_live_" + "z9" * 8,
        "glpat-" + "k3" * 10,
    ],
    "jwt": ["eyJhbGciOiJIUzI1NiJ9." + "eyJzdWIiOiIxMjM0NTY3ODkwIn0." + "c2lnbmF0dXJl"],
    "private_key": ["-----BEGIN RSA PRIVATE KEY-----\nMIIB\nAAAA\n-----END RSA PRIVATE KEY-----"],
    "email": ["ann.b+c@mail.example.org"],
    "card": ["4111 1111 1111 1111", "5500-0000-0000-0004", "340000000000009"],
}
NAMED = {
    "Authorization: Bearer abc.DEF-123456": ("bearer_token", "abc.DEF-123456"),
    "Authorization: Basic YW5uOmJlZQ==": ("authorization", "YW5uOmJlZQ=="),
    "postgres://ann:t0psecret@db.example/x": ("url_password", "t0psecret"),
    "password=t0psecret&user=ann": ("secret", "t0psecret"),
    '"api_key": "plainvalue1"': ("secret", "plainvalue1"),
    r"{\"client_secret\": \"plainvalue1\"}": ("secret", "plainvalue1"),
    "DB_PASSWORD='two words'": ("secret", "two words"),
    "aws_secret_access_key = wJalrXUtnFEMI/K7MD": ("secret", "wJalrXUtnFEMI/K7MD"),
}


def run(**fields: Any) -> Record:
    step = Step(index=0, source=Source.AGENT, agent="a", **fields)
    return Record(trajectory=Trajectory(id="r", format="x", task="t", steps=(step,)))


def dumped(record: Record) -> str:
    return json.dumps(list(build_events(record)), ensure_ascii=False)


class TestText:
    @pytest.mark.parametrize(
        ("kind", "secret"), [(kind, one) for kind, all_of in SECRETS.items() for one in all_of]
    )
    def test_secret_shapes_are_redacted(self, kind: str, secret: str) -> None:
        redactor = Redactor()
        for before, after in (("", ""), ("it is ", ", so"), ("é\n", "\né"), ('"', '"')):
            found = redactor.redact_text(f"{before}{secret}{after}")
            assert found == f"{before}{redactor.build_placeholder(kind, secret)}{after}"

    @pytest.mark.parametrize("text", NAMED)
    def test_secrets_after_sensitive_names_are_redacted(self, text: str) -> None:
        kind, secret = NAMED[text]
        redactor = Redactor()
        assert redactor.redact_text(text) == text.replace(secret, redactor.build_placeholder(kind, secret))

    @pytest.mark.parametrize(
        "text",
        [
            "",
            "max_tokens: 1000",
            "the password: none",
            "4111 1111 1111 1112",
            "0000000000000000",
            "order 1234567890123",
            "ask-me-anything-about-skiing",
            "meet @ann at 10:30",
            "https://example.org/path?x=1",
            "version 1.2.3, sha256 0123456789abcdef",
            '{"type": "object", "properties": {"password": {"type": "string"}}}',
        ],
    )
    def test_ordinary_text_is_unchanged(self, text: str) -> None:
        assert Redactor().redact_text(text) == text

    def test_redaction_is_idempotent(self) -> None:
        redactor = Redactor()
        for text in NAMED:
            once = redactor.redact_text(text)
            assert redactor.redact_text(once) == once

    def test_placeholders_are_stable_and_depend_on_the_key(self) -> None:
        assert Redactor().redact_text(KEY) == Redactor().redact_text(KEY)
        assert Redactor().redact_text(KEY).startswith("[redacted:api_key:")
        assert len({Redactor(key=key).redact_text(KEY) for key in (b"", b"1", b"2")}) == 3
        assert Redactor().redact_text(KEY) != Redactor().redact_text(KEY + "x")

    def test_hostile_text_takes_linear_time(self) -> None:
        for text in (
            "a" * 300_000,
            "password" * 30_000,
            "a@" * 100_000,
            "-----BEGIN PRIVATE KEY-----" * 5_000,
        ):
            begin = time.perf_counter()
            Redactor().redact_text(text)
            assert time.perf_counter() - begin < 5


class TestPatterns:
    def test_custom_pattern_is_redacted(self) -> None:
        redactor = Redactor(patterns={"ticket": r"\bTCK-\d+", "room": r"room (\d+)"})
        text = redactor.redact_text("TCK-17 in room 4")
        assert (
            text
            == f"{redactor.build_placeholder('ticket', 'TCK-17')} in room {redactor.build_placeholder('room', '4')}"  # noqa: E501
        )

    @pytest.mark.parametrize("pattern", ["(", r"(?=a)", r"(a)\1", "\ud800"])
    def test_invalid_pattern_is_rejected(self, pattern: str) -> None:
        with pytest.raises(ConfigError, match="not a valid RE2"):
            Redactor(patterns={"x": pattern})

    def test_invalid_kind_is_rejected(self) -> None:
        with pytest.raises(ConfigError, match="plain word"):
            Redactor(patterns={"a:b": "x"})

    def test_pattern_that_matches_only_empty_text_changes_nothing(self) -> None:
        assert Redactor(patterns={"x": "z*"}).redact_text("abc") == "abc"


class TestRecords:
    def test_every_field_is_redacted(self) -> None:
        mail = SECRETS["email"][0]
        call = ToolCall(
            id=mail, name=mail, arguments={mail: [mail]}, raw_arguments=mail, extra={"x": {"y": mail}}
        )
        seen = Observation(content=mail, call_id=mail, tool=mail, extra={"x": mail})
        step = Step(
            index=0,
            source=Source.AGENT,
            agent=mail,
            content=mail,
            reasoning=mail,
            modules={"planning": mail},
            tool_calls=(call,),
            observations=(seen,),
            model=mail,
            extra={"x": [mail]},
        )
        record = Record(
            trajectory=Trajectory(
                id="r",
                format="x",
                task=mail,
                steps=(step,),
                system_prompts={"": mail},
                branches=(Branch(id="b", fork_step=0, steps=(step,), reason=mail, extra={"x": mail}),),
                extra={"x": mail},
            ),
            annotation=Annotation(answer=mail, group=mail, extra={"x": mail}),
        )
        redacted = Redactor().redact(record)
        text = dumped(redacted.record)
        assert mail not in text
        assert redacted.counts == {"email": text.count("[redacted:email:")}
        assert mail in dumped(record), "the original is left as it was"

    def test_values_of_sensitive_keys_are_redacted(self) -> None:
        arguments = {"password": "swordfish", "Api-Key": 12345678, "pin": True, "user": "ann", "token": None}
        (call,) = (
            Redactor()
            .redact(run(tool_calls=(ToolCall(id="1", name="login", arguments=arguments),)))
            .record.trajectory.steps[0]
            .tool_calls
        )
        assert call.arguments is not None
        assert call.arguments["password"].startswith("[redacted:secret:")
        assert call.arguments["Api-Key"].startswith("[redacted:secret:")
        assert (call.arguments["pin"], call.arguments["user"], call.arguments["token"]) == (True, "ann", None)

    def test_secret_found_once_is_redacted_everywhere(self) -> None:
        call = ToolCall(
            id="1",
            name="login",
            arguments={"password": "sword fish"},
            raw_arguments='{"password": "sword fish"}',
        )
        redacted = Redactor().redact(
            run(content="I type sword fish now", reasoning="sword fish?", tool_calls=(call,))
        )
        assert "sword fish" not in dumped(redacted.record)
        assert redacted.counts == {"secret": 4}
        (again,) = redacted.record.trajectory.steps[0].tool_calls
        assert json.loads(again.raw_arguments or "") == again.arguments

    def test_escapes_do_not_hide_a_secret(self) -> None:
        hidden = KEY.replace("s", "\\u0073", 1)
        raw = f'{{"k": "{hidden}"}}'
        call = ToolCall(id="1", name="f", arguments=json.loads(raw), raw_arguments=raw)
        record = Redactor().redact(
            run(tool_calls=(call,), observations=(Observation(content=f"[{json.dumps(KEY)}]"),))
        )
        text = dumped(record.record)
        assert KEY[4:] not in text
        assert "u0073" not in text

    def test_json_without_secrets_keeps_its_spacing(self) -> None:
        record = run(observations=(Observation(content='{"a":   1}'),))
        assert Redactor().redact(record).record == record

    def test_card_numbers_are_redacted(self) -> None:
        record = Redactor().redact(run(extra={"card": 4111111111111111, "time": 1760000000000000000}))
        extra = record.record.trajectory.steps[0].extra
        assert extra["card"].startswith("[redacted:card:")
        assert extra["time"] == 1760000000000000000

    def test_common_word_as_password_does_not_corrupt_other_text(self) -> None:
        extra = {"a": {"password": "password"}, "b": "the password: hidden77"}
        redacted = Redactor().redact(run(extra=extra)).record.trajectory.steps[0].extra
        assert redacted["a"]["password"].startswith("[redacted:secret:")
        assert "hidden77" not in redacted["b"]

    def test_found_secret_is_not_replaced_within_a_placeholder(self) -> None:
        extra = {"password": "redacted", "x": KEY, "y": "redacted"}
        found = Redactor().redact(run(extra=extra)).record.trajectory.steps[0].extra
        assert found["x"] == Redactor().build_placeholder("api_key", KEY)
        assert found["y"] == found["password"] == Redactor().build_placeholder("secret", "redacted")

    def test_structure_is_kept(self) -> None:
        record = run(content=KEY, extra={"a": [1, {"b": (2.5, None, True)}]})
        redacted = Redactor().redact(record).record
        assert encode_meta(redacted.trajectory) == encode_meta(record.trajectory)
        before, after = (encode_step(one.trajectory.steps[0]) for one in (record, redacted))
        assert {k: v for k, v in before.items() if k != "content"} == {
            k: v for k, v in after.items() if k != "content"
        }


@pytest.mark.parametrize(
    ("text", "harmless"),
    [
        ('{"city": "Bern", "rows": [{"at": 8.5}, null]}', True),
        ('{"password": "hunter22x"}', False),
        ('[{"note": "\\u0073k-' + "a1B2" * 12 + '"}]', False),
        ('{"number": 4111111111111111}', False),
        ('{"inner": "{\\"api_key\\": \\"hunter22x\\"}"}', False),
        ("{no JSON, password: hunter22x", False),
        ("[no JSON, and no secret", True),
    ],
)
def test_json_text_is_redacted_in_one_pass(text: str, harmless: bool) -> None:
    redactor, data = Redactor(), {"step": {"content": text}}
    assert redactor.is_harmless(data) is harmless
    assert (redactor.redact_data(data) == data) is harmless
