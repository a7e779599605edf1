"""Built-in detectors; each module contains a group of related detectors."""

from __future__ import annotations

BUILTIN_DETECTORS: dict[str, str] = {
    "budget": "agentguard.detect.rules.budgets:BudgetDetector",
    "capability": "agentguard.detect.rules.permissions:ToolPermission",
    "contradicted_claim": "agentguard.detect.rules.unsupported_claims:ContradictedClaim",
    "control_flow": "agentguard.detect.rules.permissions:ControlFlow",
    "empty_output": "agentguard.detect.rules.malformed_output:EmptyOutput",
    "exact_loop": "agentguard.detect.rules.loops:ExactLoop",
    "goal_drift": "agentguard.detect.rules.progress:GoalDrift",
    "missing_verification": "agentguard.detect.rules.unsupported_claims:MissingVerification",
    "near_loop": "agentguard.detect.rules.loops:NearLoop",
    "no_progress": "agentguard.detect.rules.progress:NoProgress",
    "oscillation": "agentguard.detect.rules.loops:Oscillation",
    "out_of_range": "agentguard.detect.rules.tool_calls:OutOfRange",
    "policy": "agentguard.detect.rules.constraints:ConstraintDetector",
    "premature_end": "agentguard.detect.rules.malformed_output:PrematureEnd",
    "refusal": "agentguard.detect.rules.malformed_output:RefusalDetector",
    "repeated_plan": "agentguard.detect.rules.progress:RepeatedPlan",
    "role_confusion": "agentguard.detect.rules.role_confusion:RoleConfusion",
    "schema_violation": "agentguard.detect.rules.tool_calls:SchemaViolation",
    "tool_error": "agentguard.detect.rules.tool_errors:ToolError",
    "tool_error_ignored": "agentguard.detect.rules.tool_errors:ToolErrorIgnored",
    "truncated_output": "agentguard.detect.rules.malformed_output:TruncatedOutput",
    "unknown_origin": "agentguard.detect.rules.provenance:UnknownProvenance",
    "unknown_tool": "agentguard.detect.rules.tool_calls:UnknownTool",
    "unparsable_action": "agentguard.detect.rules.tool_calls:UnparsableAction",
    "unverified_success": "agentguard.detect.rules.unsupported_claims:UnverifiedSuccess",
    "watchdog": "agentguard.detect.rules.budgets:StepDurationWatchdog",
}
