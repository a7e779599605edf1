"""Trajectories: what happened."""
