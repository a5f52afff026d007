"""Results: measurements, the run that holds them, its file, its journal and its history."""
