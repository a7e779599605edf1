"""HTML report: one file with tables and plots, without script, font or network access."""
