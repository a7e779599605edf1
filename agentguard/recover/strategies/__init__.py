"""The built-in strategies, one a file; a ladder in the policy names them."""

BUILTIN_STRATEGIES = {
    "nudge": "agentguard.recover.strategies.hint:HintStrategy",
    "roll_forward": "agentguard.recover.strategies.roll_forward:RollForwardStrategy",
    "reprompt": "agentguard.recover.strategies.rollback:RepromptStrategy",
    "recovery_block": "agentguard.recover.strategies.recovery_block:RecoveryBlockStrategy",
    "vote": "agentguard.recover.strategies.vote:VoteStrategy",
    "n_version": "agentguard.recover.strategies.vote:NVersionStrategy",
    "rollback": "agentguard.recover.strategies.rollback:RollbackStrategy",
    "compensate": "agentguard.recover.strategies.rollback:CompensateStrategy",
    "drop_tool": "agentguard.recover.strategies.disable_tool:DisableToolStrategy",
    "alternate": "agentguard.recover.strategies.substitute:SubstituteStrategy",
    "reexecute": "agentguard.recover.strategies.restart:RestartStrategy",
    "hand_over": "agentguard.recover.strategies.escalate:EscalateStrategy",
    "stop": "agentguard.recover.strategies.stop:StopStrategy",
}
