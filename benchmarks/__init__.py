"""What the system costs, each time against a named baseline that ran in the same process between its own rounds."""
