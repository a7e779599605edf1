"""The built-in strategies, one a file; a ladder in the policy names them."""

BUILTIN = {
    "nudge": "agentguard.recover.strategies.nudge:Nudge",
    "roll_forward": "agentguard.recover.strategies.roll_forward:RollForward",
    "reprompt": "agentguard.recover.strategies.reprompt:Reprompt",
    "recovery_block": "agentguard.recover.strategies.recovery_block:RecoveryBlock",
    "vote": "agentguard.recover.strategies.vote:Vote",
    "n_version": "agentguard.recover.strategies.n_version:NVersion",
    "rollback": "agentguard.recover.strategies.rollback:Rollback",
    "compensate": "agentguard.recover.strategies.compensate:CompensateEffects",
    "drop_tool": "agentguard.recover.strategies.drop_tool:DropTool",
    "alternate": "agentguard.recover.strategies.alternate:Alternate",
    "reexecute": "agentguard.recover.strategies.reexecute:Reexecute",
    "hand_over": "agentguard.recover.strategies.hand_over:HandOverToPerson",
    "stop": "agentguard.recover.strategies.stop:StopRun",
}
