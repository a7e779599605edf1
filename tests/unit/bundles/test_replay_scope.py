"""Each mode of a replay takes the calls from the source that it names."""

from __future__ import annotations

import pytest

from agentguard import Guard
from agentguard.bundles import record_run, replay_bundle
from agentguard.errors import ConfigError, ReplayMismatch

guard = Guard()


class Agent:
    """Agent that asks for seats near two places; the model and the tool count their live calls."""

    def __init__(self, places=("door", "window"), last="Done.", result="free", task="Find seats."):
        self.places, self.last, self.result, self.task = places, last, result, task
        self.model_calls = self.tool_calls = 0

    def __call__(self, binding):
        def call_llm(messages, tools):
            self.model_calls += 1
            done = sum(one["role"] == "tool" for one in messages)
            if done == len(self.places):
                return self.last
            function = {"name": "find", "arguments": f'{{"where": "{self.places[done]}"}}'}
            call = {"id": str(done), "type": "function", "function": function}
            return {"role": "assistant", "tool_calls": [call]}

        def find(where: str) -> str:
            """Find a seat."""
            self.tool_calls += 1
            return self.result

        model, tools = binding.bind_model(call_llm), binding.bind_tools([find])
        with guard.run(self.task, tools=tools, id=binding.run_id) as run:
            while not run.done:
                run.tools(run.model(model))
        return run.trajectory


@pytest.fixture
def bundle(tmp_path):
    guard.tool(effect="read", name="find")(len)
    return record_run(Agent(), tmp_path / "a.agb", guard=guard)


def test_replay_decisions_calls_the_tools_and_detects_a_drift(bundle):
    agent = Agent()
    assert replay_bundle(bundle, agent, mode="decisions").is_equal
    assert (agent.model_calls, agent.tool_calls) == (0, 2)
    with pytest.raises(ReplayMismatch, match=r"messages\.2\.content"):
        replay_bundle(bundle, Agent(result="taken"), mode="decisions")


def test_replay_decisions_tool_with_effects_is_refused(tmp_path):
    guard.tool(effect="write", name="find")(len)
    bundle = record_run(Agent(), tmp_path / "a.agb", guard=guard)
    with pytest.raises(ConfigError, match="not declared as read: find"):
        replay_bundle(bundle, Agent(), mode="decisions")


def test_replay_tools_calls_the_model_only(bundle):
    agent = Agent(last="Two seats are free.")
    result = replay_bundle(bundle, agent, mode="tools")
    assert (agent.model_calls, agent.tool_calls) == (3, 0)
    assert (result.divergence.step, result.divergence.field) == (3, "content")
    with pytest.raises(
        ReplayMismatch, match="find: the request differs from the nearest recording 0 in where"
    ):
        replay_bundle(bundle, Agent(places=("desk",)), mode="tools")


def test_replay_from_call_calls_the_model_and_reads_after_the_tape(bundle):
    agent = Agent(places=("door", "desk"))
    result = replay_bundle(bundle, agent, mode="from-call", from_call=1)
    assert (agent.model_calls, agent.tool_calls) == (2, 1)
    assert result.trajectory.steps[2].tool_calls[0].arguments == {"where": "desk"}


def test_replay_from_call_with_edit_replaces_the_answer(bundle):
    agent = Agent()
    result = replay_bundle(bundle, agent, mode="from-call", from_call=1, edit="I stop here.")
    assert (agent.model_calls, agent.tool_calls) == (0, 0)
    assert result.trajectory.steps[-1].content == "I stop here."
    assert result.divergence.step == 2


def test_replay_scripted_gives_the_answers_in_order_to_other_requests(bundle):
    agent = Agent(task="Find two seats.")
    result = replay_bundle(bundle, agent, mode="scripted")
    assert (agent.model_calls, agent.tool_calls, result.unused_calls) == (0, 0, 0)
    assert result.divergence.step == 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"mode": "live"}, "the modes are sealed"),
        ({"mode": "from-call"}, "needs the number of a model call"),
        ({"from_call": 1}, "needs the number of a model call"),
        ({"edit": "x"}, "an edit needs the mode from-call"),
        ({"mode": "from-call", "from_call": 3}, "there is no model call 3; the bundle has 3"),
    ],
)
def test_replay_wrong_options_are_refused(bundle, options, message):
    with pytest.raises(ConfigError, match=message):
        replay_bundle(bundle, Agent(), **options)
