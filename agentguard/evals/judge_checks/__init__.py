"""Checks of an endpoint as a judge: capabilities, speed, and accuracy on known runs."""
