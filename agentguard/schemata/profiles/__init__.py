"""Profiles of steps: traits, the sentences that describe them, and words without the topic."""
