"""TextWorld as a test environment: seeded games, the tools of an agent in them, and a scripted agent.

The module needs the extra ``textworld``; TextWorld is imported only when a game is built or played.
"""
