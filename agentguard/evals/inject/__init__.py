"""Injection of one error at a known step into recorded runs, after CORRECT-Error (arXiv 2509.24088).

`agentguard.evals.inject.error_injection` creates failed runs from recorded runs that passed. The lab
(`agentguard_lab`) generates runs of scripted agents in a real environment. The annotation of an injected
run has ``extra["origin"] == "injected"``.
"""
