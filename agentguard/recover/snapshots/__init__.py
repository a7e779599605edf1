"""Snapshots of the state that a run's tools change, saved at turn boundaries.

``serializers``  conversion of a state to bytes and back
``history``      snapshots of one run in memory: dense at its end, sparse further back, bounded in bytes
``manager``      snapshot interval (Young 1974, Daly 2006), saving and restoring, snapshots in the store
"""
