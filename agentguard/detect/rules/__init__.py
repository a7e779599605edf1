"""The built-in detectors; one file a group."""

from __future__ import annotations

BUILTIN: dict[str, str] = {
    "budget": "agentguard.detect.rules.limits:Budget",
    "capability": "agentguard.detect.rules.permissions:Capability",
    "contradicted_claim": "agentguard.detect.rules.claims:ContradictedClaim",
    "control_flow": "agentguard.detect.rules.permissions:ControlFlow",
    "empty_output": "agentguard.detect.rules.output:EmptyOutput",
    "exact_loop": "agentguard.detect.rules.loops:ExactLoop",
    "goal_drift": "agentguard.detect.rules.progress:GoalDrift",
    "missing_verification": "agentguard.detect.rules.claims:MissingVerification",
    "near_loop": "agentguard.detect.rules.loops:NearLoop",
    "no_progress": "agentguard.detect.rules.progress:NoProgress",
    "oscillation": "agentguard.detect.rules.loops:Oscillation",
    "out_of_range": "agentguard.detect.rules.calls:OutOfRange",
    "policy": "agentguard.detect.rules.policy:Policy",
    "premature_end": "agentguard.detect.rules.output:PrematureEnd",
    "refusal": "agentguard.detect.rules.output:Refusal",
    "repeated_plan": "agentguard.detect.rules.progress:RepeatedPlan",
    "role_confusion": "agentguard.detect.rules.roles:RoleConfusion",
    "schema_violation": "agentguard.detect.rules.calls:SchemaViolation",
    "tool_error": "agentguard.detect.rules.errors:ToolError",
    "tool_error_ignored": "agentguard.detect.rules.errors:ToolErrorIgnored",
    "truncated_output": "agentguard.detect.rules.output:TruncatedOutput",
    "unknown_origin": "agentguard.detect.rules.origin:UnknownOrigin",
    "unknown_tool": "agentguard.detect.rules.calls:UnknownTool",
    "unparsable_action": "agentguard.detect.rules.calls:UnparsableAction",
    "unverified_success": "agentguard.detect.rules.claims:UnverifiedSuccess",
    "watchdog": "agentguard.detect.rules.limits:Watchdog",
}
