"""Comparison of gateways: cost per request, measured on one machine."""
