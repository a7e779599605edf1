"""Request handling: body, upstream request and response writer."""
