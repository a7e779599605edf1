"""What is kept: runs, findings, diagnoses, schemata, verdicts, recoveries and effects, in SQLite or PostgreSQL."""
