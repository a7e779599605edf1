"""What an endpoint is worth as a judge: what it can do, how fast, and how well it judges known runs."""
