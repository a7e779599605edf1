"""Load balancing policies, one per module, with a common interface (`load_balancing.base`)."""
