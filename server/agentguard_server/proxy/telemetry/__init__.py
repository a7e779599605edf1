"""Telemetry of the proxy: metrics, spans and logs, each a `RequestObserver` that never blocks a request."""
