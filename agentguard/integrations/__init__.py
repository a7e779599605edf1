"""Integrations of the guard with agent frameworks, one package per framework.

Each integration translates the callbacks of its framework to events of a session.
"""
