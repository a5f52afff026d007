"""Tools that know nothing about attention: units, files, the disk cache."""
