"""Recovery: plan and apply rollbacks, repairs and hints, and verify their outcomes."""
