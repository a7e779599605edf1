"""The load balancer against a second implementation of its rules, for any mixture of states."""

from hypothesis import given, settings, strategies as st

from agentguard.backends.base import BackendRequest
from agentguard.backends.load_balancer import AttemptContext, NoReplica
from agentguard.errors import CircuitOpen, Overloaded, ResilienceError
from tests.unit.backends.pool_fixtures import Scene, ok

NAMES = "abcdef"
REPLICA = st.fixed_dictionaries(
    {
        "priority": st.integers(0, 2),
        "serves": st.booleans() | st.just(True),
        "resumable": st.booleans(),
        "draining": st.sampled_from([False, False, False, True]),
        "down": st.sampled_from([False, False, True]),
        "corrupt": st.sampled_from([False, False, False, True]),
        "hinted": st.sampled_from([False, False, True]),
        "rests": st.sampled_from([False, False, True]),
        "full": st.sampled_from([False, False, True]),
        "tried": st.booleans(),
    }
)


def tiers_of(sound):
    """Return the tiers with at least half usable replicas, and resting replicas; if none, all tiers."""
    awake, resting = [], []
    for tier in (0, 1, 2):
        members = [one for one in sound if one["priority"] == tier]
        usable = [one for one in members if not one["down"] and not one["hinted"]]
        if usable and 2 * len(usable) >= len(members):
            awake.append([one for one in usable if not one["rests"]])
            resting += [one for one in usable if one["rests"]]
    if not awake:
        awake = [[one for one in sound if one["priority"] == tier] for tier in (0, 1, 2)]
    elif not any(awake):
        awake = [resting]
    return awake, resting


def expected(kinds, *, continues, hedge):
    """Return the replicas that may be chosen according to docs/backends.md; or the error."""
    serving = [one for one in kinds if one["serves"] and not one["draining"]]
    if not serving:
        return NoReplica
    sound = [one for one in serving if not one["corrupt"]]
    if not sound:
        return CircuitOpen
    awake, resting = tiers_of(sound)
    rounds = [[[one for one in tier if not one["tried"]] for tier in awake]]
    if not hedge:
        rounds.append([*awake, resting])
    for tiers in rounds:
        for tier in tiers:
            able = [one for one in tier if not one["full"] and (one["resumable"] or not continues)]
            if able:
                return {one["name"] for one in able}
    return Overloaded


@settings(max_examples=300, deadline=None)
@given(
    st.lists(REPLICA, min_size=1, max_size=6),
    st.booleans(),
    st.booleans(),
    st.sampled_from(
        ["round_robin", "least_request", "weighted", "priority", "session_affinity", "prefix_affinity"]
    ),
)
def test_choice_matches_reference_rules(kinds, continues, hedge, policy):
    kinds = [{**kind, "name": name} for name, kind in zip(NAMES, kinds, strict=False)]
    per = {
        kind["name"]: {
            "priority": kind["priority"],
            "models": ["m"] if kind["serves"] else ["another"],
            "resumable": kind["resumable"],
            "max_concurrent": 1,
        }
        for kind in kinds
    }
    scene = Scene(per=per, load_balancing=policy, **{kind["name"]: [ok()] for kind in kinds})
    choice = scene.pool._load_balancer
    request = BackendRequest(target="/", model="m", session_id="s", prefix_digest=b"p")
    for kind in kinds:
        replica = choice.replicas[kind["name"]]
        replica.is_draining, replica.is_corrupt = kind["draining"], kind["corrupt"]
        replica.failed_checks = {"heartbeat"} if kind["down"] else set()
        replica.hinted_until = 10.0 if kind["hinted"] else 0.0
        replica.cooldown_until = 10.0 if kind["rests"] else 0.0
        replica.inflight = int(kind["full"])
        if kind["tried"]:
            request.tried_replicas.append(kind["name"])
    choice.invalidate()
    wanted = expected(kinds, continues=continues, hedge=hedge)
    try:
        found = choice._select_replica(
            AttemptContext(request, is_resumption=continues), (), None, is_hedge=hedge
        ).name
    except ResilienceError as error:
        assert type(error) is wanted
    else:
        assert isinstance(wanted, set), f"{found} was chosen where {wanted.__name__} is to be raised"
        assert found in wanted


def test_cooldown_ends_by_time_alone():
    scene = Scene(a=[ok()], b=[ok()], load_balancing="priority")
    choice = scene.pool._load_balancer

    def now():
        return choice._select_replica(
            AttemptContext(BackendRequest(target="/")), (), None, is_hedge=False
        ).name

    choice.replicas["a"].cooldown_until = 5.0
    choice.invalidate()
    assert now() == "b"
    scene.clock.advance(4.9)
    assert now() == "b"
    scene.clock.advance(0.2)
    assert now() == "a"


def test_policy_is_not_asked_about_a_tier_of_one_replica():
    scene = Scene(a=[ok()], b=[ok()], per={"b": {"priority": 1}})

    class Unexpected:
        def choose(self, _request, _replicas):
            raise AssertionError("there is no choice")

    async def main():
        scene.pool._load_balancer.policy = Unexpected()
        assert (await scene.ask()).replica == "a"

    scene.run(main)
