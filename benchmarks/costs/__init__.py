"""What one unit of work costs as history, runs and fleets grow."""
