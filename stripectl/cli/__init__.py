"""The command line, one file per command, which parses options, makes one call and returns one exit code."""

from stripectl.cli.app import main

__all__ = ["main"]
