"""Contract suites: what every plug-in must keep to, for the built-in ones and for one's own.

A suite is a tuple of checks, ``CHECKS``. A check is a function that raises AssertionError; it needs no test
runner, and is imported without one. With pytest::

    from agentguard.testing.contracts import strategies

    @pytest.mark.parametrize("check", strategies.CHECKS, ids=lambda check: check.__name__)
    def test_my_strategy(check):
        check(MyStrategy)
"""
