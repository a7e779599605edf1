"""Benchmark of recovery: success under five procedures with the same budget, in generated text games.

Run: .venv/bin/python benchmarks/recovery.py --games 300 [--seed 0] [--json] [--journal played.jsonl]
     .venv/bin/python benchmarks/recovery.py --games 20 --agent chat --base-url URL --model NAME

The games are TextWorld games, generated from the seed in three difficulties. The agent is scripted and has
memory, reflection, planning and action parts. In each turn, each error kind of AgentErrorTaxonomy occurs at
its
rate. The reaction to a correction is an assumption: the agent follows each one, half of them, or none. After
a
correction that it follows, the agent makes no error for three turns and checks its beliefs.

The unit of the budget is one attempt: the turns that the game allows, each a call of the model and a step of
the environment; see `recovery_arms`. ``success`` is at the cost of two attempts. ``--journal`` stores the
results in a file, and the same command continues an interrupted benchmark.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agentguard_lab.textworld.game_cache import GameLibrary
from agentguard_lab.textworld.scenarios import Difficulty, Scenario, build_scenario

sys.path.insert(0, str(Path(__file__).resolve().parent))

from recovery_arms import ALIKE, ARMS, UNTOLD, Attempted, Budgeted, Playable, make_guard
from recovery_journal import Journal, Key
from recovery_report import ATTEMPTS, BUDGET, Outcome, report, show
from recovery_scripted import ACCEPTANCE_RATES, Scripted

MIDDLE = "half"
RATE = 0.15
"""Errors per turn, over all kinds: at this rate an unguarded agent fails about half of the games."""

GUARD = make_guard()


@dataclass
class Game:
    """One game under one assumption; each procedure plays it at most once."""

    args: argparse.Namespace
    given: Scenario
    number: int
    assumption: str
    journal: Journal
    begin: Callable[[], Playable]
    _first: Budgeted | None = None

    def key(self, arm: str) -> Key:
        args = self.args
        agent = f"{args.model} {args.mode}" if args.agent == "chat" else args.rate
        what = f"{args.agent} {agent} seed {args.seed} of {self.most}"
        told = "any" if arm in UNTOLD else self.assumption
        return (what, told, self.number, arm, self.given.id)

    @property
    def most(self) -> int:
        attempts = BUDGET if self.args.agent == "chat" else max(ATTEMPTS)
        return int(attempts * self.given.max_turns)

    def played(self, arm: str) -> Attempted:
        known = self.journal.get(self.key(arm))
        if known is None:
            play = self._shared() if arm in ALIKE else Budgeted(self.begin(), self.most)
            ARMS[arm](play, GUARD)
            known = play.finish()
            self.journal.put(self.key(arm), known)
        return known

    def _shared(self) -> Budgeted:
        """Return a copy of the first attempt, which all procedures share that act only after its end."""
        if self._first is None:
            self._first = Budgeted(self.begin(), self.most)
            ARMS["none"](self._first, GUARD)
        return self._first.copy()


def scripted(args: argparse.Namespace, rates: dict[str, float]) -> dict[str, list[Outcome]]:
    """Play every game under every procedure and assumption; a game is opened once for all of them."""
    found: dict[str, list[Outcome]] = {name: [] for name in rates}
    journal = Journal(args.journal)
    with GameLibrary(args.games_folder, max_open=2) as games:
        for number, given in _games(args, games):

            def begin(given: Scenario = given, number: int = number) -> Scripted:
                return Scripted(given, games, seed=number, acceptance_rate=0.0, rate=args.rate)

            first: Budgeted | None = None
            for name, share in rates.items():
                game = Game(
                    args,
                    given,
                    number,
                    name,
                    journal,
                    lambda share=share: begin().with_acceptance_rate(share),
                )  # type: ignore[misc]
                if first is not None and isinstance(first.run, Scripted):
                    game._first = Budgeted(
                        first.run.with_acceptance_rate(share), first.most, first.copy().result
                    )
                results = {arm: game.played(arm) for arm in args.arms}
                first = game._first or first
                found[name].append(Outcome(given.max_turns, given.id, str(given.difficulty), results))
    return found


def chat(args: argparse.Namespace) -> dict[str, list[Outcome]]:
    """Play every game under every procedure, with the model of an endpoint as the agent."""
    from openai import OpenAIError
    from recovery_chat import ChatAgent, client, first_model

    endpoint, journal = client(args.base_url, args.api_key), Journal(args.journal)
    try:
        args.model = args.model or first_model(endpoint)
        return {args.model: _chat_games(args, endpoint, journal, ChatAgent)}
    except (OpenAIError, StopIteration) as error:
        kept = (
            "the same command goes on from here" if args.journal else "give --journal to keep what was played"
        )
        raise SystemExit(f"{args.base_url}: {type(error).__name__}: {error}; {kept}") from None


def _chat_games(args: argparse.Namespace, endpoint: Any, journal: Journal, agent: Any) -> list[Outcome]:
    found: list[Outcome] = []
    with GameLibrary(args.games_folder, max_open=2, admissible=args.mode == "choice") as games:
        for number, given in _games(args, games):

            def begin(given: Scenario = given, number: int = number) -> Playable:
                return agent(given, games, endpoint, model=args.model, mode=args.mode, seed=number)  # type: ignore[no-any-return]

            game = Game(args, given, number, args.model, journal, begin)
            results = {arm: game.played(arm) for arm in args.arms}
            found.append(Outcome(given.max_turns, given.id, str(given.difficulty), results))
    return found


def _games(args: argparse.Namespace, games: GameLibrary) -> Iterator[tuple[int, Scenario]]:
    levels = args.difficulty or list(Difficulty)
    for number in range(args.games):
        yield number, build_scenario(args.seed * 1_000_000 + number, levels[number % len(levels)])
        games.trim()
        if sys.stderr.isatty() or args.agent == "chat" or (number + 1) % 20 == 0:
            took = time.perf_counter() - args.began
            print(f"{number + 1} of {args.games} games, {took:.0f} s", file=sys.stderr, flush=True)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--games", type=int, default=300)
    add("--seed", type=int, default=0)
    add("--rate", type=float, default=RATE, help="errors a turn of the scripted agent")
    add(
        "--acceptance", choices=[*ACCEPTANCE_RATES, "all"], default="all", help="one assumption, or all three"
    )
    add("--difficulty", action="append", choices=[*Difficulty], help="of the games; all three if absent")
    add("--arms", default=",".join(ARMS), help="procedures to play, with commas between them")
    add("--agent", choices=["scripted", "chat"], default="scripted")
    add("--base-url", help="of an OpenAI-compatible endpoint, for --agent chat")
    add("--model", default="", help="name of the model there; the first that it lists if absent")
    add("--api-key", default="none")
    add("--mode", choices=["tools", "choice", "text"], default="tools", help="how a chat model acts")
    add("--games-folder", type=Path, help="keeps compiled games from one use to the next")
    add("--journal", type=Path, help="keeps what was played, so that the command can be interrupted")
    add("--json", action="store_true")
    args = parser.parse_args()
    args.arms = args.arms.split(",")
    if args.games < 1:
        parser.error("--games must be at least 1")
    if set(args.arms) - set(ARMS):
        parser.error(f"--arms: there are {', '.join(ARMS)}")
    if args.agent == "chat" and not args.base_url:
        parser.error("--agent chat needs --base-url")
    args.began = time.perf_counter()
    return args


def main() -> None:
    args = arguments()
    rates = (
        ACCEPTANCE_RATES if args.acceptance == "all" else {args.acceptance: ACCEPTANCE_RATES[args.acceptance]}
    )
    try:
        played = chat(args) if args.agent == "chat" else scripted(args, rates)
    except KeyboardInterrupt:
        kept = "the same command goes on from here" if args.journal else "nothing is kept without --journal"
        print(f"\ninterrupted; {kept}", file=sys.stderr)
        raise SystemExit(130) from None
    if set(args.arms) != set(ARMS):
        print(f"played {', '.join(args.arms)}; a report needs all procedures", file=sys.stderr)
        return
    found: dict[str, dict[str, Any]] = {name: report(outcomes) for name, outcomes in played.items()}
    headline = found.get(MIDDLE) or next(iter(found.values()))
    if args.json:
        print(json.dumps({**headline, "budget_attempts": BUDGET, "assumptions": found}))
        return
    for name, figures in found.items():
        show(f"corrections heeded: {name}" if args.agent == "scripted" else name, figures)


if __name__ == "__main__":
    main()
