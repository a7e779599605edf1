"""The guard in the proxy: `interceptor` checks runs while their requests pass."""
