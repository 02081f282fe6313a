"""Programs to learn from. Each runs as it stands."""
