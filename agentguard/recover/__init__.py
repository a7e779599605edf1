"""What now: take the run back to the step, correct it, go on, and check that it helped."""
