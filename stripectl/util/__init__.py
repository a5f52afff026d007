"""Ground that knows nothing of attention: units, files, the disk cache."""
