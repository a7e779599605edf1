"""Vectorisers: the common contract, the fitted parameters of each, and their storage."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pytest
from hypothesis import given, strategies as st

from agentguard.errors import ConfigError, InputError, ModelFileError, UnknownPlugin
from agentguard.schemata.vectors import vectoriser_files
from agentguard.schemata.vectors.base import HashingVectoriser, Vectoriser, project_terms, vectorisers
from agentguard.schemata.vectors.tfidf_svd import TfidfSvd
from agentguard.schemata.vectors.tokenizer import MAX_CHARS, extract_terms, weigh_terms

TEXTS = (
    "The agent goes on after an error of a tool.\nThe error is never mentioned.",
    "A tool returns an error and the agent goes on as if it had worked.",
    "The plan leaves out a part of the task.\nNo step comes back to it.",
    "The plan has steps that the task did not ask for.",
    "The answer holds a number that no tool returned.",
    "The same call is made again with the same arguments.",
)
SHIPPED = ("hashing", "tfidf_svd")
hostile = st.text(st.characters(), max_size=200)


def ready(name: str, **options: Any) -> Vectoriser:
    return vectorisers().get(name)(**options).fit(TEXTS)


@pytest.mark.parametrize("name", SHIPPED)
class TestCommonContract:
    def test_vectors_are_normalised(self, name: str) -> None:
        rows = ready(name).encode(TEXTS)
        assert rows.dtype == np.float32
        assert rows.shape[0] == len(TEXTS)
        assert np.allclose(np.linalg.norm(rows, axis=1), 1, atol=1e-6)

    def test_text_without_known_words_is_zero(self, name: str) -> None:
        assert not ready(name).encode(["", " \n", "?! ...", "the of a"]).any()

    def test_no_texts_give_no_rows(self, name: str) -> None:
        made = ready(name)
        assert made.encode([]).shape == (0, made.encode(["plan"]).shape[1])

    def test_similar_texts_are_nearer_than_dissimilar_ones(self, name: str) -> None:
        rows = ready(name).encode(TEXTS)
        assert rows[0] @ rows[1] > max(rows[0] @ rows[i] for i in (2, 3, 4, 5))
        assert rows[2] @ rows[3] > max(rows[2] @ rows[i] for i in (0, 1, 4, 5))

    def test_fitting_is_deterministic_and_keeps_the_unfitted_vectoriser(self, name: str) -> None:
        bare = vectorisers().get(name)()
        before = bare.version
        one, other = bare.fit(TEXTS), bare.fit(TEXTS)
        assert one.version == other.version
        assert np.array_equal(one.encode(TEXTS), other.encode(TEXTS))
        assert bare.version == before

    def test_vector_does_not_depend_on_batch(self, name: str) -> None:
        made = ready(name)
        alone = np.vstack([made.encode([text]) for text in TEXTS])
        assert np.array_equal(made.encode(TEXTS), alone)

    def test_case_and_unicode_forms_are_ignored(self, name: str) -> None:
        rows = ready(name).encode(["plan task", "PLAN, Task!", "ｐｌａｎ\ttask"])
        assert np.array_equal(rows[0], rows[1])
        assert np.array_equal(rows[0], rows[2])

    @given(texts=st.lists(hostile | st.sampled_from(TEXTS), max_size=4))
    def test_any_text_gives_a_finite_vector(self, name: str, texts: list[str]) -> None:
        rows = ready(name).encode(texts)
        lengths = np.linalg.norm(rows, axis=1)
        assert rows.shape[0] == len(texts)
        assert np.all((np.abs(lengths - 1) < 1e-5) | (lengths == 0))

    def test_lone_surrogates_and_control_characters_are_accepted(self, name: str) -> None:
        assert ready(name).encode(["\ud800 plan \x00\u202e task", "plan task"]).any()

    def test_single_text_instead_of_list_is_rejected(self, name: str) -> None:
        with pytest.raises(InputError, match="one text"):
            ready(name).encode("plan")
        with pytest.raises(InputError, match="record 1: expected a text, got int"):
            ready(name).encode(["plan", 3])  # type: ignore[list-item]

    def test_unknown_option_is_rejected(self, name: str) -> None:
        with pytest.raises(ConfigError, match="no option size"):
            vectorisers().get(name)(size=3)

    @pytest.mark.parametrize("dims", [0, -1, 100_000, "256"])
    def test_dims_out_of_range_are_rejected(self, name: str, dims: object) -> None:
        with pytest.raises(ConfigError, match="dims"):
            vectorisers().get(name)(dims=dims)

    def test_vectoriser_round_trips_through_file(self, name: str, tmp_path: Path) -> None:
        made = ready(name, dims=64)
        vectoriser_files.save_vectoriser(made, tmp_path / "held")
        again = vectoriser_files.load_vectoriser(tmp_path / "held")
        assert again.version == made.version
        assert np.array_equal(again.encode(TEXTS), made.encode(TEXTS))
        vectoriser_files.save_vectoriser(again, tmp_path / "copy")
        for file in (vectoriser_files.CARD_FILE, vectoriser_files.ARRAYS_FILE):
            assert (tmp_path / "held" / file).read_bytes() == (tmp_path / "copy" / file).read_bytes()


def test_registered_name_equals_own_name() -> None:
    needed = {"endpoint": {"model": "m", "base_url": "http://127.0.0.1/v1"}}
    assert {*vectorisers().names()} >= {"endpoint", "hashing", "sentence", "tfidf_svd"}
    for name in vectorisers():
        assert vectorisers().get(name)(**needed.get(name, {})).name == name


class TestTerms:
    def test_words_and_pairs_of_a_line_are_terms(self) -> None:
        assert extract_terms("The tool fails.\nNo retry") == [
            "tool",
            "fails",
            "tool fails",
            "no",
            "retry",
            "no retry",
        ]

    def test_negations_are_kept(self) -> None:
        assert "not checked" in extract_terms("It was not checked.")

    def test_repetitions_have_decreasing_weight(self) -> None:
        weights = [weigh_terms("stall\n" * n)["stall"] for n in (1, 2, 3)]
        assert weights[0] == 1.0
        assert weights[1] - weights[0] > weights[2] - weights[1] > 0

    @pytest.mark.parametrize("text", ["w" * 10**6, "word " * 10**6, "\ufdfa" * 10**6, "a\n" * 10**6])
    def test_huge_text_is_read_up_to_a_limit(self, text: str) -> None:
        found = extract_terms(text)
        assert sum(map(len, found)) < 4 * MAX_CHARS
        assert max(map(len, found), default=0) <= 2 * 40 + 1


class TestHashing:
    def test_hashing_is_equal_in_another_process(self) -> None:
        code = (
            "from agentguard.schemata.vectors.base import HashingVectoriser; import sys;"
            f"sys.stdout.buffer.write(HashingVectoriser().encode({TEXTS!r}).tobytes())"
        )
        for seed in ("1", "2"):
            done = subprocess.run(
                [sys.executable, "-c", code], capture_output=True, check=True, env={"PYTHONHASHSEED": seed}
            )
            assert done.stdout == HashingVectoriser().encode(TEXTS).tobytes()

    def test_hashing_loads_no_scikit_learn(self) -> None:
        code = (
            "from agentguard.schemata.index import SchemaIndex; SchemaIndex().search(['plan'], 1);"
            "from agentguard.schemata.vectors.base import HashingVectoriser;"
            "HashingVectoriser().encode(['plan']); import sys; print('sklearn' in sys.modules)"
        )
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, text=True)
        assert done.stdout.strip() == "False"

    @pytest.mark.parametrize("dims", [64, 256, 4096])
    def test_cosines_approximate_those_of_the_counts(self, dims: int) -> None:
        """The error is that of a random projection: about ``1 / sqrt(dims)``."""
        drawn = np.random.default_rng(0)
        texts = [" ".join(f"w{i}" for i in drawn.integers(0, 60, size=20)) for _ in range(60)]
        counts = [weigh_terms(text) for text in texts]
        true = np.array([[_cosine(a, b) for b in counts] for a in counts])
        rows = HashingVectoriser(dims=dims).encode(texts)
        off = (rows @ rows.T - true)[np.triu_indices(len(texts), 1)]
        assert np.sqrt((off**2).mean()) < 1.2 / np.sqrt(dims)
        assert abs(off.mean()) < 0.3 / np.sqrt(dims)

    def test_positions_and_signs_are_uniform(self) -> None:
        rows = project_terms([{f"w{i}": 1.0} for i in range(2000)], 256)
        assert np.all((rows != 0).sum(axis=1) == 16)
        assert np.all((rows != 0).sum(axis=0) > 80)
        assert abs(np.sign(rows).sum()) < 5 * np.sqrt(2000 * 16)


def _cosine(one: Mapping[str, float], other: Mapping[str, float]) -> float:
    dot = sum(w * other.get(t, 0.0) for t, w in one.items())
    lengths = [np.sqrt(sum(w * w for w in held.values())) for held in (one, other)]
    return float(dot / (lengths[0] * lengths[1]))


class TestTfidfSvd:
    def test_unfitted_vectoriser_knows_no_word(self) -> None:
        assert not TfidfSvd().encode(TEXTS).any()

    @pytest.mark.parametrize("texts", [[], ["", "?"], ["plan"], ["plan", "plan"], ["plan", "call"]])
    def test_few_texts_suffice(self, texts: list[str]) -> None:
        made = TfidfSvd().fit(texts)
        known = [text for text in texts if extract_terms(text)]
        assert np.allclose(np.linalg.norm(made.encode(known), axis=1), 1, atol=1e-6)
        assert not made.encode(["unheard words"]).any()

    def test_full_rank_cosines_equal_those_of_tfidf(self) -> None:
        from sklearn.feature_extraction.text import TfidfVectorizer

        plain = TfidfVectorizer(analyzer=extract_terms, sublinear_tf=True).fit_transform(TEXTS).toarray()
        rows = TfidfSvd().fit(TEXTS).encode(TEXTS)
        assert np.allclose(rows @ rows.T, plain @ plain.T, atol=1e-5)

    def test_number_of_dimensions_is_bounded(self) -> None:
        assert TfidfSvd(dims=3).fit(TEXTS).encode(TEXTS).shape == (len(TEXTS), 3)

    def test_other_texts_give_another_version(self) -> None:
        assert len({TfidfSvd().version, ready("tfidf_svd").version, TfidfSvd().fit(TEXTS[:3]).version}) == 3

    def test_seed_out_of_range_is_rejected(self) -> None:
        with pytest.raises(ConfigError, match="seed"):
            TfidfSvd(seed=-1)


class TestFile:
    def stored(self, folder: Path) -> tuple[Path, Path]:
        vectoriser_files.save_vectoriser(ready("tfidf_svd"), folder)
        return folder / vectoriser_files.CARD_FILE, folder / vectoriser_files.ARRAYS_FILE

    def test_missing_file_is_rejected(self, tmp_path: Path) -> None:
        with pytest.raises(ModelFileError, match=r"vectoriser\.json cannot be read: No such file"):
            vectoriser_files.load_vectoriser(tmp_path)

    def test_changed_arrays_are_rejected(self, tmp_path: Path) -> None:
        _, arrays = self.stored(tmp_path)
        data = bytearray(arrays.read_bytes())
        data[len(data) // 2] ^= 1
        arrays.write_bytes(data)
        with pytest.raises(ModelFileError, match=r"vectoriser\.npz does not match vectoriser\.json"):
            vectoriser_files.load_vectoriser(tmp_path)

    def test_missing_arrays_are_rejected(self, tmp_path: Path) -> None:
        _, arrays = self.stored(tmp_path)
        arrays.unlink()
        with pytest.raises(ModelFileError, match=r"vectoriser\.npz cannot be read"):
            vectoriser_files.load_vectoriser(tmp_path)

    @pytest.mark.parametrize(
        ("text", "message"), [(b"{", "not JSON"), (b"[]", "format 1"), (b'{"format": 2}', "format 1")]
    )
    def test_invalid_card_is_rejected(self, tmp_path: Path, text: bytes, message: str) -> None:
        card, _ = self.stored(tmp_path)
        card.write_bytes(text)
        with pytest.raises(ModelFileError, match=message):
            vectoriser_files.load_vectoriser(tmp_path)

    @pytest.mark.parametrize(
        ("change", "error", "message"),
        [
            ({"version": "tfidf_svd-0"}, ModelFileError, "another version"),
            ({"name": "no_such"}, UnknownPlugin, "no_such"),
            ({"name": 3}, ModelFileError, "does not name a vectoriser"),
            ({"options": {"size": 3}}, ConfigError, "no option size"),
        ],
    )
    def test_inconsistent_card_is_rejected(
        self, tmp_path: Path, change: dict[str, Any], error: type[Exception], message: str
    ) -> None:
        card, _ = self.stored(tmp_path)
        card.write_bytes(orjson.dumps({**orjson.loads(card.read_bytes()), **change}))
        with pytest.raises(error, match=message):
            vectoriser_files.load_vectoriser(tmp_path)

    def sealed(self, folder: Path, **arrays: Any) -> None:
        """Write arrays with a card that matches them."""
        import hashlib

        card, file = self.stored(folder)
        with file.open("wb") as out:
            np.savez(out, **arrays)
        said = {**orjson.loads(card.read_bytes()), "sha256": hashlib.sha256(file.read_bytes()).hexdigest()}
        card.write_bytes(orjson.dumps(said))

    def test_pickles_are_not_read(self, tmp_path: Path) -> None:
        self.sealed(tmp_path, terms=np.array([{"a": 1}], dtype=object), loadings=np.zeros((1, 1)))
        with pytest.raises(ModelFileError, match="cannot be read: ValueError"):
            vectoriser_files.load_vectoriser(tmp_path)

    @pytest.mark.parametrize(
        "arrays",
        [
            {},
            {"terms": np.frombuffer(b"plan", np.uint8)},
            {"terms": np.frombuffer(b"\xff", np.uint8), "loadings": np.zeros((1, 1), np.float32)},
            {"terms": np.frombuffer(b"plan", np.uint8), "loadings": np.zeros((2, 1), np.float32)},
            {"terms": np.frombuffer(b"plan", np.uint8), "loadings": np.zeros(1, np.float32)},
            {"terms": np.frombuffer(b"plan", np.uint8), "loadings": np.zeros((1, 1))},
            {"terms": np.frombuffer(b"plan\nplan", np.uint8), "loadings": np.zeros((2, 1), np.float32)},
        ],
    )
    def test_inconsistent_arrays_are_rejected(self, tmp_path: Path, arrays: dict[str, Any]) -> None:
        self.sealed(tmp_path, **arrays)
        with pytest.raises(ModelFileError, match="terms"):
            vectoriser_files.load_vectoriser(tmp_path)

    def test_unstorable_third_party_vectoriser_is_rejected(self, tmp_path: Path) -> None:
        class Bare:
            name, version = "bare", "1"

            def fit(self, texts: Sequence[str]) -> Bare:
                return self

            def encode(self, texts: Sequence[str]) -> Any:
                return np.ones((len(texts), 1), np.float32)

        with pytest.raises(ConfigError, match="'bare' cannot be stored"):
            vectoriser_files.save_vectoriser(Bare(), tmp_path)
