"""Where the work of an evaluation is done."""
