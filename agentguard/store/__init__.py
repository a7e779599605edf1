"""What is kept, in SQLite or PostgreSQL: runs, findings, diagnoses, schemata, recoveries, effects."""
