"""Contract suites for built-in and third-party plug-ins.

A suite is a tuple of checks, ``CHECKS``. A check is a function that raises AssertionError. It needs no test
runner, and importing it does not import one. With pytest::

    from agentguard.testing.contracts import strategies

    @pytest.mark.parametrize("check", strategies.CHECKS, ids=lambda check: check.__name__)
    def test_my_strategy(check):
        check(MyStrategy)
"""
