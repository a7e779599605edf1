import pytest

from agentguard import errors


def test_message_names_file_record_field_and_remedy():
    error = errors.FormatError("is not a list", file="run.json", record=3, field="a.b", hint="make it one")
    assert str(error) == "run.json, record 3, field a.b: is not a list (make it one)"


def test_located_sets_only_unknown_fields():
    error = errors.FormatError("is not a list", record=3).with_location(file="run.json", record=7)
    assert isinstance(error, errors.FormatError)
    assert (error.file, error.record) == ("run.json", 3)


def test_every_error_has_a_unique_code_and_one_root():
    kinds = [c for c in vars(errors).values() if isinstance(c, type) and issubclass(c, Exception)]
    assert all(issubclass(kind, errors.AgentGuardError) for kind in kinds)
    codes = [kind.code for kind in kinds]
    assert len(set(codes)) == len(codes)


def test_docstring_tree_matches_the_classes():
    for kind in vars(errors).values():
        if isinstance(kind, type) and issubclass(kind, Exception):
            assert kind.__name__ in (errors.__doc__ or "")


def test_missing_extra_explains_installation():
    with pytest.raises(errors.MissingExtra, match=r"pip install 'agentguard\[textworld\]'"):
        raise errors.MissingExtra("textworld", "textworld")
