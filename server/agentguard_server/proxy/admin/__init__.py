"""Admin application of the proxy: health, metrics, status, administration and viewer."""
