"""The command line, a file for each command: it parses options, makes one call and gives one exit code."""

from stripectl.cli.app import main

__all__ = ["main"]
