"""Programs that show the system at work, on private servers."""
