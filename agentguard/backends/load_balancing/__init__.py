"""Which replica gets a request: one policy a file, all through the same door (`policies.base`)."""
