"""A run as one self-contained HTML file: one module per section, and the charts that sections draw."""
