from __future__ import annotations

from hypothesis import given, strategies as st

from agentguard._bounded_map import BoundedMap

OPERATIONS = st.lists(
    st.tuples(st.sampled_from(["set", "use", "delete", "popitem"]), st.integers(0, 6)), max_size=60
)


@given(max_entries=st.integers(1, 4), operations=OPERATIONS)
def test_bounded_map_any_operations_equals_a_list_in_order_of_use(
    max_entries: int, operations: list[tuple[str, int]]
) -> None:
    evicted: list[int] = []
    entries = BoundedMap[int, int](max_entries, on_evict=evicted.append)
    model: list[tuple[int, int]] = []  # (key, value), oldest first
    model_evicted: list[int] = []
    for value, (operation, key) in enumerate(operations):
        found = next((pair for pair in model if pair[0] == key), None)
        if operation == "set":
            entries[key] = value
            model = [*(pair for pair in model if pair[0] != key), (key, value)]
            if len(model) > max_entries:
                model_evicted.append(model.pop(0)[1])
        elif operation == "use":
            assert entries.use(key) == (None if found is None else found[1])
            if found is not None:
                model = [*(pair for pair in model if pair != found), found]
        elif operation == "delete":
            assert entries.pop(key, None) == (None if found is None else found[1])
            model = [pair for pair in model if pair != found]
        elif model:
            assert entries.popitem() == model.pop(0)
        assert list(entries.items()) == model
        assert len(entries) == len(model)
        assert (key in entries) == any(pair[0] == key for pair in model)
    assert evicted == model_evicted
