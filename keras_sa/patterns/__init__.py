"""Who attends to whom, as plain data."""
