"""Settings of all tests: no example is timed, as machines are noisy; speed is measured in benchmarks."""

from hypothesis import HealthCheck, settings

settings.register_profile("agentguard", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("agentguard")
