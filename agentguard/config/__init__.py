"""Configuration models of the policy file and of the judge."""
