"""TextWorld as a test environment: games from a seed, the tools of an agent in them, a scripted agent.

Needs the extra ``textworld``; it is imported only when a game is built or played.
"""
