"""A state as bytes, and back: JSON and plain bytes by themselves, pickle where it is asked for by name."""

from __future__ import annotations

from typing import Any, Protocol

import orjson

from agentguard.errors import ConfigError, RecoveryError

_HINT = (
    "let save() return bytes or plain JSON data (dict, list, str, int, float, bool, None), or allow pickle: "
    "snapshots=SnapshotOptions(codec='pickle')"
)
_STRICT_OPTIONS = (
    orjson.OPT_PASSTHROUGH_SUBCLASS | orjson.OPT_PASSTHROUGH_DATACLASS | orjson.OPT_PASSTHROUGH_DATETIME
)


class StateCodec(Protocol):
    """Turns states into bytes; one's own may be given in `SnapshotOptions`."""

    @property
    def name(self) -> str:
        """Kept with each snapshot in the store: what another codec wrote is not read."""
        ...

    def encode(self, state: Any) -> bytes:
        """The state as bytes, which do not change when it does. Raises ConfigError if it has none."""
        ...

    def decode(self, raw: bytes) -> Any:
        """A state equal to the one that was encoded, and not the same object."""
        ...


class JsonCodec:
    """JSON data and bytes. Whatever would come back as something else is refused: tuples, NaN, dates."""

    name = "json"

    def encode(self, state: Any) -> bytes:
        """As `StateCodec.encode`."""
        if isinstance(state, bytes | bytearray | memoryview):
            return b"b" + bytes(state)
        try:
            raw = orjson.dumps(state, option=_STRICT_OPTIONS)
        except TypeError as error:
            raise ConfigError(f"a state that is no JSON data cannot be saved ({error}): {_HINT}") from None
        if orjson.loads(raw) != state:
            raise ConfigError(f"a state that JSON would change cannot be saved (a tuple, NaN): {_HINT}")
        return b"j" + raw

    def decode(self, raw: bytes) -> Any:
        """As `StateCodec.decode`."""
        return raw[1:] if raw[:1] == b"b" else orjson.loads(raw[1:])


class PickleCodec:
    """Python objects. A pickle runs what is in it: whoever can write to the store can run code here."""

    name = "pickle"

    def encode(self, state: Any) -> bytes:
        """As `StateCodec.encode`."""
        import pickle

        try:
            return pickle.dumps(state, protocol=pickle.HIGHEST_PROTOCOL)
        except Exception as error:  # an object's own methods may raise anything
            raise ConfigError(f"a state cannot be pickled: {type(error).__name__}") from None

    def decode(self, raw: bytes) -> Any:
        """As `StateCodec.decode`. Raises RecoveryError where the classes of the state are gone."""
        import pickle

        try:
            return pickle.loads(raw)  # noqa: S301  asked for by name, and documented
        except Exception as error:  # as above
            raise RecoveryError(f"a saved state cannot be unpickled: {type(error).__name__}") from None


def get_codec(codec: str | StateCodec) -> StateCodec:
    """The codec of a name, or the one that was given. Raises ConfigError if there is none of that name."""
    if not isinstance(codec, str):
        return codec
    if codec not in _CODECS:
        raise ConfigError(f"snapshots: codec is {codec!r}, expected one of {', '.join(_CODECS)}")
    return _CODECS[codec]


_CODECS: dict[str, StateCodec] = {"json": JsonCodec(), "pickle": PickleCodec()}
