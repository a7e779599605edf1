"""Runs with one error put into them at a known step, after CORRECT-Error (arXiv 2509.24088).

Online: `agentguard_lab.textworld.run_generator` plays scripted agents with one fault in a real environment, which
answers whatever they do. Offline: `agentguard.evals.inject.rewriter` makes failed runs from a user's own
recorded runs that passed. What either makes says so in its annotation (``extra["origin"] == "injected"``);
figures measured on it are never put together with figures on natural failures.
"""
