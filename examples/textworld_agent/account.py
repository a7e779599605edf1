"""The agent's messages about its task as a whole: the plan, the status and the final answer."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agentguard_lab.textworld.planner import GoalPlanner, Task

from examples.textworld_agent.voice import join_items

if TYPE_CHECKING:
    from examples.textworld_agent.agent import Agent


def plan(agent: Agent) -> str:
    """Return the task in the agent's own words; empty until the agent knows where it starts."""
    if agent.task.cook:
        return "" if "cookbook" in agent.memory.things else agent.voice.say("plan_cook")
    rule = "".join(f", keeping the {name} closed" for name in agent.task.close_after)
    return agent.voice.say("plan", todo=join_items(_puts(agent)) + rule)


def status(agent: Agent) -> str:
    """Return the inventory and the remaining goals, according to the agent's beliefs."""
    memory = agent.memory
    have = "I carry " + (join_items(["the " + name for name in memory.carried]) or "nothing")
    if not agent.task.cook:
        left = _puts(agent)
    elif not memory.ingredients:
        left = ["read the cookbook" if "cookbook" in memory.things else "find the cookbook"]
    else:
        left = [f"get the {item}" for item in memory.ingredients if item not in memory.carried]
        left += [
            f"{verb} the {item}"
            for verb, item in memory.directions
            if (verb, item) not in memory.done and verb + item not in memory.given_up
        ]
        left = left[:3] or ["finish the meal"]
    return agent.voice.say("status", have=have, todo=join_items(left))


def closing(agent: Agent) -> str:
    """Return the last message of a game that has not ended by itself."""
    if GoalPlanner(agent.task).is_complete(agent.memory):
        return agent.voice.say("claim", done=done(agent.task))
    return agent.voice.say("stuck", left=_left(agent))


def done(task: Task) -> str:
    """Return a description of the completed task."""
    if task.cook:
        return "The recipe has been followed and the meal is eaten."
    where = {"put_on": "on", "insert": "in"}
    return _sentence([f"the {goal.item} is {where[goal.how]} the {goal.holder}" for goal in task.deliveries])


def _left(agent: Agent) -> str:
    if agent.task.cook:
        return "The meal could not be put together."
    memory = agent.memory
    left = [goal for goal in agent.task.deliveries if ("deliver", goal.item) not in memory.done]
    parts = [f"the {goal.item} has not reached the {goal.holder}" for goal in left]
    known = {*memory.carried, *memory.things}
    parts += [f"I never found the {key}" for key in memory.keys.values() if key not in known]
    return _sentence(parts)


def _puts(agent: Agent) -> list[str]:
    left = [goal for goal in agent.task.deliveries if ("deliver", goal.item) not in agent.memory.done]
    where = {"put_on": "on", "insert": "into"}
    return [f"put the {goal.item} {where[goal.how]} the {goal.holder}" for goal in left]


def _sentence(parts: list[str]) -> str:
    text = join_items(parts)
    return text[0].upper() + text[1:] + "."
