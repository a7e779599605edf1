"""Runs as OpenTelemetry spans, with what agentguard said of them, sent to any collector over OTLP/HTTP."""
