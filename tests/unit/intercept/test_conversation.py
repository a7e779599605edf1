"""The cache of waiting conversations."""

from typing import Any

from agentguard.intercept.conversation import Conversation, ConversationCache


class Session:
    """Session that records whether it has released its detectors."""

    is_released = False

    def release_detectors(self) -> None:
        self.is_released = True


def put(cache: ConversationCache, key: bytes) -> Session:
    session: Any = Session()
    cache.put(Conversation(session=session, first_run_id="r"), [key])
    return session


def test_only_the_latest_conversations_keep_their_detectors():
    cache = ConversationCache(1024)
    sessions = [put(cache, b"%d" % number) for number in range(70)]
    assert [session.is_released for session in sessions] == [True] * 6 + [False] * 64


def test_conversation_that_continues_does_not_count_as_waiting():
    cache = ConversationCache(1024)
    first, second = put(cache, b"first"), put(cache, b"second")
    assert cache.pop_latest([b"first"]) is not None
    for number in range(63):
        put(cache, b"%d" % number)
    assert not second.is_released
    put(cache, b"last")
    assert (first.is_released, second.is_released) == (False, True)
