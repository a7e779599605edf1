"""Web viewer of runs, their diagnoses and their recoveries."""
