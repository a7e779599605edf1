"""Content of the page of a run as plain values, independent of requests and templates."""
