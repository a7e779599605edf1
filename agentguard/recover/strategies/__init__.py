"""Built-in strategies by the names that escalation policies use."""

BUILTIN_STRATEGIES = {
    "hint": "agentguard.recover.strategies.hint:HintStrategy",
    "roll_forward": "agentguard.recover.strategies.roll_forward:RollForwardStrategy",
    "reprompt": "agentguard.recover.strategies.rollback:RepromptStrategy",
    "recovery_block": "agentguard.recover.strategies.recovery_block:RecoveryBlockStrategy",
    "vote": "agentguard.recover.strategies.vote:VoteStrategy",
    "n_version": "agentguard.recover.strategies.vote:NVersionStrategy",
    "rollback": "agentguard.recover.strategies.rollback:RollbackStrategy",
    "compensate": "agentguard.recover.strategies.rollback:CompensateStrategy",
    "disable_tool": "agentguard.recover.strategies.disable_tool:DisableToolStrategy",
    "restart": "agentguard.recover.strategies.restart:RestartStrategy",
    "escalate": "agentguard.recover.strategies.escalate:EscalateStrategy",
    "stop": "agentguard.recover.strategies.stop:StopStrategy",
}

STRATEGY_ALIASES = {
    "nudge": "hint",
    "drop_tool": "disable_tool",
    "reexecute": "restart",
    "hand_over": "escalate",
}
"""Former names of strategies and tiers, in policies and in stored recoveries."""
