"""The built-in strategies, one a file; a ladder in the policy names them."""

BUILTIN = {
    "nudge": "agentguard.recover.strategies.nudge:Nudge",
    "reprompt": "agentguard.recover.strategies.reprompt:Reprompt",
    "rollback": "agentguard.recover.strategies.rollback:Rollback",
    "compensate": "agentguard.recover.strategies.compensate:CompensateEffects",
    "drop_tool": "agentguard.recover.strategies.drop_tool:DropTool",
    "alternate": "agentguard.recover.strategies.alternate:Alternate",
    "reexecute": "agentguard.recover.strategies.reexecute:Reexecute",
    "hand_over": "agentguard.recover.strategies.hand_over:HandOverToPerson",
    "stop": "agentguard.recover.strategies.stop:StopRun",
}
