"""`python -m stripectl` is the console command."""

from stripectl.cli import main

main()
