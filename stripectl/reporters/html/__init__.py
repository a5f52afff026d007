"""A run as one self-contained HTML file: a section a module, and the charts that sections draw."""
