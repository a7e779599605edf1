"""Read models of the viewer."""
